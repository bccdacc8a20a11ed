#pragma once
// The random number of a single element, for those that are rounded far apart.

#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/launch.cuh"
#include "gradwire/kernels/ops/quantize_cuda.h"

namespace gradwire::cuda {

/// The first of segments [low, high] of the group that ends behind `at`.
__device__ __forceinline__ uint32_t segment_at(const RoundingSource& source, uint32_t low,
                                               uint32_t high, uint64_t at) {
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (source.segments[middle].end > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Of what was drawn for eight elements, those of one.
__device__ __forceinline__ uint32_t half_of(const PhiloxCounter& drawn, uint64_t element) {
  const uint32_t upper = (element & 2) != 0 ? drawn.word[3] : drawn.word[2];
  const uint32_t lower = (element & 2) != 0 ? drawn.word[1] : drawn.word[0];
  const uint32_t word = (element & 4) != 0 ? upper : lower;
  return (element & 1) != 0 ? word >> 16 : word & 0xFFFFu;
}

/// The 16 random bits of element `at` of the group.
__device__ inline uint32_t draw_half(const RoundingSource& source, uint64_t at) {
  const uint32_t low = segment_at(source, 0, static_cast<uint32_t>(source.segments.size() - 1), at);
  const RandomSegment segment = source.segments[low];
  const uint64_t begin = low == 0 ? 0 : source.segments[low - 1].end;
  const uint64_t element = segment.first + (at - begin);
  const PhiloxCounter drawn = philox(
      rounding_counter(element, *source.step, segment.parameter, source.rank_stage), source.seed);
  return half_of(drawn, element);
}

}  // namespace gradwire::cuda
