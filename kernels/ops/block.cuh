#pragma once
// Warp and block primitives. One text for the GPU and for the emulator, where CUB does not compile:
// what the tests see is what the device runs.

#include "gradwire/kernels/ops/launch.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ unsigned lane_index() { return threadIdx.x % kWarp; }
__device__ __forceinline__ unsigned warp_index() { return threadIdx.x / kWarp; }

/// Pairwise: lane l adds lane l + 16, then l + 8, ... Lane 0 has the sum; the order never varies.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (unsigned width = kWarp / 2; width > 0; width /= 2) {
    value += __shfl_down_sync(kAllLanes, value, width);
  }
  return value;
}

/// The sum of the values of the lanes before this one.
__device__ __forceinline__ uint32_t warp_exclusive_sum(uint32_t value, uint32_t& total) {
  uint32_t sum = value;
#pragma unroll
  for (unsigned delta = 1; delta < kWarp; delta *= 2) {
    const uint32_t before = __shfl_up_sync(kAllLanes, sum, delta);
    sum += lane_index() >= delta ? before : 0;
  }
  total = __shfl_sync(kAllLanes, sum, kWarp - 1);
  return sum - value;
}

/// The sum of the values of the threads before this one, and of all. For whole warps and at most
/// 1024 threads. Ends behind a barrier: it may be called again at once.
__device__ __forceinline__ uint32_t block_exclusive_sum(uint32_t value, uint32_t& total) {
  GRADWIRE_SHARED(sums, uint32_t[kWarp]);
  uint32_t of_warp;
  const uint32_t before = warp_exclusive_sum(value, of_warp);
  if (lane_index() == 0) {
    sums[warp_index()] = of_warp;
  }
  __syncthreads();
  const uint32_t mine = lane_index() < blockDim.x / kWarp ? sums[lane_index()] : 0;
  const uint32_t warps_before = warp_exclusive_sum(mine, total);
  const uint32_t offset = __shfl_sync(kAllLanes, warps_before, static_cast<int>(warp_index()));
  __syncthreads();
  return offset + before;
}

#if !defined(GRADWIRE_SIMT)  // the emulator brings its own
/// atomicInc() that releases what happened before it and acquires what others released: one fence,
/// where __threadfence() before and behind is two, each with the L1 cache emptied.
__device__ __forceinline__ uint32_t atomic_inc_acq_rel(uint32_t* counter, uint32_t limit) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(limit)
               : "memory");
  return before;
}
#endif

/// Whether this block is the last of the grid to get here; the writes of all others are visible to
/// it then. `arrived`, in global memory, is 0 before the launch and after it.
__device__ __forceinline__ bool is_last_block(uint32_t* arrived) {
  GRADWIRE_SHARED(last, uint32_t);
  __syncthreads();
  // One thread makes order for the whole block: the barriers put all its writes before the atomic
  // and all its reads behind it.
  if (threadIdx.x == 0) {
    last = atomic_inc_acq_rel(arrived, gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
  }
  __syncthreads();
  return last != 0;
}

}  // namespace gradwire::cuda
