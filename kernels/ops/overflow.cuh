#pragma once
// A look at what a merge has put back, behind the kernel that did: those have no register left for it.

#include "gradwire/kernels/ops/overflow_cuda.h"
#include "gradwire/kernels/ops/overflow_flag.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kOverflowThreads = 256;

/// Bytes per element: x read.
__global__ void __launch_bounds__(kOverflowThreads)
    flag_overflow_kernel(ParityPointer x, size_t numel, Seal seal) {
  const size_t first = (size_t{blockIdx.x} * kOverflowThreads + threadIdx.x) * kPerThread;
  float mine[kPerThread] = {};
  if (first < numel) {
    load_floats<float>(as_bytes(x.get()), first, numel, mine);
  }
  flag_overflow_of(mine, seal);
}

}  // namespace gradwire::cuda
