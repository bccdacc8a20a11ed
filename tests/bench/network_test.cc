#include "bench/trainer/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "tests/bench/network_rig.h"

namespace {

using gradwire::ParamId;
using network_case::kShapes;
using network_case::perceptron;
using network_case::Reference;
using network_case::Rig;

constexpr size_t kBatch = 4;
constexpr double kStep = 1e-6;  // of central differences

class NetworkTest : public testing::TestWithParam<trainer::NetworkShape> {
 protected:
  NetworkTest() : rig_(GetParam(), kBatch) {
    std::mt19937 random(20240501);
    std::uniform_real_distribution<float> uniform(-1, 1);
    reference_.shape = GetParam();
    rig_.initialise(random);
    for (ParamId p = 0; p < rig_.parameters(); ++p) {
      const std::vector<float> values = rig_.value(p);
      reference_.parameters.emplace_back(values.begin(), values.end());
    }
    for (size_t i = 0; i < kBatch * GetParam().image.size(); ++i) {
      inputs_.push_back(uniform(random));
    }
    rig_.set_inputs(inputs_);
  }

  Rig rig_;
  trainer::Network& model_ = rig_.model;
  Reference reference_;
  std::vector<float> inputs_;
  const std::vector<uint8_t> labels_ = {2, 0, 1, 2};
  const std::span<const uint8_t> labels_there_ = rig_.labels(labels_);
};

INSTANTIATE_TEST_SUITE_P(Shapes, NetworkTest, testing::ValuesIn(kShapes), [](const auto& row) {
  return "convolutions" + std::to_string(row.param.convolutions.size());
});

TEST_P(NetworkTest, LossEqualsADoublePrecisionLoop) {
  model_.forward(labels_there_);
  EXPECT_NEAR(model_.last_result().loss, reference_.loss(inputs_, labels_), 1e-5);
}

TEST_P(NetworkTest, GradientsEqualCentralDifferencesOfADoublePrecisionLoop) {
  model_.forward(labels_there_);
  model_.backward(labels_there_, [](ParamId) {});
  for (ParamId p = 0; p < rig_.parameters(); ++p) {
    SCOPED_TRACE(model_.parameters()[p].name);
    const std::vector<float> gradient = rig_.gradient(p);
    double largest = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      double& value = reference_.parameters[p][i];
      const double kept = value;
      value = kept + kStep;
      const double above = reference_.loss(inputs_, labels_);
      value = kept - kStep;
      const double below = reference_.loss(inputs_, labels_);
      value = kept;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 2e-6) << "element " << i;
      largest = std::max<double>(largest, std::abs(gradient[i]));
    }
    EXPECT_GT(largest, 1e-3) << "the comparison says nothing about gradients that are all 0";
  }
}

TEST_P(NetworkTest, HandsOverEachGradientOnceFromTheLastLayerToTheFirst) {
  std::vector<ParamId> order;
  model_.forward(labels_there_);
  model_.backward(labels_there_, [&](ParamId p) {
    order.push_back(p);
    rig_.fill_gradient(p,
                       123.0f);  // complete when handed over: what comes later must not change it
  });
  std::vector<ParamId> expected(rig_.parameters());
  std::iota(expected.rbegin(), expected.rend(), ParamId{0});
  EXPECT_EQ(order, expected);
  for (ParamId p = 0; p < rig_.parameters(); ++p) {
    for (const float g : rig_.gradient(p)) {
      ASSERT_EQ(g, 123.0f);
    }
  }
}

TEST_P(NetworkTest, CountsRowsWhoseLargestLogitIsAtTheirLabel) {
  for (ParamId p = 0; p < rig_.parameters(); ++p) {
    std::vector<float> values(model_.value(p).size());
    if (p + 1 == rig_.parameters()) {
      values[1] = 1.0f;  // the last bias: every row is classified as 1
    }
    model_.set_value(p, values);
  }
  model_.forward(labels_there_);
  EXPECT_EQ(model_.last_result().correct, 1u);
}

TEST_P(NetworkTest, KeepsTheResultsOfTheLastPasses) {
  std::vector<double> losses;
  for (size_t pass = 0; pass < trainer::Network::kResults + 3; ++pass) {
    rig_.set_inputs(std::vector<float>(inputs_.size(), 0.1f * static_cast<float>(pass)));
    model_.forward(labels_there_);
    losses.push_back(model_.last_result().loss);
  }
  const auto kept = model_.last_results(trainer::Network::kResults);
  ASSERT_EQ(kept.size(), trainer::Network::kResults);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].loss, losses[i + 3]) << "pass " << i + 3;
  }
  EXPECT_THROW(model_.last_results(kept.size() + 1), gradwire::InvalidArgument);
}

TEST_P(NetworkTest, InitialParametersFollowFromTheSeed) {
  Rig a(GetParam(), 1), b(GetParam(), 1), c(GetParam(), 1);
  a.model.initialise(9);
  b.model.initialise(9);
  c.model.initialise(10);
  EXPECT_TRUE(std::ranges::equal(a.model.values(), b.model.values()));
  EXPECT_FALSE(std::ranges::equal(a.model.values(), c.model.values()));
}

TEST_P(NetworkTest, CountsItsParameters) {
  size_t all = 0;
  for (const auto& parameter : reference_.parameters) {
    all += parameter.size();
  }
  EXPECT_EQ(trainer::Network::count_parameters(GetParam()), all);
  EXPECT_EQ(model_.parameter_count(), all);
  EXPECT_EQ(model_.values().size(), all);
}

TEST(Network, InitialWeightsHaveHesVariance) {
  Rig rig(perceptron({400, 300, 2}), 1);
  rig.model.initialise(1);
  double squares = 0;
  for (const float w : rig.value(0)) {
    squares += static_cast<double>(w) * w;
  }
  EXPECT_NEAR(squares / (400.0 * 300.0), 2.0 / 400.0, 0.03 * 2.0 / 400.0);  // He et al., 2015
  for (const float b : rig.value(1)) {
    EXPECT_EQ(b, 0.0f);
  }
}

TEST(Network, RejectsBadShapesAndBatches) {
  using gradwire::InvalidArgument;
  EXPECT_THROW(trainer::Network(perceptron({4, 0, 2}), 1), InvalidArgument);
  EXPECT_THROW(trainer::Network(perceptron({4, 2}), 0), InvalidArgument);
  EXPECT_THROW(trainer::Network(perceptron({0, 2}), 1), InvalidArgument);
  EXPECT_THROW(trainer::Network(perceptron({4, 0}), 1), InvalidArgument);
  EXPECT_THROW(trainer::Network({{1, 4, 4}, {0}, {}, 2}, 1), InvalidArgument);
  EXPECT_THROW(trainer::Network({{1, 4, 4}, {2, 2, 2}, {}, 2}, 1), InvalidArgument);
  trainer::Network model(perceptron({4, 2}), 2);
  const std::vector<uint8_t> labels(3);
  EXPECT_THROW(model.forward(labels), InvalidArgument);
  std::vector<float> memory(7);
  EXPECT_THROW(model.bind_gradient(0, memory), InvalidArgument);
  EXPECT_THROW(model.set_value(1, memory), InvalidArgument);
  EXPECT_THROW(model.value(2), InvalidArgument);
}

}  // namespace
