#pragma once
// What the kernels that cut payloads share.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kSliceThreads = 256;
inline constexpr size_t kSliceBytes = size_t{kSliceThreads} * sizeof(uint4);  // of one block

/// Whether there is a part to slice; the header, or 32 zero bytes that every reader refuses, is
/// written by the first thread of the grid.
__device__ __forceinline__ bool begin_slice(const DevicePart& part, std::byte* out,
                                            PayloadHeader header) {
  const bool there = part.body != nullptr;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (there) {
      header.variant = part.variant;
      write_header(out, header, part.flags);
    } else {
      write_refused_header(out);
    }
  }
  return there;
}

/// This block's share of copying `bytes` bytes, 16 at a time.
__device__ inline void copy_share(const std::byte* from, std::byte* to, uint64_t bytes) {
  const uint64_t begin = blockIdx.x * kSliceBytes + threadIdx.x * sizeof(uint4);
  // Two at a time: four make the kernels that call this thrice spill their registers.
#pragma unroll 2
  for (uint64_t at = begin; at < bytes; at += gridDim.x * kSliceBytes) {
    if (at + sizeof(uint4) <= bytes) {
      store_word(to + at, load_word<uint4>(from + at));
    } else {
      for (uint64_t i = at; i < bytes; ++i) {
        to[i] = from[i];
      }
    }
  }
}

}  // namespace gradwire::cuda
