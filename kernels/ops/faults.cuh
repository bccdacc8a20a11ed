#pragma once
// Faults of received payloads, kept in the step's words until the host asks.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire::cuda {

/// Keeps the first fault and sets kStatusMalformed. One thread is enough.
__device__ __forceinline__ void report_fault(StepWords* step, size_t part, FaultReason reason) {
  atomicCAS(&step->fault, 0u, static_cast<uint32_t>(part) << 8 | static_cast<uint32_t>(reason));
  atomicOr(&step->status, kStatusMalformed);
}

/// What is written has a magnitude of these bits. A part whose flag was seen before is to blame for
/// itself.
__device__ __forceinline__ void report_overflow(const SumFaults& to, uint32_t magnitude) {
  if (magnitude > 0x7F7FFFFFu && to.flags != nullptr &&
      (atomicOr(to.flags, kStatusNonFinite) & kStatusNonFinite) == 0) {
    atomicCAS(&to.step->overflowed, 0u, to.bucket + 1);
  }
}

/// The largest magnitude of 8 elements from `first` on, as bits.
__device__ __forceinline__ uint32_t largest_of(const float (&x)[kPerThread], size_t first,
                                               size_t numel) {
  uint32_t largest = 0;
  // One register where sizes would take two for each element.
  const int count = first + kPerThread <= numel ? kPerThread
                    : first < numel             ? static_cast<int>(numel - first)
                                                : 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;
    largest = bits > largest && i < count ? bits : largest;
  }
  return largest;
}

/// Whether the part holds `chunk` (of the group).
__device__ __forceinline__ bool holds_chunk(const DevicePart& part, size_t chunk) {
  return chunk >= part.first_chunk && chunk - part.first_chunk < part.chunks;
}

}  // namespace gradwire::cuda
