#pragma once
// A warp encodes a block of 256 elements, 8 per lane: the maximum is one warp reduction, the codes
// of a lane are one store. A thread block encodes a chunk. Reads g and e once, writes e_next and
// codes once.

#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/quantize_element.h"

namespace gradwire::cuda {

inline constexpr unsigned kQuantizeThreads = 256;
inline constexpr unsigned kBlocksPerChunk = kQuantizeChunk / kQuantizeBlock;
inline constexpr unsigned kWarpsPerChunk = kQuantizeThreads / kWarp;
static_assert(kQuantizeBlock == size_t{kWarp} * kPerThread);

/// Eight codes of kBits bits, the first in the lowest bits.
template <int kBits>
using CodeWord = std::conditional_t<kBits == 8, uint2,
                                    std::conditional_t<kBits == 4, uint32_t, uint16_t>>;

template <int kBits>
__device__ __forceinline__ CodeWord<kBits> pack_codes(const int32_t (&codes)[kPerThread]) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    packed |= static_cast<uint64_t>(static_cast<uint32_t>(codes[i]) & kMask) << (i * kBits);
  }
  if constexpr (kBits == 8) {
    return {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)};
  } else {
    return static_cast<CodeWord<kBits>>(packed);
  }
}

template <int kBits>
__device__ __forceinline__ void unpack_codes(CodeWord<kBits> word, int32_t (&codes)[kPerThread]) {
  uint64_t packed;
  if constexpr (kBits == 8) {
    packed = word.x | static_cast<uint64_t>(word.y) << 32;
  } else {
    packed = word;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const auto high = static_cast<uint32_t>(packed >> (i * kBits)) << (32 - kBits);
    codes[i] = static_cast<int32_t>(high) >> (32 - kBits);
  }
}

/// Where a chunk's record lies, and how long the chunk is.
struct ChunkRecord {
  size_t begin;     // of the chunk in the group
  unsigned numel;   // of the chunk
  size_t scales;    // in the records
  size_t codes;
};

template <int kBits>
__device__ __forceinline__ ChunkRecord record_of(size_t chunk, size_t numel) {
  const size_t begin = chunk * kQuantizeChunk;
  const size_t left = numel - begin;
  const unsigned mine = left < kQuantizeChunk ? static_cast<unsigned>(left) : kQuantizeChunk;
  const size_t scales = chunk * (kBlocksPerChunk * 4 + kQuantizeChunk * kBits / 8);
  const size_t scale_bytes = (mine + kQuantizeBlock - 1) / kQuantizeBlock * 4;
  return {begin, mine, scales, scales + scale_bytes};
}

