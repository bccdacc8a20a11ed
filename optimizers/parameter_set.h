#pragma once
// The parameters of one optimizer with their settings resolved, cut into blocks: the unit of work
// of a step. Optimizers differ only in what they do to a block.

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/parameter_checks.h"
#include "gradwire/optimizers/step_rule.h"

namespace gradwire {

/// Elements of one block, except a parameter's last. What a reader makes of one is in a thread's
/// own cache until it is used.
inline constexpr size_t kStepBlock = 16384;
/// Elements that are floats at once where memory holds something narrower, of state as well. Loops
/// sum by as many, so that a sum by pieces has the bits of the block's.
inline constexpr size_t kStepPiece = 1024;

class ParameterSet {
 public:
  struct Item : StepSettings {
    std::string name;
    TensorView value;
    ConstTensorView gradient;
    const ElementReader* reader = nullptr;  // in its place, from reader_begin on
    size_t reader_begin = 0;
    size_t group = 0;
    uint64_t steps = 0;       // applied to it; on a GPU they are counted there
    bool has_codes = false;   // state of 8 bits
    size_t state_offset = 0;  // of the parameter's first element in every state buffer
    size_t scale_offset = 0;  // the same of its codes' scales
    size_t whole_offset = 0;  // the same of state that is floats in every parameter
    uint64_t draw_key = 0;    // of random rounding
    size_t first_block = 0;
    size_t block_count = 0;
    std::span<float> master;        // what is stepped in the value's place, where not empty
    std::span<uint16_t> remainder;  // of masters of which the value is the upper half

    /// Whether the step has a gradient of it.
    bool present() const { return gradient.data != nullptr || reader != nullptr; }
  };
  /// Elements [begin, begin + gradient.size()) of a parameter, as floats.
  struct Piece {
    size_t begin;
    std::span<float> value;
    std::span<const float> gradient;
  };
  struct Block {
    const Item* item;
    size_t index;   // among all blocks
    size_t offset;  // of the block's first element in the parameter
    size_t count;

    /// Calls body(Piece) for all of the block in order: once, where memory holds floats.
    template <class Body>
    void read(const Body& body) const {
      visit<false>(body);
    }
    /// As read(); what the body writes to a piece's values becomes the parameter's.
    template <class Body>
    void update(const Body& body) const {
      visit<true>(body);
    }
    /// As read(), with body(Piece, out): what it writes to `out`, as long as the piece and maybe
    /// its gradient's own memory, becomes the gradient.
    template <class Body>
    void rewrite_gradient(const Body& body) const;
    /// Calls body(gradient, begin) in pieces as read() has them.
    template <class Body>
    void read_gradient(const Body& body) const;
    /// Whether the gradient is known to be all zeros without being read.
    bool gradient_known_zero() const {
      return item->reader != nullptr &&
             item->reader->known_zero(item->reader_begin + offset, count);
    }

   private:
    template <bool kWrites, class Body>
    void visit(const Body& body) const;
    /// What the reader makes of the block's gradient, in memory of the thread until its next
    /// block; empty without one.
    std::span<const float> made_gradient() const;
  };

  /// @throws InvalidArgument as make_optimizer() does for parameters and groups.
  ParameterSet(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
               const std::vector<ParamGroup>& groups);
  /// As Optimizer's.
  void bind(std::span<const Binding> places);
  /// As Optimizer's, but for what state there is.
  void set_groups(const OptimizerSpec& spec, const std::vector<ParamGroup>& groups);
  void count_step();
  ParameterSet(const ParameterSet&) = delete;  // blocks point into it
  ParameterSet& operator=(const ParameterSet&) = delete;

  /// Where all parameters are, and their state.
  Device device() const { return device_; }
  const std::vector<Item>& items() const { return items_; }
  std::vector<Item>& items() { return items_; }
  const std::vector<Block>& blocks() const { return blocks_; }

  /// Elements of what keeps one number of state per element of the parameters.
  struct StateNumel {
    size_t floats = 0, codes = 0, scales = 0;
    size_t whole = 0;  // of what is floats in every parameter
  };
  StateNumel state_numel() const { return state_numel_; }
  /// Shows what is kept of the parameter's master.
  void visit_master(const Item& item, StateVisitor& visitor) const;
  size_t master_bytes() const { return masters_.size_bytes() + remainders_.size_bytes(); }

  /// Calls body(block) once for each block of parameters that are present, on the pool's threads.
  template <class Body>
  void for_each_block(ThreadPool& pool, const Body& body) const {
    const auto call = [&](size_t i) { call_for(blocks_[i], body); };
    pool.parallel_for(blocks_.size(), std::ref(call));  // a reference: nothing is allocated
  }

