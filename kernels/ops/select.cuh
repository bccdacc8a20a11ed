#pragma once
// What the kernels of a selection share. A thread block takes a chunk of 4096 elements; a thread
// takes 8 elements at a time, which are one byte of the mask. Blocks write where no other does, add
// integers, or append to a list that is ranked afterwards: the result does not depend on their order.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/select_cuda.h"

namespace gradwire::cuda {

inline constexpr unsigned kSelectThreads = 256;
inline constexpr unsigned kRounds = kMaskBytes / kSelectThreads;
inline constexpr unsigned kBins = 2048;
inline constexpr uint32_t kSmallestNonZero = 1;
inline constexpr uint32_t kLargestMagnitude = 0x7F7FFFFF;  // of finite elements

/// Magnitudes are bits of |x|, which order like the values.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

/// The memory that a selection reads and writes.
struct SelectMemory {
  const std::byte* g;  // null: x holds the elements already
  ParityPointer e;
  ParityPointer x;
  size_t numel;
  uint32_t k;  // of each chunk, where they choose apart
  std::byte* mask;
  uint32_t* counts;
  EntriesBefore* before;
  uint32_t* flags;
};

/// The same with the parity read, once for the kernel.
__device__ __forceinline__ SelectMemory settled(SelectMemory m) {
  m.e = m.e.settled();
  m.x = m.x.settled();
  return m;
}

/// x = g + e of the 8 elements of byte `byte` of this block's chunk, also written where x is not g
/// itself. Zeros behind the end.
template <class T>
__device__ __forceinline__ void make_sum(const SelectMemory& m, unsigned byte,
                                         float (&x)[kPerThread]) {
  const size_t first = blockIdx.x * kSelectChunk + byte * kPerThread;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = 0.0f;
  }
  if (first >= m.numel) {
    return;
  }
  const float* const e = m.e.get();
  float* const to = m.x.get();
  const std::byte* const from = m.g != nullptr ? m.g : as_bytes(to);
  load_sum<T>(from, e, first, m.numel, x);
  if (e != nullptr || as_bytes(to) != from) {
    store_floats<float>(as_bytes(to), first, m.numel, x);
  }
}

/// Writes this block's chunk of the mask and its count. @returns the count, in every thread.
__device__ inline uint32_t write_marks(const SelectMemory& m, const uint32_t (&flags)[kRounds]) {
  uint32_t mine = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned byte = round * kSelectThreads + threadIdx.x;
    m.mask[blockIdx.x * kMaskBytes + byte] = static_cast<std::byte>(flags[round]);
    mine += static_cast<uint32_t>(__popc(flags[round]));
  }
  uint32_t total;
  block_exclusive_sum(mine, total);
  if (threadIdx.x == 0) {
    m.counts[blockIdx.x] = total;
  }
  return total;
}

/// Calls use(magnitude, bit) for the marked elements of one byte of the mask, in order.
template <class Use>
__device__ __forceinline__ void for_each_marked(const SelectMemory& m, size_t chunk, unsigned byte,
                                                const Use& use) {
  auto flags = static_cast<uint32_t>(m.mask[chunk * kMaskBytes + byte]);
  const float* const x = m.x.get() + chunk * kSelectChunk + byte * kPerThread;
  while (flags != 0) {
    const int bit = __ffs(static_cast<int>(flags)) - 1;
    flags &= flags - 1;
    use(magnitude(x[bit]), bit);
  }
}

/// One block: what lies before each chunk, from all counts.
__device__ inline void write_before(const SelectMemory& m, size_t chunks) {
  EntriesBefore all{};
  for (size_t begin = 0; begin < chunks; begin += size_t{blockDim.x} * kPerThread) {
    const size_t first = begin + threadIdx.x * kPerThread;
    uint32_t count[kPerThread];
    EntriesBefore mine{};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      count[i] = first + i < chunks ? m.counts[first + i] : 0;
      mine = entries_behind(mine, count[i]);
    }
    EntriesBefore total;
    EntriesBefore at{all.entries + block_exclusive_sum(mine.entries, total.entries),
                     all.odd_counts + block_exclusive_sum(mine.odd_counts, total.odd_counts),
                     all.two_bits + block_exclusive_sum(mine.two_bits, total.two_bits),
                     all.one_bit + block_exclusive_sum(mine.one_bit, total.one_bit)};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (first + i < chunks) {
        m.before[first + i] = at;
      }
      at = entries_behind(at, count[i]);
    }
    all = {all.entries + total.entries, all.odd_counts + total.odd_counts,
           all.two_bits + total.two_bits, all.one_bit + total.one_bit};
  }
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

}  // namespace gradwire::cuda
