#pragma once
// Sparse bodies of all ranks, added in rank order. Nothing in them is trusted. One block places the
// chunks of a body; then the owner of a chunk adds all ranks' entries to it in shared memory,
// without atomics: the indices of one rank are distinct.

#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/quantize_element.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_layout.cuh"

namespace gradwire::cuda {

inline constexpr uint32_t kInfinityBrain = 0x7F80;  // as bfloat16

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

/// A block per part: places its chunks, and checks that its counts give its length.
template <SparseValues kValues, bool kBitmap>
__global__ void __launch_bounds__(kPlaceThreads) place_part_kernel(AddArguments a) {
  using Layout = SparseLayout<kValues, kBitmap>;
  const size_t part = blockIdx.x;
  const std::byte* const body = a.bodies[part];
  bool ok = a.bytes[part] >= Layout::indices_begin(a.chunks);
  uint64_t values_begin = 0;
  if (ok) {
    const uint64_t bytes = place_chunks<Layout>(
        a.numel, a.chunks,
        [&](size_t chunk) -> uint32_t { return load_word<uint16_t>(body + 2 * chunk); },
        a.places + part * a.chunks, values_begin, ok);
    ok = ok && bytes == a.bytes[part];
  }
  if (threadIdx.x == 0) {
    a.of_body[part] = {values_begin, ok ? 1u : 0u};
    if (!ok) {
      atomicOr(a.status, kStatusMalformed);
    }
  }
}

/// Entry `at` of 12-bit indices.
__device__ __forceinline__ uint32_t unpack_index(const std::byte* packed, uint32_t at,
                                                 uint32_t count) {
  const std::byte* const pair = packed + at / 2 * 3;
  const auto low = static_cast<uint32_t>(pair[0]);
  const auto middle = static_cast<uint32_t>(pair[1]);
  if (at % 2 == 1) {
    return middle >> 4 | static_cast<uint32_t>(pair[2]) << 4;
  }
  return at + 1 == count ? low | middle << 8 : low | (middle & 15) << 8;
}

/// Entry `at` of a chunk's values.
template <SparseValues kValues>
__device__ __forceinline__ float unpack_value(const std::byte* values, uint32_t at, float scale) {
  if constexpr (kValues == SparseValues::kFloat32) {
    return load_float<float>(values, at);
  } else if constexpr (kValues == SparseValues::kFloat16) {
    return load_float<float16>(values, at);
  } else if constexpr (kValues == SparseValues::kBFloat16) {
    return load_float<bfloat16>(values, at);
  } else if constexpr (kValues == SparseValues::kInt8) {
    return code_value(static_cast<int8_t>(values[at]), scale);
  } else {
    const uint32_t nibble = static_cast<uint32_t>(values[at / 2]) >> (at % 2 * 4) & 15u;
    return code_value(static_cast<int32_t>(nibble ^ 8u) - 8, scale);
  }
}

/// Whether the chunk's indices increase and lie below `numel`; for all threads of the block.
template <bool kBitmap>
__device__ inline bool indices_hold(const std::byte* indices, uint32_t count, uint32_t numel) {
  int bad = 0;
  if constexpr (kBitmap) {
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

/// A block owns a chunk of the sum.
template <class T, SparseValues kValues, bool kBitmap>
__global__ void __launch_bounds__(kSparseThreads) add_sparse_kernel(AddArguments a) {
  using Layout = SparseLayout<kValues, kBitmap>;
  GRADWIRE_SHARED(sum, float[kSelectChunk]);
  const size_t chunk = blockIdx.x;
  const uint32_t numel = chunk_numel(a.numel, chunk);
  for (unsigned i = threadIdx.x; i < kSelectChunk; i += kSparseThreads) {
    sum[i] = 0.0f;
  }
  __syncthreads();
  for (size_t part = 0; part < a.parts; ++part) {
    const BodyPlace of_body = a.of_body[part];
    if (of_body.usable == 0) {
      continue;
    }
    const std::byte* const body = a.bodies[part];
    const uint32_t count = load_word<uint16_t>(body + 2 * chunk);
    const ChunkPlace place = a.places[part * a.chunks + chunk];
    const std::byte* const indices = body + place.indices;
    const std::byte* const values = body + of_body.values_begin + place.values;
    bfloat16 scale{0};
    if constexpr (Layout::kHasScales) {
      scale.bits = load_word<uint16_t>(body + Layout::scales_begin(a.chunks) + 2 * chunk);
    }
    const bool indices_ok = indices_hold<kBitmap>(indices, count, numel);
    if (!indices_ok || scale.bits >= kInfinityBrain) {
      if (threadIdx.x == 0) {
        atomicOr(a.status, kStatusMalformed);
      }
      continue;
    }
    if constexpr (kBitmap) {
      uint32_t before = 0;
      for (unsigned byte = threadIdx.x; byte < kMaskBytes; byte += kSparseThreads) {
        auto flags = byte < (numel + 7) / 8 ? static_cast<uint32_t>(indices[byte]) : 0u;
        uint32_t of_round;
        uint32_t at = before + block_exclusive_sum(static_cast<uint32_t>(__popc(flags)), of_round);
        for (; flags != 0; flags &= flags - 1, ++at) {
          const unsigned bit = static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
          sum[byte * 8 + bit] += unpack_value<kValues>(values, at, to_float(scale));
        }
        before += of_round;
      }
    } else {
      for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
        sum[unpack_index(indices, at, count)] += unpack_value<kValues>(values, at, to_float(scale));
      }
    }
    __syncthreads();
  }
  for (unsigned mine = threadIdx.x * kPerThread; mine < numel;
       mine += kSparseThreads * kPerThread) {
    float x[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = a.factor == 1.0f ? sum[mine + i] : sum[mine + i] * a.factor;
    }
    store_floats<T>(a.sum, chunk * kSelectChunk + mine, a.numel, x);
  }
}

}  // namespace gradwire::cuda
