#pragma once
// Sums with one order, whatever the grid.

#include <limits>

#include "gradwire/kernels/ops/block.cuh"

namespace gradwire::cuda {

template <class T, class At>
__device__ __forceinline__ T lane_sum_of_squares(const At& at, unsigned numel) {
  T sum = 0;
#pragma unroll(sizeof(T) == sizeof(float) ? 4 : 1)  // the other one is rarely run
  for (unsigned i = lane_index(); i < numel; i += kWarp) {
    const T term = static_cast<T>(at(i));
    sum += term * term;
  }
  return sum;
}

/// One warp: the sum of at(i)^2, floats, for i < numel; right in lane 0. The 32 lanes add in
/// float32, or in double where that overflows, is NaN or below 2^-100: then at() is called again.
template <class At>
__device__ __forceinline__ double chunk_sum_of_squares(const At& at, unsigned numel) {
  // Below it squares may have been subnormal and lost bits.
  constexpr float kSmallestSum = 0x1p-100f;
  const float fast = warp_sum(lane_sum_of_squares<float>(at, numel));
  const float sum = __shfl_sync(kAllLanes, fast, 0);
  if (sum >= kSmallestSum && sum <= std::numeric_limits<float>::max()) {
    return static_cast<double>(sum);
  }
  return warp_sum(lane_sum_of_squares<double>(at, numel));
}

/// One warp: sums[0] + sums[1] + ..., in order, in double; for all lanes. 32 loads at a time, added
/// by every lane.
__device__ inline double warp_sum_in_order(const double* sums, size_t count) {
  double sum = 0.0;
  for (size_t begin = 0; begin < count; begin += kWarp) {
    const size_t mine = begin + lane_index();
    const double term = mine < count ? sums[mine] : 0.0;
    const unsigned terms = count - begin < kWarp ? static_cast<unsigned>(count - begin) : kWarp;
    for (unsigned i = 0; i < terms; ++i) {
      sum += __shfl_sync(kAllLanes, term, static_cast<int>(i));
    }
  }
  return sum;
}

}  // namespace gradwire::cuda
