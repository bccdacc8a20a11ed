// 1-bit Adam and 1-bit LAMB behind the freeze: what callers rely on.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <limits>

#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

/// Behind the freeze.
class OneBitFrozen : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Optimizer> make(Model& model, const char* more = "") const {
    return make_optimizer(parse_optimizer(concat(GetParam(), ":freeze_step=2", more)),
                          model.parameters(3), model_groups());
  }
  std::unique_ptr<Optimizer> frozen(Model& model, const char* more = "") const {
    auto optimizer = make(model, more);
    for (unsigned t = 0; t < 3; ++t) {
      model.fill_gradients(t);
      step(*optimizer, 0.1);
    }
    return optimizer;
  }
};
INSTANTIATE_TEST_SUITE_P(Rows, OneBitFrozen, testing::Values("onebit-adam", "onebit-lamb"),
                         [](const auto& row) { return std::string(row.param + 7); });

constexpr const char* kCoded = ",state=8bit,min_8bit_size=1024";

// The steps that freeze it are still under way.
TEST_P(OneBitFrozen, SaysWhatIsExchangedBehindTheStepsThatAreEnqueued) {
  Model model;
  const auto optimizer = make(model);
  const auto stream = make_cpu_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::promise<void> asked;
  stream->enqueue([&, gate = asked.get_future().share()] { gate.wait(); });
  for (unsigned t = 0; t < 2; ++t) {
    optimizer->prepare(context);
    optimizer->apply({.learning_rate = 0.1}, context);
  }
  EXPECT_EQ(optimizer->exchanges(), Exchanged::kGradients);
  auto answer = std::async(std::launch::async, [&] { return optimizer->exchanges(context); });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  asked.set_value();
  EXPECT_EQ(answer.get(), Exchanged::kMomentum);
}

TEST_P(OneBitFrozen, AnyNumberOfThreadsGivesTheSameBits) {
  for (const char* more : {"", kCoded}) {
    Model expected;
    const auto alone = make(expected, more);
    Model model;
    const auto many = make(model, more);
    for (unsigned t = 0; t < 5; ++t) {
      for (Model* each : {&expected, &model}) {
        each->fill_gradients(t);
      }
      step(*alone, 0.1, 1);
      step(*many, 0.1, 3);
      ASSERT_TRUE(same_bits(model.gradients, expected.gradients)) << "what is exchanged";
    }
    EXPECT_TRUE(same_bits(model.values, expected.values));
    EXPECT_TRUE(same_bits(read_state(*many), read_state(*alone)));
  }
}

TEST_P(OneBitFrozen, CopiedStateContinuesWithTheSameBitsOnEitherSideOfTheFreeze) {
  for (const unsigned steps : {1u, 2u, 4u, 101u, 102u, 104u}) {
    SCOPED_TRACE(steps);
    const char* const more = steps > 100 ? kCoded : "";
    const unsigned made = steps % 100;
    Model model;
    const auto optimizer = make(model, more);
    for (unsigned t = 0; t < made; ++t) {
      model.fill_gradients(t);
      step(*optimizer, 0.1);
    }
    Model copy = model;
    const auto restored = make(copy, more);
    write_state(*restored, read_state(*optimizer));
    EXPECT_EQ(restored->exchanges(), optimizer->exchanges());
    for (unsigned t = made; t < made + 3; ++t) {
      for (Model* each : {&model, &copy}) {
        each->fill_gradients(t);
      }
      step(*optimizer, 0.1);
      step(*restored, 0.1);
    }
    EXPECT_TRUE(same_bits(copy.values, model.values));
    EXPECT_TRUE(same_bits(read_state(*restored), read_state(*optimizer)));
  }
}

/// Gradients that a loss was scaled for; powers of two round nothing.
void scale_gradients(Model& model, double scale) {
  for (std::vector<float>& gradient : model.gradients) {
    for (float& x : gradient) {
      x *= static_cast<float>(scale);
    }
  }
}

