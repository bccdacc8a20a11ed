#pragma once
// Sparse bodies, written: a block per chunk, which knows from the selection where its entries lie.

#include "gradwire/kernels/ops/rounding.cuh"
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
  CodeFormat codes;  // of eight bits
  int32_t levels;
  bool by_chance;
  RoundingSource source;
  uint64_t first;  // of x in the group
};

/// Where the entries of a chunk begin, in bytes of the body; of the chunk behind the last: the end.
template <class Layout>
__device__ __forceinline__ ChunkPlace place_of(uint64_t chunks, uint64_t chunk, uint64_t numel,
                                               const EntriesBefore& before) {
  const uint64_t entries = before.entries;
  const uint64_t bitmaps = chunk < chunks ? chunk * kMaskBytes : (numel + 7) / 8;
  const uint64_t packed = (3 * entries + before.odd_counts) / 2;
  const uint64_t values = Layout::kBits == 4   ? (entries + before.odd_counts) / 2
                          : Layout::kBits == 2 ? before.two_bits
                          : Layout::kBits == 1 ? before.one_bit
                                               : entries * (Layout::kBits / 8);
  return {Layout::indices_begin(chunks) + (Layout::kIsBitmap ? bitmaps : packed), values};
}

/// What lies behind the last chunk.
__device__ __forceinline__ EntriesBefore all_entries(const EncodeArguments& a) {
  if (a.chunks == 0) {
    return {};
  }
  return entries_behind(a.before[a.chunks - 1], a.counts[a.chunks - 1]);
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
  zero(Layout::indices_begin(a.chunks) - (pad4(2 * a.chunks) - 2 * a.chunks),
       Layout::indices_begin(a.chunks));
  zero(indices_end, values_begin);
}

/// One warp: the sum of |x| * factor in the order of signs.h; in lane 0.
__device__ __forceinline__ float sum_run(const float* x, uint32_t count, float factor) {
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t at = lane_index(); at < count; at += kWarp) {
    sum += fabsf(x[at]) * factor;
  }
  return warp_sum(sum);
}

/// One warp: cpu::mean_magnitude(); in lane 0.
__device__ inline float mean_of_run(const float* x, uint32_t count) {
  const float numel = static_cast<float>(count > 0 ? count : 1);
  const float sum = __shfl_sync(kAllLanes, sum_run(x, count, 1.0f), 0);
  if (sum <= std::numeric_limits<float>::max()) {
    return sum / numel;
  }
  const float mean = sum_run(x, count, 0x1p-12f) / numel * 0x1p12f;
  return mean <= std::numeric_limits<float>::max() ? mean : std::numeric_limits<float>::max();
}

/// One warp: cpu::norm(); in lane 0. `largest`: the bits of max|x|.
__device__ inline float norm_of_run(const float* x, uint32_t count, uint32_t largest) {
  const float factor = square_factor(largest);
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t begin = 0; begin < count; begin += kWarp * kPerThread) {
    float t[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t at = begin + lane_index() * kPerThread + static_cast<uint32_t>(i);
      t[i] = at < count ? x[at] * factor : 0.0f;
      t[i] *= t[i];
    }
    squares += warp_sum(((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
  }
  return __uint_as_float(norm_bits(squares, factor));
}

/// A block writes a chunk: the chosen elements gather in shared memory, in order.
template <SparseStorage kStorage, bool kBitmap>
__global__ void __launch_bounds__(kSparseThreads) encode_sparse_kernel(EncodeArguments a) {
  using Layout = SparseLayout<kStorage, kBitmap>;
  GRADWIRE_SHARED(index, uint16_t[kSelectChunk]);
  GRADWIRE_SHARED(value, float[kSelectChunk]);
  GRADWIRE_SHARED(largest, uint32_t);
  const ChunkPlace end = place_of<Layout>(a.chunks, a.chunks, a.numel, all_entries(a));
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
  const ChunkPlace place = place_of<Layout>(a.chunks, chunk, a.numel, a.before[chunk]);
  float* const x = a.x.get() + chunk * kSelectChunk;
  std::byte* const indices = a.body + place.indices;
  std::byte* const values = a.body + values_begin + place.values;
  if (threadIdx.x == 0) {
    largest = 0;
    store_word(a.body + 2 * chunk, static_cast<uint16_t>(a.counts[chunk]));
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
    constexpr bool kSigns = kStorage == SparseStorage::kOne;
    const CodeFormat format = Layout::kBits == 8 ? a.codes : CodeFormat::kInteger;
    const int32_t limit = run_limit(Layout::kBits, a.levels);
    float maximum = __uint_as_float(largest);
    if (kSigns || a.levels > 0) {  // the same for all threads
      GRADWIRE_SHARED(of_run, float);
      if (warp_index() == 0) {
        const float found =
            kSigns ? mean_of_run(value, count) : norm_of_run(value, count, largest);
        if (lane_index() == 0) {
          of_run = found;
        }
      }
      __syncthreads();
      maximum = of_run;
    }
    const bfloat16 stored =
        kSigns ? from_float<bfloat16>(maximum) : run_scale(format, limit, maximum);
    const float scale = to_float(stored);
    if (threadIdx.x == 0) {
      store_word(a.body + Layout::scales_begin(a.chunks) + 2 * chunk, stored.bits);
    }
    constexpr uint32_t kPerByte = 8 / Layout::kBits;
    for (uint32_t byte = threadIdx.x; byte < Layout::value_bytes(count); byte += kSparseThreads) {
      uint32_t packed = 0;
#pragma unroll 1
      for (uint32_t i = 0; i < kPerByte && byte * kPerByte + i < count; ++i) {
        const uint32_t at = byte * kPerByte + i;
        int32_t code;
        if constexpr (kSigns) {
          code = stored.bits != 0 && value[at] < 0.0f ? 1 : 0;
          leave(at, code != 0 ? -scale : scale);
        } else {
          code = a.by_chance
                     ? run_code_by_chance(
                           format, limit, value[at], scale,
                           draw_half(a.source, a.first + chunk * kSelectChunk + index[at]))
                     : run_code(format, limit, value[at], scale);
          leave(at, code_value_of(format, code, scale));
        }
        packed |= (static_cast<uint32_t>(code) & ((1u << Layout::kBits) - 1)) << (i * Layout::kBits);
      }
      values[byte] = static_cast<std::byte>(packed);
    }
  } else {
    using T = std::conditional_t<
        kStorage == SparseStorage::kFloat32, float,
        std::conditional_t<kStorage == SparseStorage::kFloat16, float16, bfloat16>>;
    for (uint32_t at = threadIdx.x; at < count; at += kSparseThreads) {
      store_float<T>(values, at, value[at]);
      leave(at, to_float(from_float<T>(value[at])));
    }
  }
}

}  // namespace gradwire::cuda
