#pragma once
// Which random numbers stochastic rounding takes for which element of a group: they follow the
// element's parameter, whatever group or slice it lies in.

#include <span>
#include <vector>

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/ops/quantize.h"

namespace gradwire {

/// What tells the encodings of one element apart (kernels/core/philox.h).
struct Draw {
  uint32_t step;
  uint32_t rank_stage;
};

/// Of what a rank compresses.
constexpr uint32_t compress_stage(int rank) { return static_cast<uint32_t>(rank) * 4; }
/// Of what a rank merges; of a meeting (MergeInput::meeting) the same on all ranks. 2 is randomk's.
constexpr uint32_t merge_stage(int rank, uint32_t meeting) {
  return meeting == 0 ? static_cast<uint32_t>(rank) * 4 + 1 : meeting * 4 + 3;
}

class RoundingNumbers {
 public:
  explicit RoundingNumbers(const CompressorShape& shape);

  /// Those of `region` from its first element on, to its end or to that of the segment.
  struct Run {
    cpu::RandomRun numbers;
    size_t count;
  };
  Run run(Region region, Draw draw) const;
  /// out[i] = the number of element region.begin + i.
  void fill(Region region, Draw draw, std::span<uint16_t> out) const;
  /// out[i] = the number of element region.begin + indices[i].
  void fill_chosen(Region region, std::span<const uint16_t> indices, Draw draw,
                   std::span<uint16_t> out) const;

 private:
  const uint64_t seed_;
  const std::vector<Segment> segments_;
  std::vector<size_t> ends_;  // of each segment, in the group
};

}  // namespace gradwire
