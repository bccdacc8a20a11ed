#pragma once
// Norms of blocks, by which the k largest are chosen as elements are, and the marks of their
// elements.

#include "gradwire/kernels/ops/select.cuh"
#include "gradwire/kernels/ops/select_blocks_cuda.h"

namespace gradwire::cuda {

inline constexpr unsigned kBlocksAtOnce = kSelectThreads / kNormLanes;

struct BlockArguments {
  SelectMemory memory;
  BlockGrid grid;
  uint64_t first;
  BlockExtent blocks;
  float* norms;
  const std::byte* block_mask;  // one bit each
  uint32_t* listed;
  EntriesBefore* listed_before;
  uint32_t* arrived;
};

/// Eight threads per block: x = g + e, and its norm with the CPU's lanes.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) block_norms_kernel(BlockArguments a) {
  const SelectMemory& m = a.memory;
  const unsigned lane = threadIdx.x % kNormLanes;
  const uint64_t block = blockIdx.x * uint64_t{kBlocksAtOnce} + threadIdx.x / kNormLanes;
  const bool there = block < a.blocks.end - a.blocks.begin;
  const float* const e = m.e.get();
  float* const x = m.x.get();
  const bool writes = e != nullptr || as_bytes(x) != m.g;
  double squares = 0;
  if (there) {
    const BlockExtent all = a.grid.extent(a.blocks.begin + block);
    const uint64_t begin = all.begin > a.first ? all.begin - a.first : 0;
    const uint64_t end = all.end - a.first < m.numel ? all.end - a.first : m.numel;
#pragma unroll 1
    for (uint64_t i = begin + lane; i < end; i += kNormLanes) {
      float value = load_float<T>(m.g, i);
      if (e != nullptr) {
        value = value + e[i];
      }
      if (writes) {
        x[i] = value;
      }
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  }
#pragma unroll
  for (unsigned width = kNormLanes / 2; width > 0; width /= 2) {
    squares += __shfl_down_sync(kAllLanes, squares, width);
  }
  if (there && lane == 0) {
    a.norms[block] = norm_of_squares(squares);
  }
}

/// A thread block per chunk: marks the elements of chosen blocks, and counts them and their blocks.
__global__ void __launch_bounds__(kSelectThreads) mark_blocks_kernel(BlockArguments a) {
  const SelectMemory& m = a.memory;
  uint32_t flags[kRounds];
  uint32_t begins = 0;  // of blocks, or of what goes on from the chunk before
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned byte = round * kSelectThreads + threadIdx.x;
    const uint64_t first = blockIdx.x * kSelectChunk + byte * kPerThread;
    flags[round] = 0;
    BlockExtent here{0, 0};
    bool chosen = false;
#pragma unroll 1
    for (unsigned bit = 0; bit < kPerThread && first + bit < m.numel; ++bit) {
      const uint64_t element = a.first + first + bit;
      if (element >= here.end) {
        here = a.grid.extent_at(element);
        const uint64_t block = a.grid.block_at(element) - a.blocks.begin;
        chosen = (static_cast<uint32_t>(a.block_mask[block / 8]) >> (block % 8) & 1) != 0;
      }
      if (chosen) {
        flags[round] |= 1u << bit;
        begins += element == here.begin || byte + bit == 0 ? 1 : 0;
      }
    }
  }
  write_marks(m, flags);
  uint32_t total;
  block_exclusive_sum(begins, total);
  if (threadIdx.x == 0) {
    a.listed[blockIdx.x] = total;
  }
  if (is_last_block(a.arrived)) {
    write_before(m, gridDim.x);
    SelectMemory listed = m;
    listed.counts = a.listed;
    listed.before = a.listed_before;
    write_before(listed, gridDim.x);
  }
}

}  // namespace gradwire::cuda
