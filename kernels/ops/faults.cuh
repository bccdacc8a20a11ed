#pragma once
// Faults of received payloads, kept in the step's words until the host asks.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire::cuda {

/// Keeps the first fault and sets kStatusMalformed. One thread is enough.
__device__ __forceinline__ void report_fault(StepWords* step, size_t part, FaultReason reason) {
  atomicCAS(&step->fault, 0u, static_cast<uint32_t>(part) << 8 | static_cast<uint32_t>(reason));
  atomicOr(&step->status, kStatusMalformed);
}

/// Whether the part holds `chunk` (of the group).
__device__ __forceinline__ bool holds_chunk(const DevicePart& part, size_t chunk) {
  return chunk >= part.first_chunk && chunk - part.first_chunk < part.chunks;
}

}  // namespace gradwire::cuda
