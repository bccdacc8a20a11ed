#pragma once
// The k largest of every chunk: its elements stay in registers while counting trials close in on a
// threshold that k of them exceed. One launch.

#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "gradwire/kernels/ops/select.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kSelectWarps = kSelectThreads / kWarp;
/// In the call's flags while the kernel runs: parts that were received may have set the other bit.
inline constexpr uint32_t kHereNonFinite = 1u << 31;

/// Sums over the block, one barrier each: two rows of sums take turns.
struct BlockCounter {
  uint32_t (&sums)[2][kSelectWarps];
  unsigned turn = 0;

  __device__ uint32_t add(uint32_t mine) {
    mine = __reduce_add_sync(kAllLanes, mine);
    uint32_t* const row = sums[turn];
    turn ^= 1;
    if (lane_index() == 0) {
      row[warp_index()] = mine;
    }
    __syncthreads();
    uint32_t total = 0;
#pragma unroll
    for (unsigned warp = 0; warp < kSelectWarps; ++warp) {
      total += row[warp];
    }
    return total;
  }
};

/// Elements with magnitudes above `below` are `above` many: k or fewer; where fewer, and `below` is
/// not 0, some of those equal to it make up for the rest.
struct Split {
  uint32_t below;
  uint32_t above;
};

template <unsigned kCount>
__device__ inline Split split_chunk(const uint32_t (&bits)[kCount], uint32_t k, uint32_t largest,
                                    BlockCounter& counter) {
  const auto count_above = [&](uint32_t below) {
    uint32_t mine = 0;
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      mine += bits[i] > below ? 1 : 0;
    }
    return counter.add(mine);
  };
  uint32_t low = 0;
  uint32_t high = largest;
  uint32_t above_low = count_above(0);
  uint32_t above_high = 0;
  if (above_low <= k) {
    return {0, above_low};
  }
  for (bool halve = false; high - low > 1; halve = !halve) {
    // Counts say where to look next; halving now and then keeps that from creeping.
    const uint32_t width = high - low;
    const float share =
        static_cast<float>(above_low - k) / static_cast<float>(above_low - above_high);
    const auto by_counts = static_cast<uint32_t>(static_cast<float>(width) * share);
    const uint32_t step = halve ? width / 2 : by_counts < 1 ? 1 : by_counts;
    const uint32_t middle = low + (step < width ? step : width - 1);
    const uint32_t above = count_above(middle);
    if (above == k) {
      return {middle, above};
    }
    (above > k ? low : high) = middle;
    (above > k ? above_low : above_high) = above;
  }
  return {high, above_high};
}

/// One block: no element is chosen.
__device__ inline void clear_marks(const SelectMemory& m, size_t chunks) {
  for (size_t i = threadIdx.x; i < chunks * kMaskBytes; i += blockDim.x) {
    m.mask[i] = std::byte{0};
  }
  for (size_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
    m.counts[chunk] = 0;
  }
}

inline constexpr unsigned kChunksAtOnce = 4;  // of a multiprocessor: 64 registers a thread

template <class T>
__global__ void __launch_bounds__(kSelectThreads, kChunksAtOnce)
    select_in_chunks_kernel(SelectMemory memory, uint32_t* arrived) {
  const SelectMemory m = settled(memory);
  GRADWIRE_SHARED(sums, uint32_t[2][kSelectWarps]);
  GRADWIRE_SHARED(maxima, uint32_t[kSelectWarps]);
  uint32_t bits[kRounds * kPerThread];
  uint32_t largest = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    float x[kPerThread];
    make_sum<T>(m, round * kSelectThreads + threadIdx.x, x);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t of_x = magnitude(x[i]);
      bits[round * kPerThread + i] = of_x;
      largest = of_x > largest ? of_x : largest;
    }
  }
  maxima[warp_index()] = __reduce_max_sync(kAllLanes, largest);
  __syncthreads();
#pragma unroll
  for (unsigned warp = 0; warp < kSelectWarps; ++warp) {
    largest = maxima[warp] > largest ? maxima[warp] : largest;
  }
  if (threadIdx.x == 0 && largest > kLargestMagnitude) {
    atomicOr(m.flags, kHereNonFinite);
  }
  const size_t left = m.numel - blockIdx.x * kSelectChunk;
  const auto numel = static_cast<uint32_t>(left < kSelectChunk ? left : kSelectChunk);
  const uint32_t k = kept_in_chunk(m.k, numel);
  BlockCounter counter{sums};
  const Split split = split_chunk(bits, k, largest, counter);
  const uint32_t ties_kept = split.below != 0 ? k - split.above : 0;
  uint32_t flags[kRounds];
  uint32_t ties_before = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    flags[round] = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t of_x = bits[round * kPerThread + i];
      flags[round] |= of_x > split.below ? 1u << i : 0u;
      equal |= of_x == split.below ? 1u << i : 0u;
    }
    if (ties_kept != 0) {  // the same for all threads
      uint32_t in_round;
      uint32_t at = ties_before + block_exclusive_sum(static_cast<uint32_t>(__popc(equal)), in_round);
      for (; equal != 0 && at < ties_kept; ++at) {
        flags[round] |= equal & (0u - equal);
        equal &= equal - 1;
      }
      ties_before += in_round;
    }
  }
  write_marks(m, flags);
  if (!is_last_block(arrived)) {
    return;
  }
  if ((*m.flags & kHereNonFinite) != 0) {
    clear_marks(m, gridDim.x);
    __syncthreads();  // counts are cleared, and everyone has read the flags
    if (threadIdx.x == 0) {
      *m.flags = (*m.flags & ~kHereNonFinite) | kStatusNonFinite;
    }
  }
  write_before(m, gridDim.x);
}

}  // namespace gradwire::cuda
