#pragma once
// Sparse bodies of all ranks, added in rank order. Nothing in them is trusted. One block places the
// chunks of a body; then the owner of a chunk adds all ranks' entries to it in shared memory,
// without atomics: the indices of one rank are distinct.

#include "gradwire/kernels/ops/slice.cuh"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_index.cuh"
#include "gradwire/kernels/ops/sparse_layout.cuh"

namespace gradwire::cuda {

/// What placing, adding and slicing need to know.
struct AddArguments {
  const DevicePart* parts;
  size_t count;
  BodyPlace* of_body;
  ChunkPlace* places;  // of part 0, of part 1, ...
  size_t most_chunks;  // of a part: the distance between their places
  size_t first_chunk;  // of the sum, in the group
  std::byte* sum;
  size_t numel;
  float factor;
  StepWords* step;
  CodeFormat codes;  // of eight bits
  bool onto;         // the one part is added to what the sum holds
  IndexChoice indices;
  BlockGrid grid;  // what indices say, where they say blocks
};

/// Of all parts that this call can use.
__device__ __forceinline__ uint32_t variant_of(const AddArguments& a) {
  return a.count > 0 ? a.parts[0].variant : 0;
}

__device__ __forceinline__ uint32_t count_of(const DevicePart& part, size_t local) {
  return load_word<uint16_t>(part.body + 2 * local);
}

/// Indices of a chunk: as many as entries, unless they say blocks.
template <class Layout>
__device__ __forceinline__ uint32_t listed_of(const DevicePart& part, size_t local) {
  return load_word<uint16_t>(
      part.body + (Layout::kHasBlocks ? Layout::blocks_begin(part.chunks) : 0) + 2 * local);
}

/// A block per part: places its chunks, and checks that its counts give its length.
template <SparseStorage kStorage, SparseIndices kIndices>
__global__ void __launch_bounds__(kPlaceThreads) place_part_kernel(AddArguments a) {
  using Layout = SparseLayout<kStorage, kIndices>;
  const DevicePart part = a.parts[blockIdx.x];
  const uint32_t variant = variant_of(a);
  if (a.indices.excludes<kIndices>(variant)) {
    return;
  }
  const bool there = part.body != nullptr;
  const bool fits = part.variant == variant;
  bool ok = there && fits && part.chunks <= a.most_chunks &&
            part.body_bytes >= Layout::indices_begin(part.chunks);
  uint64_t values_begin = 0;
  if (ok) {
    const uint64_t bytes = place_chunks<Layout>(
        part.numel, part.chunks, [&](size_t local) { return count_of(part, local); },
        [&](size_t local) { return listed_of<Layout>(part, local); },
        a.places + blockIdx.x * a.most_chunks, values_begin, ok);
    ok = ok && bytes == part.body_bytes;
  }
  if (threadIdx.x == 0) {
    a.of_body[blockIdx.x] = {values_begin, ok ? 1u : 0u};
    if (there && !ok) {
      report_fault(a.step, blockIdx.x, fits ? FaultReason::kBody : FaultReason::kVariant);
    }
  }
}

/// Whether the chunk's indices increase and lie below `numel`; for all threads of the block.
template <SparseIndices kIndices>
__device__ inline bool indices_hold(const std::byte* indices, uint32_t count, uint32_t numel) {
  int bad = 0;
  if constexpr (kIndices == SparseIndices::kBitmap) {
    uint32_t mine = 0;
    for (uint32_t byte = threadIdx.x; byte < (numel + 7) / 8; byte += kSparseThreads) {
      const auto flags = static_cast<uint32_t>(indices[byte]);
      mine += static_cast<uint32_t>(__popc(flags));
      bad |= byte * 8 + 8 > numel && flags >> (numel % 8) != 0 ? 1 : 0;
    }
    uint32_t total;
    block_exclusive_sum(mine, total);
    bad |= total != count ? 1 : 0;
  } else {
    for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
      const uint32_t index = unpack_index(indices, at, count);
      const bool rises = at == 0 || unpack_index(indices, at - 1, count) < index;
      bad |= index >= numel || !rises ? 1 : 0;
    }
  }
  return __syncthreads_or(bad) == 0;
}

/// A chunk's place among the blocks.
struct ChunkOfBlocks {
  BlockGrid grid;
  uint64_t first;  // element
  uint32_t numel;
};

