#include "bench/selection_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/trainer/data.h"
#include "bench/trainer/network.h"

namespace selection {
namespace {

constexpr size_t kBatch = 32;
constexpr float kLearningRate = 0.1f;
constexpr uint64_t kSeed = 20240607;

/// Moves the k largest |x| from x to `sent`.
void take_largest(std::vector<float>& x, size_t k, std::vector<float>& sent) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  for (size_t i = 0; i < k; ++i) {
    sent[order[i]] += x[order[i]];
    x[order[i]] = 0;
  }
}

}  // namespace

Gradients of_training(const std::string& folder, size_t ranks, size_t steps) {
  const trainer::DataFolder data = trainer::load_folder(folder);
  const trainer::Standardiser standardise(data.train);
  trainer::Network model({.image = {data.train.channels, data.train.rows, data.train.columns},
                          .hidden = {1024, 1024},
                          .classes = data.classes},
                         kBatch);
  model.initialise(kSeed);
  const size_t numel = model.parameter_count();
  std::vector<float> gradient(numel);
  size_t at = 0;
  for (size_t p = 0; p < model.parameters().size(); ++p) {
    const size_t size = model.value(p).size();
    model.bind_gradient(p, std::span(gradient).subspan(at, size));
    at += size;
  }
  Gradients all{"training", std::vector(ranks, std::vector<float>(numel))};
  std::vector<uint8_t> labels(kBatch);
  for (size_t step = 0; step < steps; ++step) {
    std::vector<float> sum(numel);
    for (size_t rank = 0; rank < ranks; ++rank) {
      trainer::BatchSampler sampler({data.train.count, kBatch, ranks, kSeed}, rank);
      trainer::gather_examples(data.train, standardise, sampler.batch(step), model.inputs(),
                               labels);
      model.forward(labels);
      model.backward(labels, [](gradwire::ParamId) {});
      std::vector<float>& x = all.of_rank[rank];
      std::ranges::transform(x, gradient, x.begin(), std::plus());
      if (step + 1 < steps) {
        take_largest(x, numel / 100, sum);
      }
    }
    at = 0;
    for (size_t p = 0; p < model.parameters().size(); ++p) {
      for (float& weight : model.value(p)) {
        weight -= kLearningRate * sum[at++] / static_cast<float>(ranks);
      }
    }
  }
  return all;
}

Gradients heavy_tailed(size_t numel, size_t ranks) {
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  Gradients all{"heavy-tailed", std::vector(ranks, std::vector<float>(numel))};
  for (size_t i = 0; i < numel; ++i) {
    const float common = normal(random);
    for (std::vector<float>& x : all.of_rank) {
      x[i] = std::pow((common + normal(random)) * std::sqrt(0.5f), 3.0f);
    }
  }
  return all;
}

Gradients embedding(size_t rows, size_t ranks) {
  constexpr size_t kWidth = 64;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  Gradients all{"embedding", std::vector(ranks, std::vector<float>(rows * kWidth))};
  for (std::vector<float>& x : all.of_rank) {
    for (size_t touched = 0; touched < rows / 50; ++touched) {
      // The inverse of Zipf's distribution, nearly: ranks of words are spread log-uniformly.
      const double word = std::exp(uniform(random) * std::log(static_cast<double>(rows)));
      const size_t row = static_cast<size_t>(word) * 7919 % rows;
      for (size_t i = 0; i < kWidth; ++i) {
        x[row * kWidth + i] += normal(random);
      }
    }
  }
  return all;
}

}  // namespace selection
