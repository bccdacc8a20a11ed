#pragma once
// What compressors are told: the shape of their group, and what they merge and slice.

#include <memory>
#include <span>
#include <vector>

#include "gradwire/kernels/compress/payload.h"

namespace gradwire {

class DeviceState;

/// A run of a group's elements that belongs to one parameter. Segments follow one another.
struct Segment {
  uint32_t parameter = 0;  ///< id, the same on all ranks
  uint64_t offset_in_parameter = 0;
  size_t numel = 0;
  /// Where the run is a whole matrix: its rows, which divide numel, row by row. 0 or 1: it is none.
  size_t rows = 0;
};

/// Elements of a group at most, and so of a parameter.
inline constexpr size_t kMostNumel = size_t{1} << 31;

/// What a compressor must know about its group, the same on all ranks except `rank`.
struct CompressorShape {
  size_t numel = 0;
  DType dtype = DType::kFloat32;  ///< of the gradient
  Device device{};
  std::vector<Segment> segments = {};  ///< tile the group; empty: one parameter with id 0
  uint64_t seed = 0;                   ///< of stochastic rounding and of randomk's choice
  int rank = 0;
  int world_size = 1;  ///< senders whose payloads become one mean: dgc clips by it
  uint32_t bucket = 0;  ///< on a GPU: named when a sum of the group's payloads overflows
  /// On a GPU: what commits together shares one (device_state.h). None: a state of its own.
  std::shared_ptr<DeviceState> state = nullptr;
};

/// How payloads of several ranks become one gradient: their values add up in flight, or they are
/// gathered and merged at the receiver.
enum class Combine : uint8_t { kSum, kGather };

/// What merge() sums: payloads that all cover `region`, in rank order.
struct MergeInput {
  std::span<const ConstPayload> slices;
  Region region;
  float scale = 1.0f;  ///< the output encodes scale * sum: 1 / world_size for a mean
  /// On a GPU: the e that compress() was passed beside e_next, so that the parity chooses between
  /// them. Empty: e_next itself is written.
  ConstResidual e = {};
  /// Of rows with CompressorRow::among_all: at most so many entries, the largest sums, instead of
  /// the region's share. 0: that share. CPU only.
  size_t most_entries = 0;
  /// Where several ranks merge the same payloads and are to write the same bytes: a number above 0
  /// that they share, and no other merge of the step has. It takes the place of the rank in
  /// stochastic rounding. 0: this rank merges alone.
  uint32_t meeting = 0;
};

/// What slice_at_most() copies.
struct SliceInput {
  ConstPayload payload;
  Region region;
  size_t most_entries = 0;  ///< of the slice
};

}  // namespace gradwire
