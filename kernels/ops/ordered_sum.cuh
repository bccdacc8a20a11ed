#pragma once
// Sums with one order, whatever the grid.

#include "gradwire/kernels/ops/block.cuh"

namespace gradwire::cuda {

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
