#pragma once
// The 32 lanes of a chunk's sum are the lanes of a warp. A thread block takes the chunks of one
// block of elements, and one thread adds their sums in order.

#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/kernels/ops/ordered_sum.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kNormThreads = 256;
inline constexpr size_t kMostNormChunks = 256;  // of a block of elements

__global__ void __launch_bounds__(kNormThreads)
    sums_of_squares_kernel(const float* x, size_t numel, size_t block, double* sums) {
  GRADWIRE_SHARED(of_chunk, double[kMostNormChunks]);
  const size_t begin = blockIdx.x * block;
  const size_t mine = numel - begin < block ? numel - begin : block;
  const auto chunks = static_cast<unsigned>((mine + kNormChunk - 1) / kNormChunk);
  for (unsigned chunk = warp_index(); chunk < chunks; chunk += kNormThreads / kWarp) {
    const size_t at = chunk * kNormChunk;
    const auto count = static_cast<unsigned>(mine - at < kNormChunk ? mine - at : kNormChunk);
    const float* const mine_at = x + begin + at;
    const double sum = chunk_sum_of_squares([&](unsigned i) { return mine_at[i]; }, count);
    if (lane_index() == 0) {
      of_chunk[chunk] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0.0;
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      sum += of_chunk[chunk];
    }
    sums[blockIdx.x] = sum;
  }
}

/// One warp.
__global__ void __launch_bounds__(kWarp)
    add_in_order_kernel(const double* sums, size_t count, double* total) {
  const double sum = warp_sum_in_order(sums, count);
  if (lane_index() == 0) {
    *total = sum;
  }
}

__global__ void __launch_bounds__(kNormThreads)
    add_parts_kernel(const double* parts, size_t count, double* sums, size_t numel) {
  const size_t i = size_t{blockIdx.x} * kNormThreads + threadIdx.x;
  if (i < numel) {
    double sum = 0.0;
    for (size_t part = 0; part < count; ++part) {
      sum += parts[part * numel + i];
    }
    sums[i] = sum;
  }
}

}  // namespace gradwire::cuda
