// 1-bit Adam and 1-bit LAMB, both stages, over two ranks, against their papers' loops.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/optimizers/model.h"
#include "tests/reference/onebit_optimizers.h"

namespace gradwire {
namespace {

using reference::OneBitLayer;
using reference::OneBitSettings;
using reference::Vector;

constexpr size_t kRanks = 2;

/// A step of all ranks; what is exchanged loses nothing.
void step_all(std::vector<Model>& ranks, std::vector<std::unique_ptr<Optimizer>>& optimizers,
              double rate) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    prepare(*optimizers[r], 2);
  }
  average(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    apply(*optimizers[r], rate, static_cast<int>(1 + r));
  }
}

double rate_of(int t) { return 0.004 * (1.5 + std::sin(t)); }

OneBitSettings settings_of(const OptimizerSpec& spec, const ParamGroup& group, int t) {
  return {.learning_rate = rate_of(t) * group.learning_rate_scale,
          .beta1 = spec.beta1,
          .beta2 = spec.beta2,
          .epsilon = spec.epsilon.value(),
          .weight_decay = group.weight_decay.value_or(spec.weight_decay.value()),
          .freeze_step = static_cast<int>(spec.freeze_step),
          .bias_correction = spec.bias_correction,
          .variance_floor = spec.variance_floor.value(),
          .adapt = spec.name == "onebit-lamb" && group.adapt,
          .min_ratio = spec.min_ratio,
          .max_ratio = spec.max_ratio == 0.0 ? 1e300 : spec.max_ratio,
          .coeff_beta = spec.coeff_beta,
          .factor_min = spec.factor_min,
          .factor_max = spec.factor_max,
          .factor_threshold = spec.factor_threshold};
}

void expect_close(const std::vector<float>& actual, const Vector& expected, double bound,
                  const std::string& what) {
  double largest = 1e-30;
  for (double x : expected) {
    largest = std::max(largest, std::fabs(x));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], bound * largest) << what << " element " << i;
  }
}

/// Gradients differ between ranks, shrink with time, and are 0 in places until step `quiet`.
void fill(std::vector<Model>& ranks, int t, int quiet) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].fill_gradients(static_cast<unsigned>(100 * t) + static_cast<unsigned>(r));
    for (std::vector<float>& gradient : ranks[r].gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] *= 1.0f / (1.0f + 0.01f * static_cast<float>(t));
        gradient[i] = t <= quiet && i % 11 == 7 ? 0.0f : gradient[i];
      }
    }
  }
}

