#pragma once
// Which examples a rank sees in a step, and how pixels become inputs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/trainer/images.h"

namespace trainer {

/// Maps a pixel to (pixel - mean) / deviation, both taken over all pixels of its channel in the
/// training set. A channel of one value beside others that differ becomes 0.
class Standardiser {
 public:
  /// @throws gradwire::InvalidArgument when the pixels of every channel are equal.
  explicit Standardiser(const LabelledImages& training);

  double mean(size_t channel = 0) const { return channels_[channel].mean; }
  double deviation(size_t channel = 0) const { return channels_[channel].deviation; }
  float operator()(uint8_t pixel, size_t channel = 0) const {
    return channels_[channel].value[pixel];
  }

 private:
  struct Channel {
    double mean = 0;
    double deviation = 1;
    std::array<float, 256> value{};  // there are only 256 inputs
  };
  std::vector<Channel> channels_;
};

/// How many examples each rank takes in each step.
struct Sharding {
  size_t examples = 0;
  size_t batch_size = 0;  ///< per rank
  size_t world_size = 1;
  uint64_t seed = 0;

  /// The last partial batch is dropped.
  size_t steps_per_epoch() const { return examples / (batch_size * world_size); }
  /// @throws gradwire::InvalidArgument, with the numbers, when an epoch has no step.
  void validate() const;
};

/// All examples in the order of epoch `epoch`: the same on every rank and machine.
std::vector<uint32_t> epoch_permutation(const Sharding& sharding, uint64_t epoch);

/// Serves one rank its examples. Step s of an epoch takes world_size * batch_size consecutive
/// entries of the permutation, rank r the r-th batch of them.
class BatchSampler {
 public:
  BatchSampler(Sharding sharding, size_t rank);

  /// Indices of the rank's examples in step `step`, counted from 0 over all epochs. Valid until the
  /// next call.
  std::span<const uint32_t> batch(uint64_t step);

 private:
  Sharding sharding_;
  size_t rank_;
  uint64_t epoch_ = ~uint64_t{0};
  std::vector<uint32_t> permutation_;
};

/// Copies the standardised pixels and the labels of `indices` into inputs and labels.
void gather_examples(const LabelledImages& images, const Standardiser& standardise,
                     std::span<const uint32_t> indices, std::span<float> inputs,
                     std::span<uint8_t> labels);

}  // namespace trainer