/// The 16 random bits of elements [first, first + 8) of the group, two in each word.
__device__ inline void draw_random(const RoundingSource& source, size_t first, size_t numel,
                                   uint32_t (&words)[kPerThread / 2]) {
  size_t low = 0;
  size_t high = source.segments.size() - 1;
  while (low < high) {  // the first segment that ends behind `first`
    const size_t middle = (low + high) / 2;
    if (source.segments[middle].end > first) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const uint32_t step = *source.step;
  const auto draw = [&](uint64_t element, uint32_t parameter) {
    return philox(rounding_counter(element, step, parameter, source.rank_stage), source.seed);
  };
  RandomSegment segment = source.segments[low];
  uint64_t begin = low == 0 ? 0 : source.segments[low - 1].end;
  const uint64_t element = segment.first + (first - begin);
  if (first + kPerThread <= segment.end) {
    const PhiloxCounter drawn = draw(element, segment.parameter);
    uint32_t w[kPerThread] = {drawn.word[0], drawn.word[1], drawn.word[2], drawn.word[3], 0};
    const unsigned skip = element % kPerThread;
    if (skip != 0) {
      const PhiloxCounter next = draw(element + kPerThread, segment.parameter);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[4 + i] = next.word[i];
      }
    }
    // Shifts by `skip` halves without an index that would put the array into memory.
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      w[i] = (skip & 4) != 0 ? w[i + 2] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      w[i] = (skip & 2) != 0 ? w[i + 1] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = (skip & 1) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {  // segments meet here, or the group ends
    uint32_t half = 0;
    if (first + i < numel) {
      while (first + i >= segment.end) {
        begin = segment.end;
        segment = source.segments[++low];
      }
      const uint64_t at = segment.first + (first + i - begin);
      const PhiloxCounter drawn = draw(at, segment.parameter);
      const uint32_t upper = (at & 2) != 0 ? drawn.word[3] : drawn.word[2];
      const uint32_t lower = (at & 2) != 0 ? drawn.word[1] : drawn.word[0];
      const uint32_t word = (at & 4) != 0 ? upper : lower;
      half = (at & 1) != 0 ? word >> 16 : word & 0xFFFFu;
    }
    words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
  }
}

/// What the kernel reads and writes; e and e_next may be null.
struct QuantizeArguments {
  const std::byte* g;
  const float* e;
  float* e_next;
  std::byte* records;
  size_t numel;
  uint32_t* status;
  RoundingSource source;
};

template <class T, int kBits, bool kStochastic>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_kernel(QuantizeArguments a) {
  constexpr int32_t kLimit = (1 << (kBits - 1)) - 1;
  const ChunkRecord record = record_of<kBits>(blockIdx.x, a.numel);
  for (unsigned block = warp_index(); block < kBlocksPerChunk; block += kWarpsPerChunk) {
    const unsigned in_chunk = block * static_cast<unsigned>(kQuantizeBlock);
    if (in_chunk >= record.numel) {
      return;  // the whole warp
    }
    const unsigned mine = in_chunk + lane_index() * kPerThread;
    const size_t first = record.begin + mine;
    float x[kPerThread];
    load_sum<T>(a.g, a.e, first, a.numel, x);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;
      largest = bits > largest && first + i < a.numel ? bits : largest;
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    const BlockScale scale = block_scale(largest, static_cast<float>(kLimit));
    uint32_t random[kPerThread / 2];
    if constexpr (kStochastic) {
      draw_random(a.source, first < a.numel ? first : a.numel - 1, a.numel, random);
    }
    int32_t codes[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if constexpr (kStochastic) {
        const uint32_t half = random[i / 2] >> (i % 2 * 16) & 0xFFFFu;
        codes[i] = stochastic_code(x[i], scale, kLimit, half);
      } else {
        codes[i] = nearest_code(x[i], scale);
      }
      codes[i] = first + i < a.numel ? codes[i] : 0;
      x[i] = x[i] - code_value(codes[i], scale.scale);
    }
    if (a.e_next != nullptr) {
      store_floats<float>(as_bytes(a.e_next), first, a.numel, x);
    }
    if (lane_index() == 0) {
      store_word(a.records + record.scales + block * 4, __float_as_uint(scale.scale));
      if (largest > 0x7F7FFFFFu) {
        atomicOr(a.status, kStatusNonFinite);
      }
    }
    const CodeWord<kBits> word = pack_codes<kBits>(codes);
    std::byte* const out = a.records + record.codes + mine * kBits / 8;
    if (mine + kPerThread <= record.numel) {
      store_word(out, word);
    } else if (mine < record.numel) {
      unsigned char bytes[kBits];
      memcpy(bytes, &word, sizeof word);
#pragma unroll
      for (int i = 0; i < kBits; ++i) {
        if (i * 8 < static_cast<int>(record.numel - mine) * kBits) {
          out[i] = static_cast<std::byte>(bytes[i]);
        }
      }
    }
  }
}

struct DequantizeArguments {
  const std::byte* const* records;  // of each part
  size_t parts;
  float factor;
  std::byte* sum;
  size_t numel;
  uint32_t* status;
};

template <class T, int kBits>
__global__ void __launch_bounds__(kQuantizeThreads) dequantize_kernel(DequantizeArguments a) {
  const ChunkRecord record = record_of<kBits>(blockIdx.x, a.numel);
  for (unsigned mine = threadIdx.x * kPerThread; mine < record.numel;
       mine += kQuantizeThreads * kPerThread) {
    float sum[kPerThread] = {};
    for (size_t part = 0; part < a.parts; ++part) {
      const std::byte* const records = a.records[part];
      const std::byte* const from = records + record.codes + mine * kBits / 8;
      const uint32_t block = mine / static_cast<unsigned>(kQuantizeBlock);
      const uint32_t scale_bits = load_word<uint32_t>(records + record.scales + block * 4);
      CodeWord<kBits> word{};
      if (mine + kPerThread <= record.numel) {
        word = load_word<CodeWord<kBits>>(from);
      } else {
        unsigned char bytes[kBits] = {};
#pragma unroll
        for (int i = 0; i < kBits; ++i) {
          if (i * 8 < static_cast<int>(record.numel - mine) * kBits) {
            bytes[i] = static_cast<unsigned char>(from[i]);
          }
        }
        memcpy(&word, bytes, sizeof word);
      }
      if (scale_bits > 0x7F7FFFFFu) {
        atomicOr(a.status, kStatusMalformed);
        continue;
      }
      int32_t codes[kPerThread];
      unpack_codes<kBits>(word, codes);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        sum[i] += code_value(codes[i], __uint_as_float(scale_bits));
      }
    }
    if (a.factor != 1.0f) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        sum[i] *= a.factor;
      }
    }
    store_floats<T>(a.sum, record.begin + mine, a.numel, sum);
  }
}

}  // namespace gradwire::cuda
