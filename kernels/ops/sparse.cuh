#pragma once
// Sparse bodies, written: a block per chunk, which knows from the selection where its entries lie.

#include "gradwire/kernels/ops/seal.cuh"
#include "gradwire/kernels/ops/sparse_cuda.h"
#include "gradwire/kernels/ops/sparse_layout.cuh"

namespace gradwire::cuda {

/// What writing needs to know.
struct EncodeArguments {
  ParityPointer x;
  float scale;
  size_t numel;
  const std::byte* mask;
  const uint32_t* counts;
  const EntriesBefore* before;
  size_t chunks;
  std::byte* body;
  size_t room;
  uint64_t* body_bytes;  // or null
  Seal seal;
  ValueCodes codes;
  uint64_t first;           // of x in the group
  const uint32_t* variant;  // or null: 0
  IndexChoice indices;
  BlockGrid grid;  // what indices say, where they say blocks
  const uint32_t* listed;
  const EntriesBefore* listed_before;
};

__device__ __forceinline__ uint32_t variant_of(const EncodeArguments& a) {
  return a.variant != nullptr ? *a.variant : 0;
}

/// Where the entries of a chunk begin, in bytes of the body; of the chunk behind the last: the end.
/// `listed`: the same of indices.
template <class Layout>
__device__ __forceinline__ ChunkPlace place_of(uint64_t chunks, uint64_t chunk, uint64_t numel,
                                               const EntriesBefore& before,
                                               const EntriesBefore& listed) {
  const uint64_t entries = before.entries;
  const uint64_t bitmaps = chunk < chunks ? chunk * kMaskBytes : (numel + 7) / 8;
  const uint64_t packed = (3 * uint64_t{listed.entries} + listed.odd_counts) / 2;
  const uint64_t values = Layout::kBits == 4   ? (entries + before.odd_counts) / 2
                          : Layout::kBits == 2 ? before.two_bits
                          : Layout::kBits == 1 ? before.one_bit
                                               : entries * (Layout::kBits / 8);
  return {Layout::indices_begin(chunks) + (Layout::kIsBitmap ? bitmaps : packed), values};
}

/// What lies behind the last chunk.
__device__ __forceinline__ EntriesBefore all_entries(size_t chunks, const EntriesBefore* before,
                                                     const uint32_t* counts) {
  if (chunks == 0) {
    return {};
  }
  return entries_behind(before[chunks - 1], counts[chunks - 1]);
}

/// One thread: header and padding.
template <class Layout>
__device__ inline void write_frame(const EncodeArguments& a, uint64_t indices_end,
                                   uint64_t values_begin, uint64_t bytes, bool usable) {
  if (a.body_bytes != nullptr) {
    *a.body_bytes = bytes;
  }
  if (!usable) {
    atomicOr(a.seal.status, kStatusMalformed);
  }
  if (a.seal.out != nullptr) {
    PayloadHeader header = a.seal.header;
    header.bytes = sizeof header + bytes;
    header.variant = variant_of(a);
    const uint32_t flags = take_flags(a.seal);
    if (usable) {
      write_sealed_header(a.seal, header, flags);
    } else {
      for (unsigned i = 0; i < sizeof header / 4; ++i) {
        store_word(a.seal.out + 4 * i, 0u);  // every reader refuses it
      }
    }
  }
  const auto zero = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end && usable; ++i) {
      a.body[i] = std::byte{0};
    }
  };
  zero(2 * a.chunks, pad4(2 * a.chunks));
  zero(Layout::blocks_begin(a.chunks) + 2 * a.chunks, Layout::scales_begin(a.chunks));
  zero(Layout::indices_begin(a.chunks) - (pad4(2 * a.chunks) - 2 * a.chunks),
       Layout::indices_begin(a.chunks));
  zero(indices_end, values_begin);
}

/// One block: 12-bit indices, which lie in shared memory.
__device__ __forceinline__ void pack_indices(const uint16_t* index, uint32_t count,
                                             std::byte* indices) {
#pragma unroll 1
  for (uint32_t pair = threadIdx.x; 2 * pair + 1 < count; pair += kSparseThreads) {
    const uint32_t both = index[2 * pair] | static_cast<uint32_t>(index[2 * pair + 1]) << 12;
    indices[3 * pair] = static_cast<std::byte>(both);
    indices[3 * pair + 1] = static_cast<std::byte>(both >> 8);
    indices[3 * pair + 2] = static_cast<std::byte>(both >> 16);
  }
  if (threadIdx.x == 0 && count % 2 == 1) {
    store_word(indices + count / 2 * 3, index[count - 1]);
  }
}

