#pragma once
// Sparse bodies: one block places the chunks of a body, then a block per chunk writes or adds it.
// The owner of a chunk adds all ranks' entries to it in shared memory, in rank order and without
// atomics: the indices of one rank are distinct.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/quantize_element.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"

namespace gradwire::cuda {

inline constexpr unsigned kSparseThreads = 256;
inline constexpr unsigned kPlaceThreads = 1024;
inline constexpr uint32_t kInfinityBrain = 0x7F80;  // as bfloat16

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

template <SparseValues kValues>
inline constexpr uint32_t kValueBits = kValues == SparseValues::kFloat32  ? 32
                                       : kValues == SparseValues::kInt8   ? 8
                                       : kValues == SparseValues::kInt4   ? 4
                                                                          : 16;

/// The wire format's arithmetic for one value codec.
template <SparseValues kValues, bool kBitmap>
struct SparseLayout {
  static constexpr uint32_t kBits = kValueBits<kValues>;
  static constexpr bool kHasScales = kBits <= 8;

  static __device__ uint64_t scales_begin(uint64_t chunks) { return pad4(2 * chunks); }
  static __device__ uint64_t indices_begin(uint64_t chunks) {
    return pad4(2 * chunks) * (kHasScales ? 2 : 1);
  }
  static __device__ uint32_t index_bytes(uint32_t count, uint32_t numel) {
    return kBitmap ? (numel + 7) / 8 : count / 2 * 3 + count % 2 * 2;
  }
  static __device__ uint32_t value_bytes(uint32_t count) { return (count * kBits + 7) / 8; }
};

__device__ __forceinline__ uint32_t chunk_numel(uint64_t numel, uint64_t chunk) {
  const uint64_t left = numel - chunk * kSelectChunk;
  return static_cast<uint32_t>(left < kSelectChunk ? left : kSelectChunk);
}

/// What adding needs to know.
struct AddArguments {
  const std::byte* const* bodies;
  const uint64_t* bytes;
  size_t parts;
  BodyPlace* of_body;
  ChunkPlace* places;  // of part 0, of part 1, ...
  size_t chunks;
  std::byte* sum;
  size_t numel;
  float factor;
  uint32_t* status;
};

/// What writing needs to know.
struct EncodeArguments {
  float* x;
  size_t numel;
  const std::byte* mask;
  const uint32_t* counts;
  size_t chunks;
  std::byte* body;
  size_t room;
  uint64_t* body_bytes;
  BodyPlace* of_body;
  ChunkPlace* places;
  uint32_t* status;
};

/// One block: places all chunks by their counts. @returns the body's bytes, in every thread; `ok`
/// becomes false in all threads where a count is larger than its chunk.
template <class Layout, class Count>
__device__ inline uint64_t place_chunks(size_t numel, size_t chunks, const Count& count_of,
                                        ChunkPlace* places, uint64_t& values_begin, bool& ok) {
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
      bad |= count > most ? 1 : 0;
      index_bytes = Layout::index_bytes(count, most);
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

/// One block: places the chunks, writes counts and padding.
template <SparseValues kValues, bool kBitmap>
__global__ void __launch_bounds__(kPlaceThreads) place_selection_kernel(EncodeArguments a) {
  using Layout = SparseLayout<kValues, kBitmap>;
  uint64_t values_begin;
  bool ok;
  const uint64_t bytes = place_chunks<Layout>(
      a.numel, a.chunks, [&](size_t chunk) { return a.counts[chunk]; }, a.places, values_begin, ok);
  const bool usable = ok && bytes <= a.room;
  if (threadIdx.x == 0) {
    *a.of_body = {values_begin, usable ? 1u : 0u};
    *a.body_bytes = bytes;
    if (!usable) {
      atomicOr(a.status, kStatusMalformed);
    }
  }
  if (!usable) {
    return;
  }
  for (size_t chunk = threadIdx.x; chunk < a.chunks; chunk += blockDim.x) {
    store_word(a.body + 2 * chunk, static_cast<uint16_t>(a.counts[chunk]));
  }
  __syncthreads();  // places are written
  if (threadIdx.x == 0 && a.chunks > 0) {
    const auto zero = [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) {
        a.body[i] = std::byte{0};
      }
    };
    const size_t last = a.chunks - 1;
    zero(2 * a.chunks, pad4(2 * a.chunks));
    zero(Layout::indices_begin(a.chunks) - (pad4(2 * a.chunks) - 2 * a.chunks),
         Layout::indices_begin(a.chunks));
    zero(a.places[last].indices +
             Layout::index_bytes(a.counts[last], chunk_numel(a.numel, last)),
         values_begin);
  }
}

/// maximum / limit, rounded up so that no code exceeds the limit; down where limit * scale, the
/// largest value decoded, would overflow.
GRADWIRE_HOST_DEVICE inline bfloat16 sparse_scale(float maximum, float limit) {
  if (maximum < cpu::kSmallestMaximum) {
    return {0};
  }
  const uint32_t bits = std::bit_cast<uint32_t>(maximum / limit);
  const bfloat16 up{static_cast<uint16_t>((bits + 0xFFFFu) >> 16)};
  const bool fits = limit * to_float(up) <= std::numeric_limits<float>::max();
  return fits ? up : bfloat16{static_cast<uint16_t>(bits >> 16)};
}

/// x / scale rounded to nearest and limited; 0 for scale 0.
GRADWIRE_HOST_DEVICE inline int32_t sparse_code(float x, float scale, int32_t limit) {
  if (scale == 0.0f) {
    return 0;
  }
  const int32_t code = round_to_int(x / scale);
  return code < -limit ? -limit : code > limit ? limit : code;
}

/// A block writes a chunk: the chosen elements gather in shared memory, in order.
template <SparseValues kValues, bool kBitmap>
__global__ void __launch_bounds__(kSparseThreads) encode_sparse_kernel(EncodeArguments a) {
  using Layout = SparseLayout<kValues, kBitmap>;
  GRADWIRE_SHARED(index, uint16_t[kSelectChunk]);
  GRADWIRE_SHARED(value, float[kSelectChunk]);
  GRADWIRE_SHARED(largest, uint32_t);
  if (a.of_body->usable == 0) {
    return;
  }
  const size_t chunk = blockIdx.x;
  const uint32_t numel = chunk_numel(a.numel, chunk);
  float* const x = a.x + chunk * kSelectChunk;
  std::byte* const indices = a.body + a.places[chunk].indices;
  std::byte* const values = a.body + a.of_body->values_begin + a.places[chunk].values;
  if (threadIdx.x == 0) {
    largest = 0;
  }
  __syncthreads();
  uint32_t count = 0;
  uint32_t mine = 0;
  for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += kSparseThreads) {
    auto flags = static_cast<uint32_t>(a.mask[chunk * kMaskBytes + byte]);
    if (kBitmap && byte < (numel + 7) / 8) {
      indices[byte] = static_cast<std::byte>(flags);
    }
    uint32_t of_round;
    uint32_t at = count + block_exclusive_sum(static_cast<uint32_t>(__popc(flags)), of_round);
    for (; flags != 0; flags &= flags - 1, ++at) {
      const unsigned i = byte * kPerThread + static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
      index[at] = static_cast<uint16_t>(i);
      value[at] = x[i];
      const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;
      mine = bits > mine ? bits : mine;
    }
    count += of_round;
  }
  if (Layout::kHasScales && mine > 0) {
    atomicMax(&largest, mine);
  }
  __syncthreads();
  if (!kBitmap) {
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
  if constexpr (Layout::kHasScales) {
    constexpr int32_t kLimit = (1 << (Layout::kBits - 1)) - 1;
    const bfloat16 stored = sparse_scale(__uint_as_float(largest), static_cast<float>(kLimit));
    const float scale = to_float(stored);
    if (threadIdx.x == 0) {
      store_word(a.body + Layout::scales_begin(a.chunks) + 2 * chunk, stored.bits);
    }
    constexpr uint32_t kPerByte = 8 / Layout::kBits;
    for (uint32_t byte = threadIdx.x; byte < Layout::value_bytes(count); byte += kSparseThreads) {
      uint32_t packed = 0;
      for (uint32_t i = 0; i < kPerByte && byte * kPerByte + i < count; ++i) {
        const uint32_t at = byte * kPerByte + i;
        const int32_t code = sparse_code(value[at], scale, kLimit);
        packed |= (static_cast<uint32_t>(code) & ((1u << Layout::kBits) - 1)) << (i * Layout::kBits);
        x[index[at]] = value[at] - code_value(code, scale);
      }
      values[byte] = static_cast<std::byte>(packed);
    }
  } else {
    using T = std::conditional_t<
        kValues == SparseValues::kFloat32, float,
        std::conditional_t<kValues == SparseValues::kFloat16, float16, bfloat16>>;
    for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
      store_float<T>(values, at, value[at]);
      x[index[at]] = value[at] - to_float(from_float<T>(value[at]));
    }
  }
}

}  // namespace gradwire::cuda
