#pragma once
// Gradients of which each rank keeps its shard of the mean, as FSDP and ZeRO do: a reduce-scatter
// of compressed slices with error feedback, beside backward.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/reducer.h"

namespace gradwire {

/// Parameters whose gradients are reduced together. A rank's gradient of them is world_size slices,
/// one behind another; the mean of slice d is rank d's shard.
struct ShardedGroup {
  std::string name;                    ///< for messages
  size_t numel = 0;                    ///< of a slice
  DType dtype = DType::kFloat32;       ///< of gradients and shards
  std::vector<Segment> segments = {};  ///< tile a slice
  uint64_t seed = 0;                   ///< slice d draws with seed + d
  /// False: the caller reduces it by other means, and says by reduced() what it saw.
  bool compressed = true;
};

/// The same on all ranks but for `threads`.
struct ShardedOptions {
  CompressorSpec spec;  ///< of every slice; not powersgd and not ef21
  OnNonFinite on_nonfinite = OnNonFinite::kError;
  int threads = 1;  ///< of the compression loops
};

/// What a rank keeps of a slice between steps; empty is what the spec of that step does not keep.
struct SliceState {
  std::vector<float> residual = {}, velocity = {};
  std::vector<uint64_t> learned = {};
};

/// A rank compresses each slice by itself and sends slice d to rank d alone, which adds up those of
/// all ranks in rank order, in float32. What a slice leaves out stays with its sender, for the next
/// step. A rank sends the compressed slices of the others, 64 bytes more to each of them for every
/// group, and 64 at the end of the step, beside a few words where something was not finite.
///
/// A step begins with its first reduce() and ends with commit(), which makes the residuals of its
/// groups final on all ranks, or on none. A thread of the reducer's compresses and exchanges one
/// group after another. One caller at a time. start= and warmup= count a group's committed steps.
class ShardedReducer {
 public:
  /// The transport outlives the reducer, which alone uses it during a step.
  /// @throws InvalidArgument for a transport of GPU memory, and a spec whose payloads no rank
  /// decodes alone.
  ShardedReducer(std::vector<ShardedGroup> groups, Transport& transport, ShardedOptions options);
  /// In the middle of a step it aborts the transport: others wait for what this rank would send.
  ~ShardedReducer();
  ShardedReducer(const ShardedReducer&) = delete;
  ShardedReducer& operator=(const ShardedReducer&) = delete;

  const ShardedGroup& group(size_t g) const;
  /// Groups of the step in progress.
  size_t pending() const;

  /// Enqueues shard = scale * sum over ranks of their slice for this one. Once per group and step,
  /// in the same order on all ranks. The shard stays where it is until wait(), the gradient as long
  /// as it is used. The shard becomes NaN where a rank's gradient or the sum is not finite.
  void reduce(size_t g, ConstGradient gradient, Gradient shard, float scale);
  /// Whether the group's gradient is still to be compressed. Stays true where that has failed.
  bool uses_gradient(size_t g) const;
  /// In the place of reduce(), for a group that is not compressed, behind the call that reduced it:
  /// whether this rank's gradient was finite and, where it was, whether its shard overflowed.
  void reduced(size_t g, bool finite, bool overflows);
  /// Blocks until the shards so far are written. @throws TransportError: the transport has failed,
  /// and with it the reducer.
  void wait();
  /// wait(), and the end of the step. Collective. Where some rank's gradient was not finite, or a
  /// sum, nothing is committed on any: kError throws NonFiniteGradient naming the group, and the
  /// rank if one is to blame; kSkip returns kSkipped.
  StepOutcome commit();
  /// Drops the step in progress, on all ranks: residuals are those before. Waits.
  void abandon();

  // Between steps.

  /// Committed steps of a group.
  uint32_t step(size_t g) const;
  /// Both by the rank that a slice goes to: the residuals that the last step left, and what the
  /// next one begins with. They differ where that has another spec (start=, warmup=).
  std::vector<std::vector<float>> residuals(size_t g);
  std::vector<SliceState> state(size_t g);
  /// Continues behind so many committed steps.
  /// @throws InvalidArgument for another number of slices or elements, values that are not finite,
  /// or during a step; nothing has changed then.
  void set_state(size_t g, uint32_t step, std::span<const SliceState> state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire
