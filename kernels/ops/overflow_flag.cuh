#pragma once
// How a kernel that adds to what is kept says that it overflows: what is not finite in a residual
// would never be sent, and the payload is flagged behind its own kernel.

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

/// Of a payload whose header is there already.
inline void check_written_seal(const char* op, const Seal& seal) {
  check_seal(op, seal.call, seal);
  check(seal.out != nullptr, op, ": the seal's out is null, must be a payload in device memory");
}

__device__ __forceinline__ bool any_non_finite(const float (&x)[kPerThread]) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return largest > kLargestFinite;
}

/// Every thread of every block calls this last, with what it has written or zeros: where some of it
/// is NaN or infinity, the last block flags the header at seal.out, unless readers refuse it
/// anyway, and the step. Leaves the call's words zero.
__device__ __forceinline__ void flag_overflow_of(const float (&x)[kPerThread], const Seal& seal) {
  if (any_non_finite(x)) {
    atomicOr(&seal.call->flags, kStatusNonFinite);
  }
  if (is_last_block(&seal.call->arrived) && threadIdx.x == 0 && take_flags(seal) != 0 &&
      (atomicOr(seal.status, 0u) & kStatusMalformed) == 0) {
    std::byte& flags = seal.out[offsetof(PayloadHeader, flags)];
    flags = flags | std::byte{kFlagNonFinite};
  }
}

}  // namespace gradwire::cuda
