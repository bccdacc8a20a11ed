#include "bench/trainer/data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "bench/trainer/random.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {

using gradwire::check;

Standardiser::Standardiser(const LabelledImages& training) : channels_(training.channels) {
  struct Sums {
    uint64_t values = 0, squares = 0;
  };
  const size_t plane = training.plane();
  std::vector<Sums> sums(channels_.size());
  for (size_t i = 0; i < training.count * channels_.size(); ++i) {
    Sums& of = sums[i % channels_.size()];
    for (const uint8_t pixel : std::span(training.pixels).subspan(i * plane, plane)) {
      of.values += pixel;
      of.squares += uint64_t{pixel} * pixel;
    }
  }
  const auto count = static_cast<double>(training.count * plane);
  double largest = 0;
  for (size_t c = 0; c < channels_.size(); ++c) {
    Channel& channel = channels_[c];
    channel.mean = static_cast<double>(sums[c].values) / count;
    const double variance =
        static_cast<double>(sums[c].squares) / count - channel.mean * channel.mean;
    largest = std::max(largest, variance);
    if (variance > 0) {
      channel.deviation = std::sqrt(variance);
    }
    for (size_t pixel = 0; pixel < channel.value.size(); ++pixel) {
      channel.value[pixel] =
          static_cast<float>((static_cast<double>(pixel) - channel.mean) / channel.deviation);
    }
  }
  check(largest > 0, "data: the variance of the training pixels is ", largest,
        ", expected pixels that differ");
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
  const size_t features = images.features(), plane = images.plane();
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint8_t* pixels = images.pixels.data() + size_t{indices[i]} * features;
    for (size_t c = 0; c < images.channels; ++c) {
      for (size_t j = c * plane; j < (c + 1) * plane; ++j) {
        inputs[i * features + j] = standardise(pixels[j], c);
      }
    }
    labels[i] = images.labels[indices[i]];
  }
}

}  // namespace trainer
