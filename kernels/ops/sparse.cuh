#pragma once
// Sparse bodies, written: one block places the chunks, then a block per chunk writes it.

#include "gradwire/kernels/ops/quantize_element.h"
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
  size_t chunks;
  std::byte* body;
  size_t room;
  uint64_t* body_bytes;  // or null
  BodyPlace* of_body;
  ChunkPlace* places;
  Seal seal;
};

/// One block: places the chunks, writes header, counts and padding.
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
    if (a.body_bytes != nullptr) {
      *a.body_bytes = bytes;
    }
    if (!usable) {
      atomicOr(a.seal.status, kStatusMalformed);
    }
    if (a.seal.out != nullptr) {
      PayloadHeader header = a.seal.header;
      header.bytes = sizeof header + bytes;
      const uint32_t flags = take_flags(a.seal);
      if (usable) {
        write_header(a.seal.out, header, flags);
      } else {
        for (unsigned i = 0; i < sizeof header / 4; ++i) {
          store_word(a.seal.out + 4 * i, 0u);  // every reader refuses it
        }
      }
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
  float* const x = a.x.get() + chunk * kSelectChunk;
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
  const auto leave = [&](uint32_t at, float decoded) {
    float& left = x[index[at]];
    left = left - (a.scale == 1.0f ? decoded : decoded / a.scale);
  };
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
        leave(at, code_value(code, scale));
      }
      values[byte] = static_cast<std::byte>(packed);
    }
  } else {
    using T = std::conditional_t<
        kValues == SparseValues::kFloat32, float,
        std::conditional_t<kValues == SparseValues::kFloat16, float16, bfloat16>>;
    for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
      store_float<T>(values, at, value[at]);
      leave(at, to_float(from_float<T>(value[at])));
    }
  }
}

}  // namespace gradwire::cuda
