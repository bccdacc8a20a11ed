// State of 8 bits: its codes against a table that is searched, what rounding must not do to steps,
// and how much memory it takes.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step.h"
#include "tests/optimizers/coded_state.h"
#include "tests/reference/optimizers.h"

namespace gradwire {
namespace {

using ::reference::Vector;

constexpr size_t kNumel = 2500;  // the last block is short

TEST(StateCodes, OfEveryStepAreThoseOfATableThatIsSearched) {
  for (const char* text : {"adamw:state=8bit,min_8bit_size=0", "lamb:state=8bit,min_8bit_size=9",
                           "sgd:state=8bit,min_8bit_size=2500,nesterov=1,weight_decay=0.01",
                           "lars:state=8bit,min_8bit_size=1,trust_coefficient=0.1"}) {
    SCOPED_TRACE(text);
    const OptimizerSpec spec = parse_optimizer(text);
    const bool adam = spec.name == "adamw" || spec.name == "lamb";
    Wide wide(kNumel, 3.0);
    const auto optimizer = make_optimizer(spec, wide.model.parameters());
    State state = read_state(*optimizer);
    Compared compared;
    for (uint32_t t = 0; t < 200; ++t) {
      SCOPED_TRACE(t);
      wide.fill();
      const std::vector<float>& value = wide.model.values[0];
      const std::vector<float>& gradient = wide.model.gradients[0];
      Vector w(value.begin(), value.end()), g(gradient.begin(), gradient.end());
      const std::string first = adam ? "layer0/exp_avg" : "layer0/momentum";
      const std::string second = "layer0/exp_avg_sq";
      Vector m = decoded(state, first, true);
      Vector v = adam ? decoded(state, second, false) : Vector();
      constexpr double kRate = 1e-3;
      if (adam) {
        ::reference::lamb(w, m, v, g, static_cast<int>(t) + 1,
                          {.learning_rate = kRate,
                           .beta1 = spec.beta1,
                           .beta2 = spec.beta2,
                           .epsilon = spec.epsilon.value(),
                           .weight_decay = spec.weight_decay.value(),
                           .adapt = spec.name == "lamb"});
      } else if (spec.name == "sgd") {
        ::reference::sgd(w, m, g,
                         {kRate, spec.momentum, spec.weight_decay.value(), spec.nesterov.value()});
      } else {
        ::reference::lars(w, m, g,
                          {.learning_rate = kRate,
                           .momentum = spec.momentum,
                           .weight_decay = spec.weight_decay.value(),
                           .trust_coefficient = spec.trust_coefficient.value(),
                           .epsilon = spec.epsilon.value(),
                           .adapt = true});
      }
      step(*optimizer, kRate, 2);
      state = read_state(*optimizer);
      for (size_t i = 0; i < kNumel; ++i) {
        ASSERT_NEAR(wide.model.values[0][i], w[i], 4e-6 * std::max(1.0, std::fabs(w[i]))) << i;
      }
      expect_codes(state, first, true, m, kHashOfLayer0, t, compared);
      if (adam) {
        expect_codes(state, second, false, v, kHashOfLayer0, t, compared);
      }
      ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_GE(compared.all, 200 * kNumel);
    EXPECT_LT(compared.uncertain, compared.all / 1000);
  }
}

/// Of one block, by the loops.
struct OneBlock {
  std::vector<uint8_t> codes;
  float scale;
  std::vector<float> again;
};
OneBlock block_of(const std::vector<float>& x, bool has_sign, uint16_t draw) {
  OneBlock block{std::vector<uint8_t>(x.size()), 0.0f, std::vector<float>(x.size())};
  const std::vector<uint16_t> draws(x.size(), draw);
  cpu::encode_state(x, draws, has_sign, block.codes, {&block.scale, 1});
  cpu::decode_state(block.codes, {&block.scale, 1}, has_sign, block.again);
  return block;
}

TEST(StateCodes, WhatHasACodeKeepsItWhateverIsDrawnAndWhereverTheScaleIs) {
  for (const bool has_sign : {true, false}) {
    const std::vector<double> values = reference::code_values(has_sign);
    for (const int exponent : {-87, -3, 0, 55, 127}) {
      SCOPED_TRACE(exponent);
      std::vector<float> x;
      for (const double value : values) {
        x.push_back(static_cast<float>(std::ldexp(value, exponent)));
      }
      std::reverse(x.begin(), x.end());
      x.resize(256);
      for (size_t i = 0; has_sign && i < 128; ++i) {
        x[128 + i] = i == 127 ? 0.0f : -x[i];
      }
      for (const int draw : {0, 1, 0x8000, 0xFFFF}) {
        const OneBlock block = block_of(x, has_sign, static_cast<uint16_t>(draw));
        EXPECT_EQ(block.scale, std::ldexp(1.0f, exponent));
        EXPECT_TRUE(same_bits(block.again, x));
      }
      if (exponent < 127) {  // beside a larger element those that are still in its range
        x[0] = std::ldexp(1.9f, exponent + 3);
        const OneBlock block = block_of(x, has_sign, 77);
        EXPECT_EQ(block.scale, std::ldexp(1.0f, exponent + 4));
        for (size_t i = 1; i < 90; ++i) {
          EXPECT_EQ(block.again[i], x[i]) << i;
        }
      }
    }
  }
}

TEST(StateCodes, ZeroStaysZeroAndTheEndsOfFloatAreFinite) {
  const float largest = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const bool has_sign : {true, false}) {
    for (const int draw : {0, 0xFFFF}) {
      SCOPED_TRACE(draw);
      const auto encode = [&](const std::vector<float>& x) {
        return block_of(x, has_sign, static_cast<uint16_t>(draw));
      };
      const OneBlock zeros = encode({0.0f, 0.0f, has_sign ? -0.0f : 0.0f});
      EXPECT_EQ(zeros.scale, 0.0f);
      EXPECT_EQ(zeros.codes, std::vector<uint8_t>(3));
      EXPECT_TRUE(same_bits(zeros.again, {0.0f, 0.0f, 0.0f}));
      const OneBlock ends = encode({largest, 0.0f, least, HUGE_VALF});
      EXPECT_EQ(ends.again[0], 0x1.Ep127f);
      EXPECT_EQ(ends.again[3], 0x1.Ep127f);
      EXPECT_EQ(ends.codes[1], 0);
      // What is not 0 stays so, where codes have no sign.
      EXPECT_EQ(ends.codes[2], has_sign ? 0 : 1);
      const OneBlock tiny = encode({least, 0.0f});
      EXPECT_EQ(tiny.scale, 0x1p-87f);
      EXPECT_EQ(tiny.codes[0], has_sign ? 0 : 1);
      EXPECT_EQ(tiny.codes[1], 0);
    }
  }
}

// At the nearest code v would not move at all: a step changes it by 0.1% of its distance from g^2,
// and codes are 6 to 12% apart.
TEST(StateCodes, TheMeanSquareOfAConstantGradientIsRightInExpectation) {
  constexpr size_t kCount = 4096;
  Model model({kCount});
  for (size_t i = 0; i < kCount; ++i) {  // eight sizes, in every block
    model.gradients[0][i] = 0.01f * (1.0f + 0.37f * static_cast<float>(i % 8));
  }
  const auto optimizer = make_optimizer(parse_optimizer("adamw:state=8bit"), model.parameters());
  const auto mean_ratio = [&](int begin, int end) {
    std::vector<double> ratios(8);
    for (int t = 0; t < end; ++t) {
      step(*optimizer, 0.0);
      if (t < begin || t % 50 != 0) {
        continue;
      }
      const Vector v = decoded(read_state(*optimizer), "layer0/exp_avg_sq", false);
      for (size_t i = 0; i < kCount; ++i) {
        const double g = model.gradients[0][i];
        ratios[i % 8] += v[i] / (g * g) / (kCount / 8) / ((end - begin) / 50);
      }
    }
    return ratios;
  };
  for (const double ratio : mean_ratio(6000, 8000)) {  // 0.999^6000 is 0.0025
    EXPECT_NEAR(ratio, 1.0, 0.01);
  }
  for (float& g : model.gradients[0]) {  // and down again
    g *= 0.25f;
  }
  for (const double ratio : mean_ratio(9000, 11000)) {
    EXPECT_NEAR(ratio, 1.0, 0.015);
  }
}

// An m beside a v that was rounded away would make a step of m / epsilon: 10^8 learning rates.
TEST(StateCodes, NoStepExplodesBesideLargeGradientsOrBehindRareOnes) {
  constexpr size_t kCount = 4096;
  for (const char* text : {"adamw:state=8bit,weight_decay=0", "lamb:state=8bit,epsilon=1e-12"}) {
    SCOPED_TRACE(text);
    Model model({kCount});
    const auto optimizer =
        make_optimizer(parse_optimizer(text), model.parameters(), {{.adapt = false}});
    std::mt19937 random(3);
    for (int t = 0; t < 300; ++t) {
      for (size_t i = 0; i < kCount; ++i) {
        // Down to 2^-63 of the block's largest; a third of the elements is of rare rows.
        const float size = std::ldexp(1e3f, -static_cast<int>(i % 64));
        const bool silent = i % 3 == 0 && t % 40 != 0;
        model.gradients[0][i] = silent ? 0.0f : (random() % 2 == 0 ? size : -size);
      }
      const std::vector<float> before = model.values[0];
      step(*optimizer, 0.01);
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_LE(std::fabs(model.values[0][i] - before[i]), 0.01f * 3.0f) << t << " " << i;
      }
    }
  }
}

// How far 200 steps end from those with state of float32, as a part of how far these go.
TEST(StateCodes, StepsAreNearThoseOfFloat32) {
  struct Case {
    const char* spec;
    double bound;
  };
  for (const auto& [spec, bound] :
       {Case{"sgd", 0.05}, {"adamw", 0.1}, {"lars", 0.05}, {"lamb", 0.1}}) {
    SCOPED_TRACE(spec);
    Wide exact(10000, 1.0), coded(10000, 1.0);
    const std::vector<float> start = exact.model.values[0];
    const auto of_exact = make_optimizer(parse_optimizer(spec), exact.model.parameters());
    const auto of_coded =
        make_optimizer(parse_optimizer(concat(spec, ":state=8bit")), coded.model.parameters());
    for (int t = 0; t < 200; ++t) {
      exact.fill();
      coded.fill();
      step(*of_exact, 1e-3);
      step(*of_coded, 1e-3);
    }
    double apart = 0.0, way = 0.0;
    for (size_t i = 0; i < start.size(); ++i) {
      apart += std::pow(coded.model.values[0][i] - exact.model.values[0][i], 2);
      way += std::pow(exact.model.values[0][i] - start[i], 2);
    }
    EXPECT_GT(apart, 0.0);
    EXPECT_LT(std::sqrt(apart / way), bound);
  }
}

TEST(StateCodes, TakeAQuarterOfTheMemory) {
  constexpr size_t kLarge = size_t{1} << 20, kSmall = 4095;
  Model model({kLarge, kSmall});
  const auto bytes = [&](const char* spec) {
    return make_optimizer(parse_optimizer(spec), model.parameters())->state_bytes();
  };
  constexpr size_t kPadded = kSmall + 1;
  EXPECT_EQ(bytes("adamw"), 8 * (kLarge + kPadded));
  EXPECT_EQ(bytes("adamw:state=8bit"), 2 * (kLarge + 4 * kLarge / 256) + 8 * kPadded);
  EXPECT_EQ(bytes("adamw:state=8bit,min_8bit_size=4095"),
            2 * (kLarge + kPadded) + 8 * (kLarge / 256 + 32));
  EXPECT_EQ(bytes("sgd:state=8bit"), kLarge + 4 * kLarge / 256 + 4 * kPadded);
  EXPECT_EQ(bytes("sgd:momentum=0,state=8bit"), 0u);
}

TEST(StateCodes, AGroupMayHaveFullStateButNotFromAStepOn) {
  Model model({5000, 5000});
  const std::vector<ParamGroup> groups{{}, {.full_state = true}};
  const auto optimizer =
      make_optimizer(parse_optimizer("adamw:state=8bit"), model.parameters(2), groups);
  const State state = read_state(*optimizer);
  EXPECT_EQ(state.bytes.at("layer0/exp_avg_sq").size(), 5000u);
  EXPECT_EQ(state.tensors.at("layer0/exp_avg.scale").size(), 20u);
  EXPECT_EQ(state.tensors.at("layer1/exp_avg").size(), 5000u);
  EXPECT_EQ(message_of<InvalidArgument>([&] { optimizer->set_groups({{}, {}}); }),
            "group 1: full_state is 0, expected 1 as before: parameter 'layer1' has state of 32 "
            "bits");
  optimizer->set_groups({{.weight_decay = 0.5}, {.full_state = true}});
  const auto plain = make_optimizer(parse_optimizer("adamw"), model.parameters(2), groups);
  plain->set_groups({{}, {}});
}

}  // namespace
}  // namespace gradwire
