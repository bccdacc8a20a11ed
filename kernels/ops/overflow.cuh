#pragma once
// A look at what a merge has put back, behind the kernel that did: those have no register left for it.

#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/overflow_cuda.h"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kOverflowThreads = 256;

/// Bytes per element: x read. The last block flags the header, unless readers refuse it anyway, and
/// leaves the call's words zero.
__global__ void __launch_bounds__(kOverflowThreads)
    flag_overflow_kernel(ParityPointer x, size_t numel, Seal seal) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  const size_t first = (size_t{blockIdx.x} * kOverflowThreads + threadIdx.x) * kPerThread;
  float mine[kPerThread] = {};
  if (first < numel) {
    load_floats<float>(as_bytes(x.get()), first, numel, mine);
  }
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t bits = __float_as_uint(mine[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  if (largest > kLargestFinite) {
    atomicOr(&seal.call->flags, kStatusNonFinite);
  }
  if (is_last_block(&seal.call->arrived) && threadIdx.x == 0 && take_flags(seal) != 0 &&
      (atomicOr(seal.status, 0u) & kStatusMalformed) == 0) {
    std::byte& flags = seal.out[offsetof(PayloadHeader, flags)];
    flags = flags | std::byte{kFlagNonFinite};
  }
}

}  // namespace gradwire::cuda
