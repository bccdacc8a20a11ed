#pragma once
// The 32 lanes of a chunk's sum are the lanes of a warp. A thread block takes the chunks of one
// block of elements, and one thread adds their sums in order.

#include <limits>

#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/kernels/ops/ordered_sum.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kNormThreads = 256;
inline constexpr size_t kMostNormChunks = 256;  // of a block of elements

template <class T>
__device__ __forceinline__ T lane_sum_of_squares(const float* x, unsigned numel) {
  T sum = 0;
  for (unsigned i = lane_index(); i < numel; i += kWarp) {
    const T term = static_cast<T>(x[i]);
    sum += term * term;
  }
  return sum;
}

__device__ __forceinline__ double chunk_sum_of_squares(const float* x, unsigned numel) {
  // Below it squares may have been subnormal and lost bits.
  constexpr float kSmallestSum = 0x1p-100f;
  const float fast = warp_sum(lane_sum_of_squares<float>(x, numel));
  const float sum = __shfl_sync(kAllLanes, fast, 0);
  if (sum >= kSmallestSum && sum <= std::numeric_limits<float>::max()) {
    return static_cast<double>(sum);
  }
  return warp_sum(lane_sum_of_squares<double>(x, numel));  // right in lane 0
}

__global__ void __launch_bounds__(kNormThreads)
    sums_of_squares_kernel(const float* x, size_t numel, size_t block, double* sums) {
  GRADWIRE_SHARED(of_chunk, double[kMostNormChunks]);
  const size_t begin = blockIdx.x * block;
  const size_t mine = numel - begin < block ? numel - begin : block;
  const auto chunks = static_cast<unsigned>((mine + kNormChunk - 1) / kNormChunk);
  for (unsigned chunk = warp_index(); chunk < chunks; chunk += kNormThreads / kWarp) {
    const size_t at = chunk * kNormChunk;
    const auto count = static_cast<unsigned>(mine - at < kNormChunk ? mine - at : kNormChunk);
    const double sum = chunk_sum_of_squares(x + begin + at, count);
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

}  // namespace gradwire::cuda
