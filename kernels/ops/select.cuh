#pragma once
// The kernels of select_largest(), in the order of their launches. A thread block takes a chunk of
// 4096 elements; a thread takes 8 elements at a time, which are one byte of the mask. No block
// writes where another does but for integer sums, so the result does not depend on their order.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/select_cuda.h"

namespace gradwire::cuda {

inline constexpr unsigned kSelectThreads = 256;
inline constexpr unsigned kScanThreads = 1024;
inline constexpr unsigned kRounds = kMaskBytes / kSelectThreads;
inline constexpr unsigned kBins = 2048;
inline constexpr uint32_t kSmallestNonZero = 1;
inline constexpr uint32_t kLargestFinite = 0x7F7FFFFF;

/// Magnitudes are bits of |x|, which order like the values.
struct SelectState {
  uint32_t threshold;      // guessed: what reaches it is marked
  uint32_t marked;         // elements that do
  uint32_t marked_anew;    // elements that are not zero, where the guess was too high
  uint32_t largest;        // magnitude
  uint32_t prefix;         // upper bits of the k-th largest magnitude, all of them in the end
  uint32_t larger;         // elements known to be above it
  uint32_t arrived;        // blocks of the kernel that runs
  uint32_t bins[kBins];
};

/// What all kernels of a selection are given.
struct SelectArguments {
  const std::byte* g;
  ParityPointer e;
  ParityPointer x;
  size_t numel;
  uint32_t k;
  std::byte* mask;
  uint32_t* counts;
  uint32_t* ties;  // of each chunk, then of those before it
  SelectState* state;
  uint32_t* flags;
};

/// Lines of 8 elements that the guess is made from; none: everything but zeros is marked.
struct Sample {
  size_t lines;
  size_t stride;
  uint32_t rank;  // of the guess among the sampled magnitudes
};

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

__device__ __forceinline__ bool guess_was_too_high(const SelectState& s, uint32_t k) {
  return s.marked < k && s.threshold > kSmallestNonZero;
}
__device__ __forceinline__ bool must_refine(const SelectState& s, uint32_t k) {
  return s.largest <= kLargestFinite && (guess_was_too_high(s, k) ? s.marked_anew : s.marked) > k;
}

/// Block-wide: the highest bin such that it and those above hold at least `rank`, and how many are
/// above it. Each thread takes `kBins / blockDim.x` bins from the top. @returns in one thread only.
__device__ inline bool find_bin(const uint32_t* bins, uint32_t rank, uint32_t& bin,
                                uint32_t& above) {
  const unsigned each = kBins / blockDim.x;
  const unsigned top = kBins - 1 - threadIdx.x * each;
  uint32_t mine = 0;
  for (unsigned i = 0; i < each; ++i) {
    mine += bins[top - i];
  }
  uint32_t total;
  above = block_exclusive_sum(mine, total);
  if (above >= rank || above + mine < rank) {
    return false;
  }
  for (bin = top; above + bins[bin] < rank; --bin) {
    above += bins[bin];
  }
  return true;
}

/// One block: samples, guesses, and makes the state ready.
template <class T>
__global__ void __launch_bounds__(kScanThreads) guess_kernel(SelectArguments a, Sample sample) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
    bins[i] = 0;
    a.state->bins[i] = 0;
  }
  if (threadIdx.x == 0) {
    a.state->threshold = kSmallestNonZero;
    a.state->marked = a.state->marked_anew = a.state->largest = 0;
    a.state->prefix = a.state->larger = a.state->arrived = 0;
  }
  __syncthreads();
  for (size_t line = threadIdx.x; line < sample.lines; line += blockDim.x) {
    // A hash of the line's number spreads the lines, so that no period of the data is met.
    const uint64_t hash = static_cast<uint32_t>(line) * 2654435761u;
    const size_t jitter = static_cast<size_t>((hash * (sample.stride - kPerThread)) >> 32);
    float x[kPerThread];
    load_sum<T>(a.g, a.e.get(), (line * sample.stride + jitter) / kPerThread * kPerThread, a.numel, x);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      atomicAdd(&bins[magnitude(x[i]) >> 20], 1u);
    }
  }
  __syncthreads();
  uint32_t bin;
  uint32_t above;
  if (sample.lines > 0 && find_bin(bins, sample.rank, bin, above) && bin > 0) {
    a.state->threshold = bin << 20;
  }
}

