#include "bench/trainer/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace {

using gradwire::ParamId;

constexpr size_t kBatch = 4;
constexpr double kStep = 1e-6;  // of central differences

using Planes = std::vector<std::vector<std::vector<double>>>;  // channel, row, column

// A network in double precision, one multiplication after another, images of one channel.
struct Reference {
  trainer::NetworkShape shape;
  std::vector<std::vector<double>> parameters;  // weight, bias, weight, bias, …

  Planes convolve(const Planes& in, size_t layer) const {
    const auto &weight = parameters[2 * layer], &bias = parameters[2 * layer + 1];
    const long rows = static_cast<long>(in[0].size()), columns = static_cast<long>(in[0][0].size());
    const auto z = [&](size_t o, long y, long x) {
      double sum = bias[o];
      for (size_t c = 0; c < in.size(); ++c) {
        for (long dy = -1; dy <= 1; ++dy) {
          for (long dx = -1; dx <= 1; ++dx) {
            if (y + dy >= 0 && y + dy < rows && x + dx >= 0 && x + dx < columns) {
              sum += weight[(o * in.size() + c) * 9 + static_cast<size_t>((dy + 1) * 3 + dx + 1)] *
                     in[c][static_cast<size_t>(y + dy)][static_cast<size_t>(x + dx)];
            }
          }
        }
      }
      return std::max(sum, 0.0);
    };
    Planes out(bias.size());
    for (size_t o = 0; o < out.size(); ++o) {
      for (long y = 0; y + 1 < rows; y += 2) {
        out[o].emplace_back();
        for (long x = 0; x + 1 < columns; x += 2) {
          out[o].back().push_back(
              std::max({z(o, y, x), z(o, y, x + 1), z(o, y + 1, x), z(o, y + 1, x + 1)}));
        }
      }
    }
    return out;
  }

  std::vector<double> features(const float* pixels) const {
    Planes planes(1);
    for (size_t y = 0; y < shape.image.rows; ++y) {
      planes[0].emplace_back(pixels + y * shape.image.columns,
                             pixels + (y + 1) * shape.image.columns);
    }
    for (size_t k = 0; k < shape.convolutions.size(); ++k) {
      planes = convolve(planes, k);
    }
    std::vector<double> all;
    for (const auto& plane : planes) {
      for (const auto& row : plane) {
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  }

  double loss(const std::vector<float>& inputs, const std::vector<uint8_t>& labels) const {
    double total = 0;
    for (size_t example = 0; example < labels.size(); ++example) {
      std::vector<double> x = features(inputs.data() + example * shape.image.size());
      for (size_t p = 2 * shape.convolutions.size(); p < parameters.size(); p += 2) {
        std::vector<double> z(parameters[p + 1].size());
        for (size_t o = 0; o < z.size(); ++o) {
          z[o] = parameters[p + 1][o];
          for (size_t i = 0; i < x.size(); ++i) {
            z[o] += parameters[p][o * x.size() + i] * x[i];
          }
          if (p + 2 < parameters.size() && z[o] < 0) {
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

trainer::NetworkShape perceptron(std::vector<size_t> widths) {
  const size_t inputs = widths.front(), classes = widths.back();
  return {{1, 1, inputs}, {}, {widths.begin() + 1, widths.end() - 1}, classes};
}

// Odd rows and columns, so that some are left out.
const std::vector<trainer::NetworkShape> kShapes = {
    perceptron({5, 7, 6, 3}), {{1, 7, 9}, {3}, {}, 3}, {{1, 9, 8}, {3, 4}, {5}, 3}};

class NetworkTest : public testing::TestWithParam<trainer::NetworkShape> {
 protected:
  NetworkTest() : model_(GetParam(), kBatch) {
    std::mt19937 random(20240501);
    std::uniform_real_distribution<float> uniform(-1, 1);
    reference_.shape = GetParam();
    model_.initialise(3);
    for (ParamId p = 0; p < model_.parameters().size(); ++p) {
      gradients_.emplace_back(model_.value(p).size());
      model_.bind_gradient(p, gradients_[p]);
      for (float& value : model_.value(p)) {
        value += 0.3f * uniform(random);  // no zero biases, no small last layer
      }
      reference_.parameters.emplace_back(model_.value(p).begin(), model_.value(p).end());
    }
    for (size_t i = 0; i < kBatch * GetParam().image.size(); ++i) {
      inputs_.push_back(uniform(random));
    }
    std::copy(inputs_.begin(), inputs_.end(), model_.inputs().begin());
  }

  trainer::Network model_;
  Reference reference_;
  std::vector<std::vector<float>> gradients_;
  std::vector<float> inputs_;
  std::vector<uint8_t> labels_ = {2, 0, 1, 2};
};

INSTANTIATE_TEST_SUITE_P(Shapes, NetworkTest, testing::ValuesIn(kShapes), [](const auto& row) {
  return "convolutions" + std::to_string(row.param.convolutions.size());
});

TEST_P(NetworkTest, LossEqualsADoublePrecisionLoop) {
  EXPECT_NEAR(model_.forward(labels_), reference_.loss(inputs_, labels_), 1e-5);
}

TEST_P(NetworkTest, GradientsEqualCentralDifferencesOfADoublePrecisionLoop) {
  model_.forward(labels_);
  model_.backward(labels_, [](ParamId) {});
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

TEST_P(NetworkTest, HandsOverEachGradientOnceFromTheLastLayerToTheFirst) {
  std::vector<ParamId> order;
  model_.forward(labels_);
  model_.backward(labels_, [&](ParamId p) {
    order.push_back(p);
    // Complete when handed over: what comes later must not change it.
    std::fill(gradients_[p].begin(), gradients_[p].end(), 123.0f);
  });
  std::vector<ParamId> expected(gradients_.size());
  std::iota(expected.rbegin(), expected.rend(), ParamId{0});
  EXPECT_EQ(order, expected);
  for (const auto& gradient : gradients_) {
    for (const float g : gradient) {
      ASSERT_EQ(g, 123.0f);
    }
  }
}

TEST_P(NetworkTest, CountsRowsWhoseLargestLogitIsAtTheirLabel) {
  for (ParamId p = 0; p < model_.parameters().size(); ++p) {
    std::fill(model_.value(p).begin(), model_.value(p).end(), 0.0f);
  }
  model_.value(static_cast<ParamId>(gradients_.size() - 1))[1] =
      1.0f;  // the last bias: every row is classified as 1
  model_.forward(labels_);
  EXPECT_EQ(model_.correct(labels_), 1u);
}

TEST_P(NetworkTest, InitialParametersFollowFromTheSeed) {
  trainer::Network a(GetParam(), 1), b(GetParam(), 1), c(GetParam(), 1);
  a.initialise(9);
  b.initialise(9);
  c.initialise(10);
  EXPECT_TRUE(std::equal(a.values().begin(), a.values().end(), b.values().begin()));
  EXPECT_FALSE(std::equal(a.values().begin(), a.values().end(), c.values().begin()));
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
  trainer::Network model(perceptron({400, 300, 2}), 1);
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
  EXPECT_THROW(model.value(2), InvalidArgument);
}

}  // namespace