/// One block: of the chosen elements of the chunk at `first` those that begin a block, or what lies
/// of one in the chunk.
__device__ inline void list_blocks(const BlockGrid& grid, uint64_t first, const uint16_t* index,
                                   uint32_t count, uint16_t* begins) {
  uint32_t before = 0;
  for (uint32_t round = 0; round < count; round += kSparseThreads) {
    const uint32_t at = round + threadIdx.x;
    uint32_t is_begin = 0;
    if (at < count) {
      const uint64_t element = first + index[at];
      is_begin = index[at] == 0 || grid.extent_at(element).begin == element ? 1 : 0;
    }
    uint32_t of_round;
    const uint32_t to = before + block_exclusive_sum(is_begin, of_round);
    if (is_begin != 0) {
      begins[to] = index[at];
    }
    before += of_round;
  }
  __syncthreads();
}

/// A block writes a chunk: the chosen elements gather in shared memory, in order.
template <SparseStorage kStorage, SparseIndices kIndices>
__global__ void __launch_bounds__(kSparseThreads) encode_sparse_kernel(EncodeArguments a) {
  using Layout = SparseLayout<kStorage, kIndices>;
  if (a.indices.excludes<kIndices>(variant_of(a))) {
    return;
  }
  GRADWIRE_SHARED(index, uint16_t[kSelectChunk]);
  GRADWIRE_SHARED(value, float[kSelectChunk]);
  GRADWIRE_SHARED(largest, uint32_t);
  const EntriesBefore all = all_entries(a.chunks, a.before, a.counts);
  EntriesBefore all_listed = all;
  if constexpr (Layout::kHasBlocks) {
    all_listed = all_entries(a.chunks, a.listed_before, a.listed);
  }
  const ChunkPlace end = place_of<Layout>(a.chunks, a.chunks, a.numel, all, all_listed);
  const uint64_t values_begin = pad4(end.indices);
  const uint64_t bytes = values_begin + end.values;
  const bool usable = bytes <= a.room;
  const size_t chunk = blockIdx.x;
  if (chunk == 0 && threadIdx.x == 0) {
    write_frame<Layout>(a, end.indices, values_begin, bytes, usable);
  }
  if (!usable || a.chunks == 0) {
    return;
  }
  const uint32_t numel = chunk_numel(a.numel, chunk);
  const EntriesBefore before = a.before[chunk];
  EntriesBefore listed_before = before;
  if constexpr (Layout::kHasBlocks) {
    listed_before = a.listed_before[chunk];
  }
  const ChunkPlace place = place_of<Layout>(a.chunks, chunk, a.numel, before, listed_before);
  float* const x = a.x.get() + chunk * kSelectChunk;
  std::byte* const indices = a.body + place.indices;
  std::byte* const values = a.body + values_begin + place.values;
  if (threadIdx.x == 0) {
    largest = 0;
    store_word(a.body + 2 * chunk, static_cast<uint16_t>(a.counts[chunk]));
    if constexpr (Layout::kHasBlocks) {
      store_word(a.body + Layout::blocks_begin(a.chunks) + 2 * chunk,
                 static_cast<uint16_t>(a.listed[chunk]));
    }
  }
  __syncthreads();
  uint32_t count = 0;
  uint32_t mine = 0;
  for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += kSparseThreads) {
    auto flags = static_cast<uint32_t>(a.mask[chunk * kMaskBytes + byte]);
    if (Layout::kIsBitmap && byte < (numel + 7) / 8) {
      indices[byte] = static_cast<std::byte>(flags);
    }
    uint32_t of_round;
    uint32_t at = count + block_exclusive_sum(static_cast<uint32_t>(__popc(flags)), of_round);
    for (; flags != 0; flags &= flags - 1, ++at) {
      const unsigned i =
          byte * kPerThread + static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
      index[at] = static_cast<uint16_t>(i);
      value[at] = a.scale * x[i];
      const uint32_t bits = __float_as_uint(value[at]) & 0x7FFFFFFFu;
      mine = bits > mine ? bits : mine;
    }
    count += of_round;
  }
  if (Layout::kHasScales && mine > 0) {
    atomicMax(&largest, mine);
  }
  __syncthreads();
  if constexpr (Layout::kHasBlocks) {
    GRADWIRE_SHARED(begins, uint16_t[kSelectChunk]);
    list_blocks(a.grid, a.first + chunk * kSelectChunk, index, count, begins);
    pack_indices(begins, a.listed[chunk], indices);
  } else if constexpr (!Layout::kIsBitmap) {
    pack_indices(index, count, indices);
  }
  const auto leave = [&](uint32_t at, float decoded) {
    float& left = x[index[at]];
    left = left - (a.scale == 1.0f ? decoded : decoded / a.scale);
  };
  write_values<kStorage>(
      {value, count, largest, a.body + Layout::scales_begin(a.chunks) + 2 * chunk, values}, a.codes,
      [&](uint32_t at) { return a.first + chunk * kSelectChunk + index[at]; }, leave);
}

}  // namespace gradwire::cuda