TEST_P(OneBitFrozen, ALossScaleIsTakenBackBeforeMomentaAreExchanged) {
  for (const char* more : {"", ",max_grad_norm=0.5", kCoded}) {
    SCOPED_TRACE(more);
    Model plain, scaled;
    const auto expected = make(plain, more), optimizer = make(scaled, more);
    for (unsigned t = 0; t < 6; ++t) {
      const double loss_scale = t < 4 ? 1024.0 : 64.0;  // what a scaler may do behind the freeze
      plain.fill_gradients(t);
      scaled.fill_gradients(t);
      scale_gradients(scaled, loss_scale);
      step(*expected, 0.1);
      on_stream(2, [&](Context& context) {
        optimizer->prepare(1.0 / loss_scale, context);
        optimizer->apply({.learning_rate = 0.1, .gradient_scale = 1.0 / loss_scale}, context);
      });
      if (t >= 2) {
        ASSERT_TRUE(same_bits(scaled.gradients, plain.gradients)) << "momenta, step " << t;
      }
    }
    EXPECT_TRUE(same_bits(scaled.values, plain.values));
    EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*expected)));
  }
}

// What a loss scale was too large for: nothing changes, and the next scale is as good as any.
TEST_P(OneBitFrozen, AScaleThatOverflowsLeavesTheStepOut) {
  Model plain, scaled;
  const auto expected = frozen(plain), optimizer = frozen(scaled);
  scaled.gradients[3][7] = std::numeric_limits<float>::infinity();
  const State before = read_state(*optimizer);
  const auto both = [&](double scale) {
    on_stream(1, [&](Context& context) {
      optimizer->prepare(scale, context);
      optimizer->apply(
          {.learning_rate = 0.1, .gradient_scale = scale, .on_non_finite = OnNonFinite::kSkip},
          context);
    });
  };
  both(0x1p-20);
  EXPECT_TRUE(same_bits(read_state(*optimizer), before));
  for (Model* each : {&plain, &scaled}) {
    each->fill_gradients(7);
  }
  scale_gradients(scaled, 0x1p+10);
  both(0x1p-10);
  step(*expected, 0.1);
  EXPECT_TRUE(same_bits(scaled.values, plain.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*expected)));
}

TEST_P(OneBitFrozen, AScaleIsCheckedWhereItIsGiven) {
  Model model;
  const auto optimizer = frozen(model);
  const Model before = model;
  for (const double bad : {0.0, -1.0, 2.0, std::nan("")}) {
    const std::string message = message_of<InvalidArgument>(
        [&] { on_stream(1, [&](Context& context) { optimizer->prepare(bad, context); }); });
    EXPECT_EQ(message, concat(GetParam(), ": gradient_scale is ", bad, ", must be in (0, 1]"));
  }
  const float scale = 2.0f;
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              on_stream(1, [&](Context& context) {
                optimizer->prepare({.learning_rate = 0.1, .on_device = {.loss_scale = &scale}},
                                   context);
              });
            }),
            concat(GetParam(),
                   ": on_device has a pointer, expected none: the parameters are in CPU memory"));
  EXPECT_TRUE(same_bits(model.gradients, before.gradients));
}

TEST_P(OneBitFrozen, StateThatIsLoadedWantsAnotherPrepare) {
  Model model;
  const auto optimizer = frozen(model);
  prepare(*optimizer);
  write_state(*optimizer, read_state(*optimizer));
  optimizer->state_loaded();
  const Model before = model;
  EXPECT_NE(message_of<InvalidArgument>([&] { apply(*optimizer, 0.1); }).find("without prepare()"),
            std::string::npos);
  EXPECT_TRUE(same_bits(model.values, before.values));
  model.fill_gradients(9);
  step(*optimizer, 0.1);
}

TEST_P(OneBitFrozen, WhatIsNotFiniteStaysSoInTheExchangeAndChangesNothing) {
  for (const char* more : {"", ",max_grad_norm=0.5"}) {
    for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (const size_t element : {size_t{77777}, size_t{5}}) {
        Model model;
        model.gradients[5][5] = 0.0f;  // its v froze at 0
        const auto optimizer = make(model, more);
        step(*optimizer, 0.1);
        step(*optimizer, 0.1);
        const Model before = model;
        const State state = read_state(*optimizer);
        model.gradients[5][element] = bad;
        prepare(*optimizer, 2);
        EXPECT_FALSE(std::isfinite(model.gradients[5][element]));
        EXPECT_TRUE(same_bits(model.values, before.values));
        EXPECT_TRUE(same_bits(read_state(*optimizer), state));
        const std::string message =
            message_of<NonFiniteGradient>([&] { apply(*optimizer, 0.1, 2); });
        EXPECT_NE(message.find(concat("'layer5': element ")), std::string::npos) << message;
        EXPECT_TRUE(same_bits(model.values, before.values));
        EXPECT_TRUE(same_bits(read_state(*optimizer), state));
      }
    }
  }
}