void expect_paper(const std::string& text, const std::vector<size_t>& sizes, int steps) {
  SCOPED_TRACE(text);
  const OptimizerSpec spec = parse_optimizer(text);
  const std::vector<ParamGroup> groups = model_groups();
  std::vector<Model> ranks(kRanks, Model(sizes));
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (Model& rank : ranks) {
    optimizers.push_back(make_optimizer(spec, rank.parameters(groups.size()), groups));
  }
  std::vector<OneBitLayer> layers;
  for (const std::vector<float>& value : ranks[0].values) {
    const Vector zero(value.size());
    layers.push_back({.w = {value.begin(), value.end()}, .m = zero, .v = zero, .fresh = zero});
  }
  const int freeze = static_cast<int>(spec.freeze_step);
  for (int t = 1; t <= steps; ++t) {
    fill(ranks, t, freeze);
    for (size_t l = 0; l < layers.size(); ++l) {
      std::vector<Vector> gradients;
      for (const Model& rank : ranks) {
        gradients.emplace_back(rank.gradients[l].begin(), rank.gradients[l].end());
      }
      reference::onebit(layers[l], gradients, t, settings_of(spec, groups[l % groups.size()], t));
    }
    ASSERT_EQ(optimizers[0]->exchanges(),
              t <= freeze ? Exchanged::kGradients : Exchanged::kMomentum);
    step_all(ranks, optimizers, rate_of(t));
    ASSERT_TRUE(same_bits(ranks[0].values, ranks[1].values));
    if (t % 20 != 0 && t > 2 && std::abs(t - freeze) > 1 && t != steps) {
      continue;
    }
    const State state = read_state(*optimizers[0]);
    for (size_t l = 0; l < layers.size() && !testing::Test::HasFatalFailure(); ++l) {
      const std::string name = "layer" + std::to_string(l);
      SCOPED_TRACE(concat("step ", t, ", ", name));
      const double bound = 4e-6 + 2e-7 * t;
      expect_close(ranks[0].values[l], layers[l].w, bound, "value");
      expect_close(state.tensors.at(name + "/exp_avg"), layers[l].m, 1e-5, "exp_avg");
      expect_close(state.tensors.at(name + "/exp_avg_sq"), layers[l].v, 1e-5, "exp_avg_sq");
      if (spec.name == "onebit-lamb" && t >= freeze && !layers[l].w.empty()) {
        expect_close(state.tensors.at(name + "/exp_avg_sq_fresh"), layers[l].fresh, 1e-4, "fresh");
        EXPECT_NEAR(state.tensors.at(name + "/factor")[0], layers[l].factor, 1e-4);
        EXPECT_NEAR(state.tensors.at(name + "/coefficient")[0], layers[l].coefficient,
                    1e-5 * layers[l].coefficient);
      }
    }
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
}

const char* const kAll[] = {
    "onebit-adam:freeze_step=60",
    "onebit-adam:preset=paper,freeze_step=40",
    "onebit-adam:preset=deepspeed,freeze_step=150,weight_decay=0.1",
    "onebit-adam:freeze_step=1,beta1=0,beta2=0.5,epsilon=0.01",
    "onebit-adam:freeze_step=4,variance_floor=0.8",
    "onebit-lamb:freeze_step=60",
    "onebit-lamb:freeze_step=4,variance_floor=0.8",
    "onebit-lamb:preset=paper,freeze_step=40,weight_decay=0.01",
    "onebit-lamb:preset=deepspeed,freeze_step=30",
    "onebit-lamb:freeze_step=5,beta1=0.5,beta2=0.9,factor_threshold=0.02,factor_max=1.5,"
    "weight_decay=0.1,coeff_beta=0.5,max_ratio=0.5",
};

TEST(OneBitOptimizer, FollowsItsPaperOverRanksAndManySteps) {
  for (const char* text : kAll) {
    expect_paper(text, {0, 1, 7, 1023, 1025, 5001}, 200);
  }
}

TEST(OneBitOptimizer, FollowsItsPaperOverAMillionElements) {
  expect_paper("onebit-adam:freeze_step=2", {3, 1000000, 5}, 4);
  expect_paper("onebit-lamb:freeze_step=2,weight_decay=0.1", {1000000, 3, 5}, 4);
}

TEST(OneBitOptimizer, IsAdamWOrLambUntilItFreezes) {
  for (const auto& [text, plain] :
       {std::pair{"onebit-adam:beta1=0.8,max_grad_norm=0.5", "adamw:beta1=0.8,max_grad_norm=0.5"},
        std::pair{"onebit-adam", "adamw"}, std::pair{"onebit-lamb:max_ratio=2", "lamb:max_ratio=2"},
        std::pair{"onebit-lamb:weight_decay=0.1", "lamb:weight_decay=0.1"}}) {
    SCOPED_TRACE(text);
    Model ours, theirs;
    const auto one = make_optimizer(parse_optimizer(text), ours.parameters(3), model_groups());
    const auto other = make_optimizer(parse_optimizer(plain), theirs.parameters(3), model_groups());
    for (unsigned t = 0; t < 5; ++t) {
      ours.fill_gradients(t);
      theirs.fill_gradients(t);
      step(*one, 0.1, 2);
      step(*other, 0.1);
    }
    EXPECT_TRUE(same_bits(ours.values, theirs.values));
    const State state = read_state(*one);
    for (const auto& [name, tensor] : read_state(*other).tensors) {
      EXPECT_TRUE(same_bits(tensor, state.tensors.at(name))) << name;
    }
  }
}

}  // namespace
}  // namespace gradwire
