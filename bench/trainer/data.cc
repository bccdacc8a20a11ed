#include "bench/trainer/data.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "bench/trainer/random.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {

using gradwire::check;

Standardiser::Standardiser(std::span<const uint8_t> pixels) {
  uint64_t sum = 0, squares = 0;
  for (const uint8_t pixel : pixels) {
    sum += pixel;
    squares += uint64_t{pixel} * pixel;
  }
  const auto count = static_cast<double>(pixels.size());
  mean_ = static_cast<double>(sum) / count;
  const double variance = static_cast<double>(squares) / count - mean_ * mean_;
  check(variance > 0, "data: the variance of the training pixels is ", variance,
        ", expected pixels that differ");
  deviation_ = std::sqrt(variance);
  for (size_t pixel = 0; pixel < value_.size(); ++pixel) {
    value_[pixel] = static_cast<float>((static_cast<double>(pixel) - mean_) / deviation_);
  }
}

void Sharding::validate() const {
  check(steps_per_epoch() >= 1, "data: ", examples, " training examples for ", world_size,
        " ranks with batches of ", batch_size, " give no full step, expected at least ",
        world_size * batch_size, " examples");
}

std::vector<uint32_t> epoch_permutation(const Sharding& sharding, uint64_t epoch) {
  std::vector<uint32_t> order(sharding.examples);
  std::iota(order.begin(), order.end(), 0u);
  Random random(sharding.seed, epoch + 1);  // stream 0 belongs to the parameters
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

BatchSampler::BatchSampler(Sharding sharding, size_t rank) : sharding_(sharding), rank_(rank) {
  sharding_.validate();
}

std::span<const uint32_t> BatchSampler::batch(uint64_t step) {
  const uint64_t steps = sharding_.steps_per_epoch();
  if (step / steps != epoch_) {
    epoch_ = step / steps;
    permutation_ = epoch_permutation(sharding_, epoch_);
  }
  const size_t first = (step % steps * sharding_.world_size + rank_) * sharding_.batch_size;
  return std::span(permutation_).subspan(first, sharding_.batch_size);
}

void gather_examples(const LabelledImages& images, const Standardiser& standardise,
                     std::span<const uint32_t> indices, std::span<float> inputs,
                     std::span<uint8_t> labels) {
  const size_t features = images.features();
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint8_t* pixels = images.pixels.data() + size_t{indices[i]} * features;
    for (size_t j = 0; j < features; ++j) {
      inputs[i * features + j] = standardise(pixels[j]);
    }
    labels[i] = images.labels[indices[i]];
  }
}

}  // namespace trainer
