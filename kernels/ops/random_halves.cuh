#pragma once
// The random numbers of eight elements of a chunk, which a thread rounds together.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/rounding.cuh"

namespace gradwire::cuda {

/// The segments that a chunk's first and last elements lie in.
struct SegmentsOfChunk {
  uint32_t first, last;
};

/// One warp: the segment that element `at` of the group lies in, with 32 probes at a time.
__device__ __forceinline__ uint32_t find_segment(const RoundingSource& source, size_t at) {
  uint32_t begin = 0;
  auto count = static_cast<uint32_t>(source.segments.size());
  while (count > 1) {
    const uint32_t stride = (count + kWarp - 1) / kWarp;
    const uint32_t end = begin + (lane_index() + 1) * stride;  // of the lane's segments
    const bool before = end <= begin + count && source.segments[end - 1].end <= at;
    const auto skipped = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, before ? 1 : 0)));
    begin += skipped * stride;
    count = count - skipped * stride < stride ? count - skipped * stride : stride;
  }
  return begin;
}

/// By all threads; ends behind a barrier. `begin`: in the group.
__device__ __forceinline__ SegmentsOfChunk find_segments(const RoundingSource& source, size_t begin,
                                                         unsigned numel, uint32_t (&room)[2]) {
  if (warp_index() < 2 && numel > 0) {
    const uint32_t found = find_segment(source, warp_index() == 0 ? begin : begin + numel - 1);
    if (lane_index() == 0) {
      room[warp_index()] = found;
    }
  }
  __syncthreads();
  return {room[0], room[1]};
}

/// The 16 random bits of elements [first, first + 8) of the group, which begin in `within`, two in
/// each word.
__device__ inline void draw_random(const RoundingSource& source, const SegmentsOfChunk& within,
                                   size_t first, size_t numel, uint32_t (&words)[kPerThread / 2]) {
  uint32_t low = segment_at(source, within.first, within.last, first);
  const uint32_t step = *source.step;
  const auto draw = [&](uint64_t element, uint32_t parameter) {
    return philox(rounding_counter(element, step, parameter, source.rank_stage), source.seed);
  };
  RandomSegment segment = source.segments[low];
  uint64_t begin = low == 0 ? 0 : source.segments[low - 1].end;
  const uint64_t element = segment.first + (first - begin);
  if (first + kPerThread <= segment.end) {
    const PhiloxCounter drawn = draw(element, segment.parameter);
    uint32_t w[kPerThread] = {drawn.word[0], drawn.word[1], drawn.word[2], drawn.word[3], 0};
    const unsigned skip = element % kPerThread;
    if (skip != 0) {
      const PhiloxCounter next = draw(element + kPerThread, segment.parameter);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[4 + i] = next.word[i];
      }
    }
    // Shifts by `skip` halves without an index that would put the array into memory.
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      w[i] = (skip & 4) != 0 ? w[i + 2] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      w[i] = (skip & 2) != 0 ? w[i + 1] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = (skip & 1) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {  // segments meet here, or the group ends
    uint32_t half = 0;
    if (first + i < numel) {
      while (first + i >= segment.end) {
        begin = segment.end;
        segment = source.segments[++low];
      }
      const uint64_t at = segment.first + (first + i - begin);
      half = half_of(draw(at, segment.parameter), at);
    }
    words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
  }
}

}  // namespace gradwire::cuda
