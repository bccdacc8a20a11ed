// Local steps: what prepare() writes, what apply() makes of the ranks' mean, against naive loops.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

constexpr unsigned kSeed = 20261122;
constexpr int kRanks = 3;

/// Moves all values as inner steps would.
void inner_steps(Model& model, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (std::vector<float>& value : model.values) {
    for (float& x : value) {
      x += normal(random);
    }
  }
}

struct Case {
  const char* spec;
  double rate, momentum;
  bool nesterov;
};

TEST(OuterOptimizer, FollowsItsPaperOverManyRanksAndSteps) {
  for (const Case& c : {Case{"diloco", 0.7, 0.9, true}, Case{"diloco:preset=paper", 0.7, 0.9, true},
                        Case{"diloco:nesterov=0,momentum=0.5", 0.4, 0.5, false},
                        Case{"diloco:preset=sparseloco", 1.0, 0.0, false},
                        Case{"diloco:preset=local-sgd", 1.0, 0.0, false}}) {
    SCOPED_TRACE(c.spec);
    std::vector<Model> ranks(kRanks, Model({1, 7, 1025, 40001}));
    std::vector<std::unique_ptr<Optimizer>> outer;
    std::vector<std::vector<double>> theta, momentum;
    for (Model& rank : ranks) {
      outer.push_back(make_optimizer(parse_optimizer(c.spec), rank.parameters()));
    }
    for (const std::vector<float>& value : ranks[0].values) {
      theta.emplace_back(value.begin(), value.end());
      momentum.emplace_back(value.size());
    }
    for (unsigned t = 0; t < 50; ++t) {
      for (unsigned rank = 0; rank < kRanks; ++rank) {
        inner_steps(ranks[rank], kSeed + 100 * t + rank);
        prepare(*outer[rank], 2);
      }
      for (size_t i = 0; i < theta.size(); ++i) {
        for (size_t k = 0; k < theta[i].size(); ++k) {
          double mean = 0.0;
          for (const Model& rank : ranks) {
            mean += (theta[i][k] - static_cast<double>(rank.values[i][k])) / kRanks;
          }
          double& v = momentum[i][k];
          v = c.momentum * v + mean;
          theta[i][k] -= c.rate * (c.nesterov ? mean + c.momentum * v : v);
        }
      }
      average(ranks);
      for (unsigned rank = 0; rank < kRanks; ++rank) {
        apply(*outer[rank], c.rate, static_cast<int>(1 + rank));
        ASSERT_TRUE(same_bits(ranks[rank].values, ranks[0].values)) << rank;
      }
      for (size_t i = 0; i < theta.size(); ++i) {
        for (size_t k = 0; k < theta[i].size(); ++k) {
          ASSERT_NEAR(ranks[0].values[i][k], theta[i][k], 2e-4) << "outer step " << t;
        }
      }
    }
  }
}

TEST(OuterOptimizer, PrepareWritesWhatLocalStepsMovedAndNothingElse) {
  Model model;
  const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
  const Model before = model;
  inner_steps(model, kSeed);
  const Model moved = model;
  const State state = read_state(*outer);
  prepare(*outer, 3);
  prepare(*outer);  // again: the same
  EXPECT_TRUE(same_bits(model.values, moved.values));
  EXPECT_TRUE(same_bits(read_state(*outer), state));
  for (size_t i = 0; i < model.values.size(); ++i) {
    for (size_t k = 0; k < model.values[i].size(); ++k) {
      ASSERT_EQ(model.gradients[i][k], before.values[i][k] - moved.values[i][k]);
    }
  }
}

TEST(OuterOptimizer, AMeanThatIsNotFiniteChangesNothing) {
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Model model;
    const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
    inner_steps(model, kSeed);
    prepare(*outer);
    model.gradients[5][77777] = bad;
    const Model before = model;
    const State state = read_state(*outer);
    const std::string message = message_of<NonFiniteGradient>([&] { apply(*outer, 0.7, 2); });
    EXPECT_NE(message.find("'layer5': element 77777"), std::string::npos) << message;
    EXPECT_TRUE(same_bits(model.values, before.values));
    EXPECT_TRUE(same_bits(read_state(*outer), state));
  }
}

TEST(OuterOptimizer, ACheckpointBetweenOuterStepsGoesOnWithTheSameBits) {
  Model model;
  const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
  inner_steps(model, kSeed);
  prepare(*outer);
  apply(*outer, 0.7);
  inner_steps(model, kSeed + 1);  // in the middle of local steps
  Model copy = model;
  const auto restored = make_optimizer(parse_optimizer("diloco"), copy.parameters());
  write_state(*restored, read_state(*outer));
  for (auto* each : {outer.get(), restored.get()}) {
    prepare(*each);
    apply(*each, 0.7);
  }
  EXPECT_TRUE(same_bits(copy.values, model.values));
  EXPECT_TRUE(same_bits(read_state(*restored), read_state(*outer)));
}

TEST(OuterOptimizer, ValuesThatOthersWriteAreTheNewAnchor) {
  Model model;
  const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
  inner_steps(model, kSeed);  // as a broadcast would
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  outer->values_changed(context);
  stream->wait();
  const Model before = model;
  prepare(*outer);
  for (const std::vector<float>& gradient : model.gradients) {
    EXPECT_EQ(std::count(gradient.begin(), gradient.end(), 0.0f),
              static_cast<ptrdiff_t>(gradient.size()));
  }
  apply(*outer, 0.7);
  EXPECT_TRUE(same_bits(model.values, before.values));
}

TEST(OuterOptimizer, MovesHaveNoScale) {
  Model model({3});
  const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
  const Model before = model;
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { on_stream(1, [&](Context& context) { outer->prepare(0.5, context); }); }),
            "diloco: gradient_scale is 0.5, must be 1: what values were moved by has none");
  EXPECT_TRUE(same_bits(model.gradients, before.gradients));
}

TEST(OuterOptimizer, TakesFloat32Alone) {
  std::vector<bfloat16> value(4);
  std::vector<float> gradient(4), floats(4);
  const auto refusal = [](const Parameter& parameter) {
    return message_of<InvalidArgument>(
        [&] { make_optimizer(parse_optimizer("diloco"), {parameter}); });
  };
  EXPECT_EQ(refusal({"w", view_of(std::span(value)), view_of(std::span(gradient))}),
            "parameter 'w': is bfloat16, expected float32 of value and gradient for local steps");
  EXPECT_EQ(refusal({"w", view_of(std::span(floats)), view_of(std::span(gradient))}),
            "nothing was thrown");
}

}  // namespace
}  // namespace gradwire
