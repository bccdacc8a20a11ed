#pragma once
// How a sparse body is laid out, for the kernels that write it and those that add it up.

#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_values.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kSparseThreads = 256;
inline constexpr unsigned kPlaceThreads = 1024;

/// Where a chunk's entries lie, in bytes: from the body's begin and from its values' begin.
struct ChunkPlace {
  uint64_t indices;
  uint64_t values;
};

/// What is known of a body when its chunks are placed.
struct BodyPlace {
  uint64_t values_begin;
  uint64_t usable;  // 0: too short, or malformed
};

__host__ __device__ __forceinline__ uint64_t pad4(uint64_t bytes) { return (bytes + 3) / 4 * 4; }

/// The wire format's arithmetic for one value codec.
template <SparseStorage kStorage, SparseIndices kIndices>
struct SparseLayout {
  static constexpr uint32_t kBits = kValueBits<kStorage>;
  static constexpr bool kHasScales = kHasRunScale<kStorage>;
  static constexpr bool kIsBitmap = kIndices == SparseIndices::kBitmap;
  static constexpr bool kHasBlocks = kIndices == SparseIndices::kBlocks;

  static __device__ uint64_t blocks_begin(uint64_t chunks) { return pad4(2 * chunks); }
  static __device__ uint64_t scales_begin(uint64_t chunks) {
    return pad4(2 * chunks) * (kHasBlocks ? 2 : 1);
  }
  static __device__ uint64_t indices_begin(uint64_t chunks) {
    return scales_begin(chunks) + (kHasScales ? pad4(2 * chunks) : 0);
  }
  /// `count`: of indices.
  static __device__ uint32_t index_bytes(uint32_t count, uint32_t numel) {
    return kIsBitmap ? (numel + 7) / 8 : count / 2 * 3 + count % 2 * 2;
  }
  static __device__ uint32_t value_bytes(uint32_t count) { return (count * kBits + 7) / 8; }
};

/// One block: places all chunks by their counts. @returns the body's bytes, in every thread; `ok`
/// becomes false in all threads where a count is larger than its chunk, or that of indices, by
/// `listed_of`, than it.
template <class Layout, class Count, class Listed>
__device__ inline uint64_t place_chunks(size_t numel, size_t chunks, const Count& count_of,
                                        const Listed& listed_of, ChunkPlace* places,
                                        uint64_t& values_begin, bool& ok) {
  uint64_t indices = Layout::indices_begin(chunks);
  uint64_t values = 0;
  int bad = 0;
  for (size_t begin = 0; begin < chunks; begin += blockDim.x) {
    const size_t chunk = begin + threadIdx.x;
    uint32_t index_bytes = 0;
    uint32_t value_bytes = 0;
    if (chunk < chunks) {
      const uint32_t count = count_of(chunk);
      const uint32_t most = chunk_numel(numel, chunk);
      const uint32_t listed = listed_of(chunk);
      bad |= count > most || listed > count ? 1 : 0;
      index_bytes = Layout::index_bytes(listed, most);
      value_bytes = Layout::value_bytes(count);
    }
    uint32_t all_index_bytes;
    uint32_t all_value_bytes;
    const uint32_t at_index = block_exclusive_sum(index_bytes, all_index_bytes);
    const uint32_t at_value = block_exclusive_sum(value_bytes, all_value_bytes);
    if (chunk < chunks) {
      places[chunk] = {indices + at_index, values + at_value};
    }
    indices += all_index_bytes;
    values += all_value_bytes;
  }
  ok = __syncthreads_or(bad) == 0;
  values_begin = pad4(indices);
  return values_begin + values;
}

/// SparseFormat's choice between bitmaps and packed indices, as a kernel takes it.
struct IndexChoice {
  bool by_variant = false;
  uint32_t bitmap_variants = 0;

  /// Whether payloads of `variant` are not what a kernel of these indices is there for.
  template <SparseIndices kIndices>
  __device__ bool excludes(uint32_t variant) const {
    return by_variant && (variant < bitmap_variants) != (kIndices == SparseIndices::kBitmap);
  }
};

/// Calls f.operator()<storage, indices>() with the compile-time values: with bitmaps and with
/// packed indices where the device chooses.
template <class F>
void dispatch_format(const char* op, const SparseFormat& format, F&& f) {
  dispatch_storage(op, format.values, [&]<SparseStorage kStorage>() {
    if (format.blocks.width > 0) {
      f.template operator()<kStorage, SparseIndices::kBlocks>();
      return;
    }
    if (format.by_variant || format.bitmap) {
      f.template operator()<kStorage, SparseIndices::kBitmap>();
    }
    if (format.by_variant || !format.bitmap) {
      f.template operator()<kStorage, SparseIndices::kPacked>();
    }
  });
}

}  // namespace gradwire::cuda