/// Writes the chunk's mask and count. @returns the count, in every thread.
__device__ inline void write_marks(const SelectArguments& a, const uint32_t (&flags)[kRounds],
                                   uint32_t* marked) {
  uint32_t mine = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned byte = round * kSelectThreads + threadIdx.x;
    a.mask[blockIdx.x * kMaskBytes + byte] = static_cast<std::byte>(flags[round]);
    mine += static_cast<uint32_t>(__popc(flags[round]));
  }
  uint32_t total;
  block_exclusive_sum(mine, total);
  if (threadIdx.x == 0) {
    a.counts[blockIdx.x] = total;
    if (marked != nullptr && total > 0) {
      atomicAdd(marked, total);
    }
  }
}

/// x = g + e, and marks what reaches the guess. Bytes per element: g and e read, x written, 1/8.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) mark_kernel(SelectArguments a) {
  const uint32_t threshold = a.state->threshold;
  const float* const e = a.e.get();
  float* const to = a.x.get();
  const bool in_place = e == nullptr && as_bytes(to) == a.g;
  uint32_t flags[kRounds];
  uint32_t largest = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned byte = round * kSelectThreads + threadIdx.x;
    const size_t first = blockIdx.x * kSelectChunk + byte * kPerThread;
    flags[round] = 0;
    if (first < a.numel) {
      float x[kPerThread];
      load_sum<T>(a.g, e, first, a.numel, x);
      if (!in_place) {
        store_floats<float>(as_bytes(to), first, a.numel, x);
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const uint32_t bits = first + i < a.numel ? magnitude(x[i]) : 0;
        flags[round] |= bits >= threshold ? 1u << i : 0u;
        largest = bits > largest ? bits : largest;
      }
    }
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane_index() == 0 && largest > a.state->largest) {
    atomicMax(&a.state->largest, largest);
  }
  write_marks(a, flags, &a.state->marked);
}

/// Marks everything but zeros, where the guess was too high.
__global__ void __launch_bounds__(kSelectThreads) mark_anew_kernel(SelectArguments a) {
  if (!guess_was_too_high(*a.state, a.k)) {
    return;
  }
  uint32_t flags[kRounds];
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned byte = round * kSelectThreads + threadIdx.x;
    const size_t first = blockIdx.x * kSelectChunk + byte * kPerThread;
    flags[round] = 0;
    if (first < a.numel) {
      float x[kPerThread];
      load_floats<float>(as_bytes(a.x.get()), first, a.numel, x);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        flags[round] |= magnitude(x[i]) >= kSmallestNonZero ? 1u << i : 0u;
      }
    }
  }
  write_marks(a, flags, &a.state->marked_anew);
}

/// Calls use(magnitude, bit) for the marked elements of one byte of the mask, in order.
template <class Use>
__device__ __forceinline__ void for_each_marked(const SelectArguments& a, size_t chunk,
                                                unsigned byte, const Use& use) {
  auto flags = static_cast<uint32_t>(a.mask[chunk * kMaskBytes + byte]);
  const float* const x = a.x.get() + chunk * kSelectChunk + byte * kPerThread;
  while (flags != 0) {
    const int bit = __ffs(static_cast<int>(flags)) - 1;
    flags &= flags - 1;
    use(magnitude(x[bit]), bit);
  }
}