  /// As for_each_block, last block first: a second pass finds the end of the first in the cache.
  template <class Body>
  void for_each_block_backwards(ThreadPool& pool, const Body& body) const {
    const auto call = [&](size_t i) { call_for(blocks_[blocks_.size() - 1 - i], body); };
    pool.parallel_for(blocks_.size(), std::ref(call));
  }

  /// @throws NonFiniteGradient naming the first parameter and element that is NaN or infinite.
  void check_gradients(ThreadPool& pool);
  bool all_gradients_finite(ThreadPool& pool);
  /// Before rewrite_gradient(). @throws InvalidArgument where a gradient comes from a reader.
  void check_gradients_in_memory(std::string_view call) const;

  /// Makes the masters those of the values as they are; with `fresh` of parameters without a step.
  void take_values(bool fresh, ThreadPool& pool) const;

 private:
  template <class Body>
  static void call_for(const Block& block, const Body& body) {
    if (block.item->present()) {
      body(block);
    }
  }
  void add(const Parameter& parameter, bool has_codes);
  void make_masters(MasterWeights kind);

  Device device_;
  std::vector<Item> items_;
  std::vector<Block> blocks_;
  std::vector<uint8_t> finite_;  // per block
  DisjointMemory disjoint_;
  StateNumel state_numel_;
  Buffer masters_, remainders_;
};

bool all_finite(const ParameterSet::Block& block);
/// Of the block's gradient; not finite exactly where an element is not.
double gradient_sum_of_squares(const ParameterSet::Block& block);

/// Elements [begin, begin + count) as floats: where they are, or written to `scratch`.
std::span<float> load_value(const ParameterSet::Item& item, size_t begin, size_t count,
                            std::span<float, kStepPiece> scratch);
std::span<const float> load_gradient(const ParameterSet::Item& item, size_t begin, size_t count,
                                     std::span<float, kStepPiece> scratch);
/// Rounds what load_value() gave, and was changed, to the parameter's own type.
void store_value(const ParameterSet::Item& item, size_t begin, std::span<const float> value);
/// The gradient's elements [begin, begin + value.size()), rounded to its type.
void store_gradient(const ParameterSet::Item& item, size_t begin, std::span<const float> value);

template <bool kWrites, class Body>
void ParameterSet::Block::visit(const Body& body) const {
  const bool floats = item->value.dtype == DType::kFloat32;
  const std::span<const float> made = made_gradient();
  const bool gradients_are = !made.empty() || item->gradient.dtype == DType::kFloat32;
  const bool whole = floats && gradients_are && !item->has_codes;
  const size_t step = whole ? count : kStepPiece;
  alignas(64) std::array<float, kStepPiece> values, gradients;
  for (size_t at = 0; at < count; at += step) {
    const size_t begin = offset + at, size = std::min(step, count - at);
    const Piece piece{
        begin, load_value(*item, begin, size, values),
        made.empty() ? load_gradient(*item, begin, size, gradients) : made.subspan(at, size)};
    body(piece);
    if (kWrites && !floats) {
      store_value(*item, begin, piece.value);
    }
  }
}

template <class Body>
void ParameterSet::Block::rewrite_gradient(const Body& body) const {
  alignas(64) std::array<float, kStepPiece> scratch;
  visit<false>([&](const Piece& piece) {
    const size_t size = piece.gradient.size();
    if (item->gradient.dtype == DType::kFloat32) {
      // A Parameter's gradient is given to be written.
      body(piece, std::span(const_cast<float*>(piece.gradient.data()), size));
    } else {
      body(piece, std::span(scratch).first(size));
      store_gradient(*item, piece.begin, std::span(scratch).first(size));
    }
  });
}

template <class Body>
void ParameterSet::Block::read_gradient(const Body& body) const {
  if (const std::span<const float> made = made_gradient(); !made.empty()) {
    body(made, offset);
    return;
  }
  const size_t step = item->gradient.dtype == DType::kFloat32 ? count : kStepPiece;
  alignas(64) std::array<float, kStepPiece> gradients;
  for (size_t at = 0; at < count; at += step) {
    body(load_gradient(*item, offset + at, std::min(step, count - at), gradients), offset + at);
  }
}

/// @throws InvalidArgument where gradients are to be scaled.
void check_scale_of_moves(std::string_view optimizer, const StepOptions& options);
/// @throws InvalidArgument unless the learning rate is one that float can hold and >= 0, and the
/// gradients' scale in (0, 1].
void check_options(std::string_view optimizer, const StepOptions& options);

/// The sum of an item's blocks' sums, in block order.
inline double sum_of_blocks(const ParameterSet::Item& item, const std::vector<double>& sums) {
  double sum = 0.0;
  for (size_t i = 0; i < item.block_count; ++i) {
    sum += sums[item.first_block + i];
  }
  return sum;
}

}  // namespace gradwire
