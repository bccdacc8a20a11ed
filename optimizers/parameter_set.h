#pragma once
// The parameters of one optimizer with their settings resolved, cut into blocks: the unit of work
// of a step. Optimizers differ only in what they do to a block.

#include <algorithm>
#include <functional>
#include <limits>

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

/// Elements of one block, except a parameter's last.
inline constexpr size_t kStepBlock = 16384;

class ParameterSet {
 public:
  struct Item {
    std::string name;
    std::span<float> value;
    std::span<const float> gradient;
    float weight_decay;
    float momentum;
    double learning_rate_scale;
    bool adapt;
    size_t state_offset;  // of the parameter's first element in every state buffer
    size_t first_block;
    size_t block_count;
  };
  struct Block {
    const Item* item;
    size_t index;   // among all blocks
    size_t offset;  // of the block's first element in the parameter
    size_t count;

    std::span<float> value() const { return item->value.subspan(offset, count); }
    std::span<const float> gradient() const { return item->gradient.subspan(offset, count); }
    std::span<float> state(const Buffer& buffer) const {
      return buffer.as<float>().subspan(item->state_offset + offset, count);
    }
  };

  /// @throws InvalidArgument as make_optimizer() does for parameters and groups.
  ParameterSet(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
               const std::vector<ParamGroup>& groups);
  ParameterSet(const ParameterSet&) = delete;  // blocks point into it
  ParameterSet& operator=(const ParameterSet&) = delete;

  const std::vector<Item>& items() const { return items_; }
  const std::vector<Block>& blocks() const { return blocks_; }

  /// One zero per element; parameters begin at 64-byte boundaries.
  Buffer make_state() const { return Buffer(state_numel_ * sizeof(float)); }
  TensorView state_view(const Buffer& buffer, const Item& item) const;

  /// Calls body(block) once for each block, on the pool's threads.
  template <class Body>
  void for_each_block(ThreadPool& pool, const Body& body) const {
    const auto call = [&](size_t i) { body(blocks_[i]); };
    pool.parallel_for(blocks_.size(), std::ref(call));  // a reference: nothing is allocated
  }

  /// As for_each_block, last block first: a second pass finds the end of the first in the cache.
  template <class Body>
  void for_each_block_backwards(ThreadPool& pool, const Body& body) const {
    const auto call = [&](size_t i) { body(blocks_[blocks_.size() - 1 - i]); };
    pool.parallel_for(blocks_.size(), std::ref(call));
  }

  /// @throws NonFiniteGradient naming the first parameter and element that is NaN or infinite.
  void check_gradients(ThreadPool& pool);

 private:
  void add(const OptimizerSpec& spec, const Parameter& parameter,
           const std::vector<ParamGroup>& groups);

  std::vector<Item> items_;
  std::vector<Block> blocks_;
  std::vector<uint8_t> finite_;  // per block
  size_t state_numel_ = 0;
};

/// @throws InvalidArgument unless the learning rate is one that float can hold and >= 0, and the
/// gradients' scale in (0, 1].
void check_options(std::string_view optimizer, const StepOptions& options);

/// A step size as the loops use it; what float cannot hold becomes its largest value.
inline float to_rate(double rate) {
  return static_cast<float>(std::min(rate, static_cast<double>(std::numeric_limits<float>::max())));
}

/// The sum of an item's blocks' sums, in block order.
inline double sum_of_blocks(const ParameterSet::Item& item, const std::vector<double>& sums) {
  double sum = 0.0;
  for (size_t i = 0; i < item.block_count; ++i) {
    sum += sums[item.first_block + i];
  }
  return sum;
}

}  // namespace gradwire
