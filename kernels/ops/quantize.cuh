#pragma once
// A thread takes 8 elements, a thread block a chunk in two rounds of 2048. Blocks of up to 256
// elements lie in a warp, which finds their maximum in registers; larger ones meet in shared memory.
// Reads g and e once, writes e_next and codes once.

#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/quantize_element.h"
#include "gradwire/kernels/ops/records.cuh"

namespace gradwire::cuda {

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

struct QuantizeArguments {
  EncodeMemory memory;
  unsigned block;
  unsigned shift;  // its logarithm
  size_t first;  // of g in the group
  RoundingSource source;
  Seal seal;
  int32_t levels;  // of codes that have some
};

/// What a thread knows of its elements' block.
struct BlockFacts {
  uint32_t largest;  // magnitude, as bits
  BlockScale scale;
};

/// Codes and residual of the thread's 8 elements from `mine` of the chunk on; hand_over(x) gives the
/// elements.
template <class T, class C, bool kStochastic, class HandOver>
__device__ __forceinline__ void write_codes(const QuantizeArguments& a, const ChunkRecord& record,
                                            unsigned mine, const BlockFacts& block,
                                            const HandOver& hand_over) {
  constexpr int kBits = C::kBits;
  const int32_t limit = C::kHasLevels ? a.levels : (1 << (kBits - 1)) - 1;
  const BlockScale scale = block.scale;
  if (mine >= record.numel) {
    return;
  }
  const EncodeMemory& m = a.memory;
  const size_t first = record.begin + mine;
  uint32_t random[kPerThread / 2];
  if constexpr (kStochastic) {
    draw_random(a.source, a.first + first, a.first + m.numel, random);
  }
  float x[kPerThread];
  hand_over(x);
  int32_t codes[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if constexpr (kStochastic) {
      const uint32_t half = random[i / 2] >> (i % 2 * 16) & 0xFFFFu;
      codes[i] = stochastic_code_of(C::kFormat, x[i], scale, limit, half);
    } else {
      codes[i] = nearest_code_of(C::kFormat, x[i], scale);
    }
    codes[i] = mine + i < record.numel ? codes[i] : 0;
  }
  if ((mine & (a.block - 1)) == 0) {
    store_word(m.records + record.scales + (mine >> a.shift) * 4, __float_as_uint(scale.scale));
    if (block.largest > kLargestFinite) {
      atomicOr(m.flags, kStatusNonFinite);
    }
  }
  store_residual<T>(m, first, x,
                    [&](int i) { return code_value_of(C::kFormat, codes[i], scale.scale); });
  const CodeWord<kBits> word = pack_codes<kBits>(codes);
  std::byte* const out = m.records + record.codes + mine * kBits / 8;
  if (mine + kPerThread <= record.numel) {
    store_word(out, word);
  } else {
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

/// The sum of the squares of factor * x over a thread's 8 elements from `first` on.
__device__ __forceinline__ float squares_of(const float (&x)[kPerThread], float factor, size_t first,
                                            size_t numel) {
  float t[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    t[i] = first + i < numel ? x[i] * factor : 0.0f;
    t[i] *= t[i];
  }
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/// Adds up what each of `threads` neighbouring threads has; all of them get the sum.
__device__ __forceinline__ float add_threads(float mine, unsigned threads) {
  for (unsigned width = threads / 2; width > 0; width /= 2) {
    mine += __shfl_xor_sync(kAllLanes, mine, static_cast<int>(width));
  }
  return mine;
}

/// kWide: blocks of more than 256 elements.
template <class T, class C, bool kStochastic, bool kWide>
__global__ void __launch_bounds__(kRecordThreads) quantize_kernel(QuantizeArguments a) {
  const ChunkRecord record = record_of(blockIdx.x, a.memory.numel, C::kBits, a.block);
  if constexpr (kWide) {
    GRADWIRE_SHARED(maxima, uint32_t[kChunk / kWarpElements]);
    GRADWIRE_SHARED(held, float[kRecordRounds][kPerThread][kRecordThreads]);
#pragma unroll 1
    for (unsigned round = 0; round < kRecordRounds; ++round) {
      const size_t first = record.begin + round * kRoundElements + threadIdx.x * kPerThread;
      float x[kPerThread];
      load_scaled_sum<T>(a.memory, first, x);
      const uint32_t largest = largest_of(x, first, a.memory.numel);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        held[round][i][threadIdx.x] = x[i];
      }
      maxima[round * kRecordWarps + warp_index()] = __reduce_max_sync(kAllLanes, largest);
    }
    __syncthreads();
    const unsigned warps = a.block / kWarpElements;
    const auto begin_of = [&](unsigned round) {
      return (round * kRecordWarps + warp_index()) / warps * warps;
    };
    const auto largest_in = [&](unsigned round) {
      uint32_t largest = 0;
#pragma unroll 1
      for (unsigned warp = begin_of(round); warp < begin_of(round) + warps; ++warp) {
        largest = maxima[warp] > largest ? maxima[warp] : largest;
      }
      return largest;
    };
    const auto take_up = [&](unsigned round, float (&x)[kPerThread]) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        x[i] = held[round][i][threadIdx.x];
      }
    };
    [[maybe_unused]] const BlockScale* scales = nullptr;
    if constexpr (C::kHasLevels) {
      GRADWIRE_SHARED(squares, float[kChunk / kWarpElements]);
      GRADWIRE_SHARED(scales_of_blocks, BlockScale[kRecordWarps]);
#pragma unroll 1
      for (unsigned round = 0; round < kRecordRounds; ++round) {
        const size_t first = record.begin + round * kRoundElements + threadIdx.x * kPerThread;
        float x[kPerThread];
        take_up(round, x);
        const float factor = square_factor(largest_in(round));
        squares[round * kRecordWarps + warp_index()] =
            add_threads(squares_of(x, factor, first, a.memory.numel), kWarp);
      }
      __syncthreads();
      // A thread per block: the root and the divisions take registers that all would pay for below.
      if (threadIdx.x * a.block < kChunk) {
        uint32_t largest = 0;
        float sum = 0.0f;
#pragma unroll 1
        for (unsigned warp = threadIdx.x * warps; warp < (threadIdx.x + 1) * warps; ++warp) {
          largest = maxima[warp] > largest ? maxima[warp] : largest;
          sum += squares[warp];
        }
        scales_of_blocks[threadIdx.x] = norm_scale(largest, sum, square_factor(largest), a.levels);
      }
      __syncthreads();
      scales = scales_of_blocks;
    }
#pragma unroll 1
    for (unsigned round = 0; round < kRecordRounds; ++round) {
      BlockFacts block{largest_in(round), {}};
      if constexpr (C::kHasLevels) {
        block.scale = scales[begin_of(round) / warps];
      } else {
        block.scale = block_scale_of(C::kFormat, C::kBits, block.largest);
      }
      const unsigned mine = round * kRoundElements + threadIdx.x * kPerThread;
      write_codes<T, C, kStochastic>(a, record, mine, block,
                                     [&](float (&x)[kPerThread]) { take_up(round, x); });
    }
  } else {
    for (unsigned mine = threadIdx.x * kPerThread;
         mine - lane_index() * kPerThread < record.numel; mine += kRoundElements) {
      float x[kPerThread];
      load_scaled_sum<T>(a.memory, record.begin + mine, x);
      uint32_t largest = largest_of(x, record.begin + mine, a.memory.numel);
      if (a.block == kWarpElements) {
        largest = __reduce_max_sync(kAllLanes, largest);
      } else {
        for (unsigned width = a.block / kPerThread / 2; width > 0; width /= 2) {
          const uint32_t other = __shfl_xor_sync(kAllLanes, largest, static_cast<int>(width));
          largest = other > largest ? other : largest;
        }
      }
      BlockFacts block{largest, {}};
      if constexpr (C::kHasLevels) {
        const float factor = square_factor(largest);
        const float squares = squares_of(x, factor, record.begin + mine, a.memory.numel);
        block.scale = norm_scale(largest, add_threads(squares, a.block / kPerThread), factor, a.levels);
      } else {
        block.scale = block_scale_of(C::kFormat, C::kBits, largest);
      }
      write_codes<T, C, kStochastic>(a, record, mine, block, [&](float (&to)[kPerThread]) {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
          to[i] = x[i];
        }
      });
    }
  }
  seal_payload(a.seal);
}

