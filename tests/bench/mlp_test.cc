#include "bench/trainer/mlp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace {

using gradwire::ParamId;

constexpr size_t kInputs = 5, kClasses = 3, kBatch = 4;
const std::vector<size_t> kWidths = {kInputs, 7, 6, kClasses};

// The network in double precision, one multiplication after another: weights[l][o][i].
struct Reference {
  std::vector<std::vector<double>> parameters;  // weight, bias, weight, bias, …

  double loss(const std::vector<float>& inputs, const std::vector<uint8_t>& labels) const {
    double total = 0;
    for (size_t example = 0; example < labels.size(); ++example) {
      std::vector<double> x(inputs.begin() + static_cast<long>(example * kInputs),
                            inputs.begin() + static_cast<long>((example + 1) * kInputs));
      for (size_t l = 0; l + 1 < kWidths.size(); ++l) {
        std::vector<double> z(kWidths[l + 1]);
        for (size_t o = 0; o < z.size(); ++o) {
          z[o] = parameters[2 * l + 1][o];
          for (size_t i = 0; i < x.size(); ++i) {
            z[o] += parameters[2 * l][o * x.size() + i] * x[i];
          }
          if (l + 2 < kWidths.size() && z[o] < 0) {
            z[o] = 0;
          }
        }
        x = z;
      }
      double sum = 0;
      for (const double z : x) {
        sum += std::exp(z);
      }
      total += std::log(sum) - x[labels[example]];
    }
    return total / static_cast<double>(labels.size());
  }
};

class MlpTest : public testing::Test {
 protected:
  MlpTest() : model_(kWidths, kBatch) {
    std::mt19937 random(20240501);
    std::uniform_real_distribution<float> uniform(-1, 1);
    model_.initialise(3);
    for (ParamId p = 0; p < model_.parameters().size(); ++p) {
      gradients_.emplace_back(model_.value(p).size());
      model_.bind_gradient(p, gradients_[p]);
      for (float& value : model_.value(p)) {
        value += 0.3f * uniform(random);  // no zero biases, no small last layer
      }
      reference_.parameters.emplace_back(model_.value(p).begin(), model_.value(p).end());
    }
    for (size_t i = 0; i < kBatch * kInputs; ++i) {
      inputs_.push_back(uniform(random));
    }
    std::copy(inputs_.begin(), inputs_.end(), model_.inputs().begin());
  }

  trainer::Mlp model_;
  Reference reference_;
  std::vector<std::vector<float>> gradients_;
  std::vector<float> inputs_;
  std::vector<uint8_t> labels_ = {2, 0, 1, 2};
};

TEST_F(MlpTest, LossEqualsADoublePrecisionLoop) {
  EXPECT_NEAR(model_.forward(labels_), reference_.loss(inputs_, labels_), 1e-5);
}

TEST_F(MlpTest, GradientsEqualCentralDifferencesOfADoublePrecisionLoop) {
  model_.forward(labels_);
  model_.backward(labels_, [](ParamId) {});
  constexpr double kStep = 1e-6;
  for (size_t p = 0; p < gradients_.size(); ++p) {
    SCOPED_TRACE(model_.parameters()[p].name);
    double largest = 0;
    for (size_t i = 0; i < gradients_[p].size(); ++i) {
      double& value = reference_.parameters[p][i];
      const double kept = value;
      value = kept + kStep;
      const double above = reference_.loss(inputs_, labels_);
      value = kept - kStep;
      const double below = reference_.loss(inputs_, labels_);
      value = kept;
      EXPECT_NEAR(gradients_[p][i], (above - below) / (2 * kStep), 2e-6) << "element " << i;
      largest = std::max<double>(largest, std::abs(gradients_[p][i]));
    }
    EXPECT_GT(largest, 1e-3) << "the comparison says nothing about gradients that are all 0";
  }
}

TEST_F(MlpTest, HandsOverEachGradientOnceFromTheLastLayerToTheFirst) {
  std::vector<ParamId> order;
  model_.forward(labels_);
  model_.backward(labels_, [&](ParamId p) {
    order.push_back(p);
    // Complete when handed over: what comes later must not change it.
    std::fill(gradients_[p].begin(), gradients_[p].end(), 123.0f);
  });
  EXPECT_EQ(order, (std::vector<ParamId>{5, 4, 3, 2, 1, 0}));
  for (const auto& gradient : gradients_) {
    for (const float g : gradient) {
      ASSERT_EQ(g, 123.0f);
    }
  }
}

TEST_F(MlpTest, CountsRowsWhoseLargestLogitIsAtTheirLabel) {
  for (ParamId p = 0; p < model_.parameters().size(); ++p) {
    std::fill(model_.value(p).begin(), model_.value(p).end(), 0.0f);
  }
  model_.value(5)[1] = 1.0f;  // the last bias: every row is classified as 1
  model_.forward(labels_);
  EXPECT_EQ(model_.correct(labels_), 1u);
}

TEST_F(MlpTest, InitialParametersFollowFromTheSeed) {
  trainer::Mlp a(kWidths, 1), b(kWidths, 1), c(kWidths, 1);
  a.initialise(9);
  b.initialise(9);
  c.initialise(10);
  EXPECT_TRUE(std::equal(a.values().begin(), a.values().end(), b.values().begin()));
  EXPECT_FALSE(std::equal(a.values().begin(), a.values().end(), c.values().begin()));
}

TEST(Mlp, InitialWeightsHaveHesVariance) {
  trainer::Mlp model({400, 300, 2}, 1);
  model.initialise(1);
  double squares = 0;
  for (const float w : model.value(0)) {
    squares += static_cast<double>(w) * w;
  }
  EXPECT_NEAR(squares / (400.0 * 300.0), 2.0 / 400.0, 0.03 * 2.0 / 400.0);  // He et al., 2015
  for (const float b : model.value(1)) {
    EXPECT_EQ(b, 0.0f);
  }
}

TEST(Mlp, RejectsBadWidthsAndBatches) {
  EXPECT_THROW(trainer::Mlp({4}, 1), gradwire::InvalidArgument);
  EXPECT_THROW(trainer::Mlp({4, 0, 2}, 1), gradwire::InvalidArgument);
  EXPECT_THROW(trainer::Mlp({4, 2}, 0), gradwire::InvalidArgument);
  trainer::Mlp model({4, 2}, 2);
  const std::vector<uint8_t> labels(3);
  EXPECT_THROW(model.forward(labels), gradwire::InvalidArgument);
  std::vector<float> memory(7);
  EXPECT_THROW(model.bind_gradient(0, memory), gradwire::InvalidArgument);
  EXPECT_THROW(model.value(2), gradwire::InvalidArgument);
}

}  // namespace
