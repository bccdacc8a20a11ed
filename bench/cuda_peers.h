#pragma once
// What one writes with CUB and Thrust instead of gradwire's kernels, on the same memory.

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <span>

#include "gradwire/kernels/core/memory.h"

namespace gradwire::bench {

struct PeerMemory {
  std::span<const float> g;
  std::span<const float> e;
  std::span<float> e_next;
};

/// Scratch memory of the chains for `numel` elements; made once, outside of what is timed.
struct PeerScratch {
  explicit PeerScratch(size_t numel);
  Buffer keys, sorted, indices, values, count, codes, scales, temporary;
};

/// acc = g + e; DeviceRadixSort of |acc|; DeviceSelect of what reaches the k-th; residual.
void cub_top_k(const PeerMemory& memory, size_t k, PeerScratch& scratch, cudaStream_t stream);

/// acc = g + e; the maximum of each 256 by DeviceSegmentedReduce; 8-bit codes; residual.
void cub_int8(const PeerMemory& memory, PeerScratch& scratch, cudaStream_t stream);

/// transform, sort, copy_if, transform.
void thrust_top_k(const PeerMemory& memory, size_t k, PeerScratch& scratch, cudaStream_t stream);

/// transform to __half.
void thrust_half(const PeerMemory& memory, PeerScratch& scratch, cudaStream_t stream);

/// memset, then atomicAdd of `ranks` lists of k pairs, then a scale.
void atomic_add(std::span<const uint32_t> indices, std::span<const float> values, size_t ranks,
                std::span<float> sum, cudaStream_t stream);

}  // namespace gradwire::bench