/// Whether increasing indices begin blocks that have `count` elements in all; for all threads of
/// the block. `offsets` becomes how many lie before each.
__device__ inline bool blocks_hold(const ChunkOfBlocks& chunk, const std::byte* indices,
                                   uint32_t blocks, uint32_t count, uint16_t* offsets) {
  int bad = 0;
  uint32_t before = 0;
#pragma unroll 1
  for (uint32_t round = 0; round < blocks; round += kSparseThreads) {
    const uint32_t block = round + threadIdx.x;
    uint32_t length = 0;
    if (block < blocks) {
      const uint32_t index = unpack_index(indices, block, blocks);
      const BlockExtent extent = chunk.grid.extent_at(chunk.first + index);
      const uint64_t end = chunk.first + chunk.numel;
      bad |= index != 0 && extent.begin != chunk.first + index ? 1 : 0;
      length = static_cast<uint32_t>((extent.end < end ? extent.end : end) - chunk.first) - index;
    }
    uint32_t of_round;
    const uint32_t offset = before + block_exclusive_sum(length, of_round);
    if (block < blocks) {
      offsets[block] = static_cast<uint16_t>(offset);
    }
    before += of_round;
  }
  bad |= before != count ? 1 : 0;
  return __syncthreads_or(bad) == 0;
}

/// Thread blocks that a multiprocessor is to hold: all its threads, in 32 registers each. With
/// offsets in shared memory no more than 6 fit on sm_80, and for more the compiler would spill.
template <SparseIndices kIndices>
inline constexpr unsigned kAddersAtOnce = kIndices == SparseIndices::kBlocks ? 6 : 8;

/// A block owns a chunk of the sum.
template <class T, SparseStorage kStorage, SparseIndices kIndices>
__global__ void __launch_bounds__(kSparseThreads, kAddersAtOnce<kIndices>)
    add_sparse_kernel(AddArguments a, SumFaults overflow) {
  using Layout = SparseLayout<kStorage, kIndices>;
  if (a.indices.excludes<kIndices>(variant_of(a))) {
    return;
  }
  GRADWIRE_SHARED(sum, float[kSelectChunk]);
  GRADWIRE_SHARED(offsets, uint16_t[Layout::kHasBlocks ? kSelectChunk : 1]);  // of blocks' values
  const size_t chunk = a.first_chunk + blockIdx.x;
  const uint32_t numel = chunk_numel(a.numel, blockIdx.x);
  if (a.onto && !holds_chunk(a.parts[0], chunk)) {
    return;
  }
  for (unsigned i = threadIdx.x; i < kSelectChunk; i += kSparseThreads) {
    sum[i] = 0.0f;
  }
  if (a.onto) {
    for (unsigned i = threadIdx.x; i < numel; i += kSparseThreads) {
      sum[i] = load_float<T>(a.sum, blockIdx.x * kSelectChunk + i);
    }
  }
  __syncthreads();
  for (size_t i = 0; i < a.count; ++i) {
    const BodyPlace of_body = a.of_body[i];
    const DevicePart part = a.parts[i];
    if (of_body.usable == 0 || !holds_chunk(part, chunk)) {
      continue;
    }
    const size_t local = chunk - part.first_chunk;
    const uint32_t count = count_of(part, local);
    const ChunkPlace place = a.places[i * a.most_chunks + local];
    const std::byte* const indices = part.body + place.indices;
    const std::byte* const values = part.body + of_body.values_begin + place.values;
    bfloat16 scale{0};
    if constexpr (Layout::kHasScales) {
      scale.bits = load_word<uint16_t>(part.body + Layout::scales_begin(part.chunks) + 2 * local);
    }
    bool indices_ok = indices_hold<kIndices>(indices, listed_of<Layout>(part, local), numel);
    if constexpr (Layout::kHasBlocks) {
      indices_ok = indices_ok && blocks_hold({a.grid, chunk * kSelectChunk, numel}, indices,
                                             listed_of<Layout>(part, local), count, offsets);
    }
    if (!indices_ok || scale.bits >= kInfinityBrain) {
      if (threadIdx.x == 0) {
        report_fault(a.step, i, indices_ok ? FaultReason::kScale : FaultReason::kIndex);
      }
      continue;
    }
    if constexpr (Layout::kIsBitmap) {
      uint32_t before = 0;
      for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += kSparseThreads) {
        auto flags = byte < (numel + 7) / 8 ? static_cast<uint32_t>(indices[byte]) : 0u;
        uint32_t of_round;
        uint32_t at = before + block_exclusive_sum(static_cast<uint32_t>(__popc(flags)), of_round);
        for (; flags != 0; flags &= flags - 1, ++at) {
          const unsigned bit = static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
          sum[byte * 8 + bit] += unpack_value<kStorage>(values, at, to_float(scale), a.codes);
        }
        before += of_round;
      }
    } else if constexpr (Layout::kHasBlocks) {
      const uint32_t blocks = listed_of<Layout>(part, local);
#pragma unroll 1
      for (uint32_t block = warp_index(); block < blocks; block += kSparseThreads / kWarp) {
        const uint32_t begin = unpack_index(indices, block, blocks);
        const uint32_t offset = offsets[block];
        const uint32_t end = block + 1 < blocks ? offsets[block + 1] : count;
#pragma unroll 1
        for (uint32_t at = offset + lane_index(); at < end; at += kWarp) {
          sum[begin + at - offset] += unpack_value<kStorage>(values, at, to_float(scale), a.codes);
        }
      }
    } else {
      for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
        sum[unpack_index(indices, at, count)] +=
            unpack_value<kStorage>(values, at, to_float(scale), a.codes);
      }
    }
    __syncthreads();
  }
  uint32_t largest = 0;