template <class T, class C>
__global__ void __launch_bounds__(kRecordThreads) dequantize_kernel(SumArguments a) {
  constexpr int kBits = C::kBits;
  const ChunkRecord in_sum = record_of(blockIdx.x, a.numel, kBits, a.block);
  const size_t chunk = a.first_chunk + blockIdx.x;
  const size_t record_bytes = quantized_record_bytes(kChunk, kBits, a.block);
  for (unsigned mine = threadIdx.x * kPerThread; mine < in_sum.numel; mine += kRoundElements) {
    const unsigned scale_at = (mine >> a.shift) * 4;
    const size_t codes_at = in_sum.codes - in_sum.scales + mine * kBits / 8;
    float sum[kPerThread];
    if (!begin_sum<T>(a, chunk, in_sum.begin + mine, sum)) {
      return;
    }
    for (size_t part = 0; part < a.count; ++part) {
      const DevicePart& from = a.parts[part];
      if (!holds_chunk(from, chunk)) {
        continue;
      }
      const std::byte* const record = from.body + (chunk - from.first_chunk) * record_bytes;
      const uint32_t scale_bits = load_word<uint32_t>(record + scale_at);
      CodeWord<kBits> word{};
      if (mine + kPerThread <= in_sum.numel) {
        word = load_word<CodeWord<kBits>>(record + codes_at);
      } else {
        unsigned char bytes[kBits] = {};
#pragma unroll
        for (int i = 0; i < kBits; ++i) {
          if (i * 8 < static_cast<int>(in_sum.numel - mine) * kBits) {
            bytes[i] = static_cast<unsigned char>(record[codes_at + i]);
          }
        }
        memcpy(&word, bytes, sizeof word);
      }
      if (scale_bits > kLargestFinite) {
        report_fault(a.step, part, FaultReason::kScale);
        continue;
      }
      int32_t codes[kPerThread];
      unpack_codes<kBits>(word, codes);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        sum[i] += code_value_of(C::kFormat, codes[i], __uint_as_float(scale_bits));
      }
    }
    store_sum<T>(a, in_sum.begin + mine, sum);
  }
}

}  // namespace gradwire::cuda