/// Counts the marked by the `width` bits from `shift` on, among those whose higher bits are the
/// prefix; the last block lengthens the prefix by the bin that holds the k-th.
__global__ void __launch_bounds__(kSelectThreads)
    rank_kernel(SelectArguments a, size_t chunks, int shift, int width) {
  if (!must_refine(*a.state, a.k)) {
    return;
  }
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
    bins[i] = 0;
  }
  __syncthreads();
  const uint32_t prefix = a.state->prefix;
  for (size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += blockDim.x) {
      for_each_marked(a, chunk, byte, [&](uint32_t bits, int) {
        if (static_cast<uint64_t>(bits) >> (shift + width) == prefix) {
          atomicAdd(&bins[bits >> shift & ((1u << width) - 1)], 1u);
        }
      });
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
    if (bins[i] != 0) {
      atomicAdd(&a.state->bins[i], bins[i]);
    }
  }
  if (!is_last_block(&a.state->arrived)) {
    return;
  }
  uint32_t bin;
  uint32_t above;
  const bool found = find_bin(a.state->bins, a.k - a.state->larger, bin, above);
  __syncthreads();
  if (found) {
    a.state->prefix = prefix << width | bin;
    a.state->larger += above;
  }
  for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
    a.state->bins[i] = 0;
  }
}

/// ties[chunk] = marked elements equal to the k-th largest.
__global__ void __launch_bounds__(kSelectThreads) count_ties_kernel(SelectArguments a) {
  if (!must_refine(*a.state, a.k)) {
    return;
  }
  uint32_t mine = 0;
  for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += blockDim.x) {
    for_each_marked(a, blockIdx.x, byte,
                    [&](uint32_t bits, int) { mine += bits == a.state->prefix ? 1 : 0; });
  }
  uint32_t total;
  block_exclusive_sum(mine, total);
  if (threadIdx.x == 0) {
    a.ties[blockIdx.x] = total;
  }
}

/// One block: values[i] = the sum of those before i.
__device__ inline void scan_in_place(uint32_t* values, size_t count) {
  uint32_t before = 0;
  for (size_t begin = 0; begin < count; begin += size_t{blockDim.x} * kPerThread) {
    const size_t first = begin + threadIdx.x * kPerThread;
    uint32_t mine[kPerThread];
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      mine[i] = first + i < count ? values[first + i] : 0;
      sum += mine[i];
    }
    uint32_t total;
    uint32_t at = before + block_exclusive_sum(sum, total);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (first + i < count) {
        values[first + i] = at;
      }
      at += mine[i];
    }
    before += total;
  }
}

__global__ void __launch_bounds__(kScanThreads) scan_ties_kernel(SelectArguments a, size_t chunks) {
  if (must_refine(*a.state, a.k)) {
    scan_in_place(a.ties, chunks);
  }
}

/// Clears the marks below the k-th largest, and of those equal to it the last ones; all of them
/// where a value is not finite.
__global__ void __launch_bounds__(kSelectThreads) trim_kernel(SelectArguments a) {
  const SelectState& s = *a.state;
  uint32_t flags[kRounds] = {};
  if (s.largest > kLargestFinite) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      atomicOr(a.flags, kStatusNonFinite);
    }
  } else if (must_refine(s, a.k)) {
    const uint32_t all_ties_kept = a.k - s.larger;
    uint32_t ties_before = a.ties[blockIdx.x];
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      uint32_t equal = 0;
      for_each_marked(a, blockIdx.x, round * kSelectThreads + threadIdx.x,
                      [&](uint32_t bits, int bit) {
                        flags[round] |= bits > s.prefix ? 1u << bit : 0u;
                        equal |= bits == s.prefix ? 1u << bit : 0u;
                      });
      uint32_t in_round;
      uint32_t at = ties_before + block_exclusive_sum(static_cast<uint32_t>(__popc(equal)), in_round);
      for (; equal != 0 && at < all_ties_kept; ++at) {
        flags[round] |= equal & (0u - equal);
        equal &= equal - 1;
      }
      ties_before += in_round;
    }
  } else {
    return;
  }
  write_marks(a, flags, nullptr);
}

}  // namespace gradwire::cuda