TEST_P(OneBitFrozen, AStepIsRefusedWithoutPrepareAndWithAScale) {
  Model model;
  const auto optimizer = frozen(model);
  const Model before = model;
  EXPECT_EQ(message_of<InvalidArgument>([&] { apply(*optimizer, 0.1); }),
            concat(GetParam(),
                   ": apply() without prepare(), expected before the exchange of every step once "
                   "exchanges() says momentum"));
  prepare(*optimizer);
  const std::string message = message_of<InvalidArgument>([&] {
    on_stream(1, [&](Context& context) {
      optimizer->apply({.learning_rate = 0.1, .gradient_scale = 0.5}, context);
    });
  });
  EXPECT_EQ(message, concat(GetParam(),
                            ": gradient_scale is 0.5, must be 1, as prepare() was given, which "
                            "has read the gradients"));
  EXPECT_TRUE(same_bits(model.values, before.values));
}

// 1-bit compression writes a magnitude wherever there is a sign, which epsilon alone would divide.
TEST_P(OneBitFrozen, ElementsWithoutAGradientBeforeTheFreezeStandStill) {
  Model model({100, 100});
  const auto optimizer = make(model, ",weight_decay=0");
  for (unsigned t = 0; t < 4; ++t) {
    model.fill_gradients(t);
    if (t < 2) {
      std::fill_n(model.gradients[0].begin(), 10, 0.0f);
    }
    prepare(*optimizer);
    const Model before = model;
    if (t >= 2) {
      EXPECT_EQ(std::count(model.gradients[0].begin(), model.gradients[0].begin() + 10, 0.0f), 10);
      std::fill_n(model.gradients[0].begin(), 10, 1.0f);
    }
    apply(*optimizer, 0.1);
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_EQ(model.values[0][i] == before.values[0][i], i < 10) << i;
    }
  }
  const State state = read_state(*optimizer);
  EXPECT_EQ(std::count_if(state.tensors.at("layer0/exp_avg").begin(),
                          state.tensors.at("layer0/exp_avg").end(), [](float x) { return x == 0; }),
            10);
}

TEST_P(OneBitFrozen, AParameterThatComesLateTakesAllBackUntilItIsReady) {
  Model model({20, 30});
  const auto optimizer = make(model);
  std::vector<Binding> places;
  for (const Parameter& p : model.parameters()) {
    places.push_back({p.value, p.gradient});
  }
  const Binding late = places[1];
  places[1].gradient = {};
  optimizer->bind(places);
  const auto expect = [&](Exchanged exchanged, unsigned t) {
    EXPECT_EQ(optimizer->exchanges(), exchanged) << t;
    model.fill_gradients(t);
    step(*optimizer, 0.01);
  };
  expect(Exchanged::kGradients, 0);
  expect(Exchanged::kGradients, 1);
  expect(Exchanged::kMomentum, 2);
  places[1] = late;
  optimizer->bind(places);
  expect(Exchanged::kGradients, 3);
  expect(Exchanged::kGradients, 4);
  expect(Exchanged::kMomentum, 5);
  const State state = read_state(*optimizer);
  EXPECT_EQ(state.scalars.at("layer0/step"), 6u);
  EXPECT_EQ(state.scalars.at("layer0/variance_step"), 4u);
  EXPECT_EQ(state.scalars.at("layer1/variance_step"), 2u);
}

