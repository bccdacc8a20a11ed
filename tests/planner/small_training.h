#pragma once
// A real training problem that a test can afford: ten Gaussian clouds, a layer of 64 tanh units,
// SGD with momentum. Every rank draws its own samples.

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire::test {

class SmallTraining {
 public:
  static constexpr size_t kInputs = 64, kHidden = 64, kClasses = 10, kBatch = 32;

  explicit SmallTraining(float learning_rate = 0.05f) : learning_rate_(learning_rate) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (const ParamInfo& of : parameters()) {
      auto& values = weights_.emplace_back(of.numel());
      velocity_.emplace_back(of.numel());
      if (of.shape.size() == 2) {
        const float scale = 1 / std::sqrt(static_cast<float>(of.shape[1]));
        std::ranges::generate(values, [&] { return scale * normal(random); });
      }
    }
    centres_.resize(kClasses * kInputs);
    std::ranges::generate(centres_, [&] { return 0.45f * normal(random); });
  }

  static std::vector<ParamInfo> parameters() {
    return {{"hidden.weight", {kHidden, kInputs}},
            {"hidden.bias", {kHidden}},
            {"out.weight", {kClasses, kHidden}},
            {"out.bias", {kClasses}}};
  }

  /// The mean loss of a batch and its gradients, written to `gradients` of each parameter.
  float step(unsigned seed, const std::vector<std::span<float>>& gradients) {
    std::mt19937 random(seed);
    for (const std::span<float> gradient : gradients) {
      std::ranges::fill(gradient, 0.0f);
    }
    float loss = 0;
    for (size_t sample = 0; sample < kBatch; ++sample) {
      const size_t label = draw(random);
      loss += forward(label) / kBatch;
      for (size_t c = 0; c < kClasses; ++c) {
        const float error = (out_[c] - (c == label ? 1.0f : 0.0f)) / kBatch;
        gradients[3][c] += error;
        for (size_t h = 0; h < kHidden; ++h) {
          gradients[2][c * kHidden + h] += error * hidden_[h];
        }
        errors_[c] = error;
      }
      for (size_t h = 0; h < kHidden; ++h) {
        float error = 0;
        for (size_t c = 0; c < kClasses; ++c) {
          error += errors_[c] * weights_[2][c * kHidden + h];
        }
        error *= 1 - hidden_[h] * hidden_[h];
        gradients[1][h] += error;
        for (size_t i = 0; i < kInputs; ++i) {
          gradients[0][h * kInputs + i] += error * input_[i];
        }
      }
    }
    return loss;
  }

  void apply(size_t parameter, std::span<const float> mean) {
    for (size_t i = 0; i < mean.size(); ++i) {
      velocity_[parameter][i] = 0.9f * velocity_[parameter][i] + mean[i];
      weights_[parameter][i] -= learning_rate_ * velocity_[parameter][i];
    }
  }

  /// Of 2000 samples that no rank trains on.
  double accuracy() {
    std::mt19937 random(4242);
    size_t right = 0;
    for (size_t sample = 0; sample < 2000; ++sample) {
      const size_t label = draw(random);
      forward(label);
      right += static_cast<size_t>(std::ranges::max_element(out_) - out_.begin()) == label;
    }
    return static_cast<double>(right) / 2000;
  }

  const std::vector<std::vector<float>>& weights() const { return weights_; }

 private:
  size_t draw(std::mt19937& random) {
    std::normal_distribution<float> normal;
    const size_t label = random() % kClasses;
    for (size_t i = 0; i < kInputs; ++i) {
      input_[i] = centres_[label * kInputs + i] + normal(random);
    }
    return label;
  }

  float forward(size_t label) {
    for (size_t h = 0; h < kHidden; ++h) {
      float sum = weights_[1][h];
      for (size_t i = 0; i < kInputs; ++i) {
        sum += weights_[0][h * kInputs + i] * input_[i];
      }
      hidden_[h] = std::tanh(sum);
    }
    float all = 0, most = -1e30f;
    for (size_t c = 0; c < kClasses; ++c) {
      out_[c] = weights_[3][c];
      for (size_t h = 0; h < kHidden; ++h) {
        out_[c] += weights_[2][c * kHidden + h] * hidden_[h];
      }
      most = std::max(most, out_[c]);
    }
    for (float& out : out_) {
      out = std::exp(out - most);
      all += out;
    }
    for (float& out : out_) {
      out /= all;
    }
    return -std::log(std::max(out_[label], 1e-12f));
  }

  float learning_rate_;
  std::vector<std::vector<float>> weights_, velocity_;
  std::vector<float> centres_;
  std::vector<float> input_ = std::vector<float>(kInputs), hidden_ = std::vector<float>(kHidden);
  std::vector<float> out_ = std::vector<float>(kClasses), errors_ = std::vector<float>(kClasses);
};

}  // namespace gradwire::test