#pragma unroll 1
  for (unsigned mine = threadIdx.x * kPerThread; mine < numel;
       mine += kSparseThreads * kPerThread) {
    float x[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = a.factor == 1.0f ? sum[mine + i] : sum[mine + i] * a.factor;
      const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;  // zeros behind the end
      largest = bits > largest ? bits : largest;
    }
    store_floats<T>(a.sum, blockIdx.x * kSelectChunk + mine, a.numel, x);
  }
  report_overflow(overflow, largest);
}

/// Copies the chunks of a slice, placed in the one part: counts, scales, indices and values are one
/// run each. Nothing but a refused header is written where they do not fit into `room`.
template <SparseStorage kStorage, SparseIndices kIndices>
__global__ void __launch_bounds__(kSliceThreads)
    slice_sparse_kernel(AddArguments a, PayloadHeader header, std::byte* out, uint64_t room) {
  using Layout = SparseLayout<kStorage, kIndices>;
  DevicePart part = a.parts[0];
  if (a.indices.excludes<kIndices>(part.variant)) {
    return;
  }
  const BodyPlace of_body = *a.of_body;
  const uint64_t chunks = (header.numel + kSelectChunk - 1) / kSelectChunk;
  uint64_t index_bytes = 0;
  uint64_t value_bytes = 0;
  const uint64_t local = header.first_chunk - part.first_chunk;
  if (of_body.usable != 0 && chunks > 0) {
    const uint64_t last = local + chunks - 1;
    const uint32_t count = count_of(part, last);
    const uint32_t listed = listed_of<Layout>(part, last);
    index_bytes = a.places[last].indices - a.places[local].indices +
                  Layout::index_bytes(listed, chunk_numel(part.numel, last));
    value_bytes = a.places[last].values - a.places[local].values + Layout::value_bytes(count);
  }
  const uint64_t indices_end = Layout::indices_begin(chunks) + index_bytes;
  header.bytes = sizeof header + pad4(indices_end) + value_bytes;
  const bool fits = of_body.usable != 0 && header.bytes <= room;
  if (!fits) {
    part.body = nullptr;
    if (of_body.usable != 0 && blockIdx.x == 0 && threadIdx.x == 0) {
      report_fault(a.step, 0, FaultReason::kBody);
    }
  }
  if (!begin_slice(part, out, header) || chunks == 0) {
    return;
  }
  std::byte* const body = out + sizeof header;
  copy_share(part.body + 2 * local, body, 2 * chunks);
  if constexpr (Layout::kHasBlocks) {
    copy_share(part.body + Layout::blocks_begin(part.chunks) + 2 * local,
               body + Layout::blocks_begin(chunks), 2 * chunks);
  }
  if constexpr (Layout::kHasScales) {
    copy_share(part.body + Layout::scales_begin(part.chunks) + 2 * local,
               body + Layout::scales_begin(chunks), 2 * chunks);
  }
  copy_share(part.body + a.places[local].indices, body + Layout::indices_begin(chunks),
             index_bytes);
  copy_share(part.body + of_body.values_begin + a.places[local].values, body + pad4(indices_end),
             value_bytes);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    for (uint64_t i = 2 * chunks; i < pad4(2 * chunks); ++i) {
      body[i] = std::byte{0};
      body[Layout::scales_begin(chunks) - pad4(2 * chunks) + i] = std::byte{0};
      body[Layout::indices_begin(chunks) - pad4(2 * chunks) + i] = std::byte{0};
    }
    for (uint64_t i = indices_end; i < pad4(indices_end); ++i) {
      body[i] = std::byte{0};
    }
  }
}

/// to[i] += x[i].
__global__ void __launch_bounds__(kSliceThreads)
    add_to_kernel(const float* x, ParityPointer to, size_t numel) {
  const size_t first = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
  if (first >= numel) {
    return;
  }
  float* const residual = to.get();
  float sum[kPerThread];
  load_sum<float>(as_bytes(residual), x, first, numel, sum);
  store_floats<float>(as_bytes(residual), first, numel, sum);
}

}  // namespace gradwire::cuda