TEST(OneBitLamb, AParameterThatIsLeftOutOfAStepKeepsItsFactor) {
  Model model({20, 30});
  const auto make = [&] {
    return make_optimizer(parse_optimizer("onebit-lamb:freeze_step=2,factor_threshold=0.5"),
                          model.parameters());
  };
  const auto optimizer = make();
  for (unsigned t = 0; t < 6; ++t) {
    model.fill_gradients(t);
    step(*optimizer, 0.01);
  }
  const State before = read_state(*optimizer);
  const std::vector<float> factor = before.tensors.at("layer1/factor");
  ASSERT_NE(factor, std::vector<float>{1.0f});
  const auto restored = make();  // which has made no step of its own with it
  write_state(*restored, before);
  std::vector<Binding> places;
  for (const Parameter& p : model.parameters()) {
    places.push_back({p.value, p.gradient});
  }
  places[1].gradient = {};
  for (Optimizer* each : {optimizer.get(), restored.get()}) {
    each->bind(places);
    model.fill_gradients(6);
    step(*each, 0.01);
    EXPECT_EQ(read_state(*each).tensors.at("layer1/factor"), factor);
  }
}

// m is 0.1 g after a step with the gradient g, and 0.9 times that and 0.1 times the next.
TEST_P(OneBitFrozen, ClipsTheRanksOwnGradientsAndTakesThemOf16Bits) {
  std::vector<float> value(4, 1.0f);
  std::vector<bfloat16> gradient(4, from_float<bfloat16>(0.25f));
  const auto optimizer =
      make_optimizer(parse_optimizer(concat(GetParam(), ":freeze_step=1,max_grad_norm=1")),
                     {{"w", view_of(std::span(value)), view_of(std::span(gradient))}});
  step(*optimizer, 0.1);
  std::fill(gradient.begin(), gradient.end(), from_float<bfloat16>(4.0f));  // the norm is 8
  prepare(*optimizer);
  for (bfloat16 x : gradient) {
    EXPECT_NEAR(to_float(x), 0.9 * 0.1 * 0.25 + 0.1 * 0.5, 3e-4);
  }
}

TEST(OneBitLamb, ExchangesMomentaOfOneSize) {
  Model model({64, 1000});
  std::vector<float>& large = model.gradients[1];
  const auto optimizer =
      make_optimizer(parse_optimizer("onebit-lamb:freeze_step=1,beta1=0.5"), model.parameters());
  model.gradients[0].assign(64, 1.0f);
  large.assign(1000, 20.0f);
  step(*optimizer, 0.1);
  Model copy = model;
  const auto restored = make_optimizer(optimizer->spec(), copy.parameters());
  write_state(*restored, read_state(*optimizer));
  for (Model* each : {&model, &copy}) {
    each->gradients[0].assign(64, 3.0f);
  }
  prepare(*optimizer);
  prepare(*restored);
  EXPECT_TRUE(same_bits(copy.gradients, model.gradients));
  // Sizes 0.5 and 10, mean 5.25: factors 10.5, of which 8 is nearest, and 0.525, of which 0.5 is.
  EXPECT_EQ(model.gradients[0][5], 8.0f * (0.5f * 0.5f + 0.5f * 3.0f));
  EXPECT_EQ(large[999], 0.5f * (0.5f * 10.0f + 0.5f * 20.0f));
  apply(*optimizer, 0.1);
  EXPECT_EQ(read_state(*optimizer).tensors.at("layer0/exp_avg")[5], 1.75f);
}

TEST(OneBitSpec, BoundsAreChecked) {
  Model model({3});
  const auto refusal = [&](const char* text) {
    return message_of<InvalidArgument>(
        [&] { make_optimizer(parse_optimizer(text), model.parameters()); });
  };
  EXPECT_EQ(refusal("onebit-lamb:factor_min=2,factor_max=1"),
            "onebit-lamb: factor_min is 2, must be at most factor_max, 1");
  EXPECT_EQ(refusal("onebit-lamb:min_ratio=2,max_ratio=1"),
            "onebit-lamb: min_ratio is 2, must be at most max_ratio, 1");
  for (const char* bad : {"0", "1.5", "1e300"}) {
    EXPECT_EQ(
        refusal(concat("onebit-adam:freeze_step=", bad).c_str()),
        concat("onebit-adam: freeze_step is ", std::stod(bad), ", must be a whole number from 1"));
  }
}

}  // namespace
}  // namespace gradwire
