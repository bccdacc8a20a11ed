#pragma once
// A thread takes 8 elements, a thread block a chunk in two rounds of 2048. Blocks of up to 256
// elements lie in a warp, which finds their maximum in registers; larger ones meet in shared memory.
// Reads g and e once, writes e_next and codes once.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/quantize_element.h"
#include "gradwire/kernels/ops/random_halves.cuh"
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
__device__ __forceinline__ void write_codes(const QuantizeArguments& a, const EncodeMemory& m,
                                            const SegmentsOfChunk& segments,
                                            const ChunkRecord& record, unsigned mine,
                                            const BlockFacts& block, const HandOver& hand_over) {
  constexpr int kBits = C::kBits;
  const int32_t limit = C::kHasLevels ? a.levels : (1 << (kBits - 1)) - 1;
  const BlockScale scale = block.scale;
  if (mine >= record.numel) {
    return;
  }
  const size_t first = record.begin + mine;
  uint32_t random[kPerThread / 2];
  if constexpr (kStochastic) {
    draw_random(a.source, segments, a.first + first, a.first + m.numel, random);
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
  const EncodeMemory m = settled(a.memory);
  SegmentsOfChunk segments{};
  if constexpr (kStochastic) {
    GRADWIRE_SHARED(found, uint32_t[2]);
    segments = find_segments(a.source, a.first + record.begin, record.numel, found);
  }
  if constexpr (kWide) {
    GRADWIRE_SHARED(maxima, uint32_t[kChunk / kWarpElements]);
    GRADWIRE_SHARED(held, float[kRecordRounds][kPerThread][kRecordThreads]);
#pragma unroll 1
    for (unsigned round = 0; round < kRecordRounds; ++round) {
      const size_t first = record.begin + round * kRoundElements + threadIdx.x * kPerThread;
      float x[kPerThread];
      load_scaled_sum<T>(m, first, x);
      const uint32_t largest = largest_of(x, first, m.numel);
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
            add_threads(squares_of(x, factor, first, m.numel), kWarp);
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
      write_codes<T, C, kStochastic>(a, m, segments, record, mine, block,
                                     [&](float (&x)[kPerThread]) { take_up(round, x); });
    }
  } else {
    for (unsigned mine = threadIdx.x * kPerThread;
         mine - lane_index() * kPerThread < record.numel; mine += kRoundElements) {
      float x[kPerThread];
      load_scaled_sum<T>(m, record.begin + mine, x);
      uint32_t largest = largest_of(x, record.begin + mine, m.numel);
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
        const float squares = squares_of(x, factor, record.begin + mine, m.numel);
        block.scale = norm_scale(largest, add_threads(squares, a.block / kPerThread), factor, a.levels);
      } else {
        block.scale = block_scale_of(C::kFormat, C::kBits, largest);
      }
      write_codes<T, C, kStochastic>(a, m, segments, record, mine, block,
                                     [&](float (&to)[kPerThread]) {
#pragma unroll
                                       for (int i = 0; i < kPerThread; ++i) {
                                         to[i] = x[i];
                                       }
                                     });
    }
  }
  seal_payload(a.seal);
}

/// A thread's 8 codes in one part, and their scale; nothing where the part does not hold the chunk.
template <int kBits>
struct PartCodes {
  const std::byte* record;
  uint32_t scale;
  CodeWord<kBits> word;
};

template <int kBits>
__device__ __forceinline__ PartCodes<kBits> load_codes(const std::byte* record, size_t scale_at,
                                                       size_t codes_at, unsigned count) {
  PartCodes<kBits> codes{record, 0, {}};
  if (record == nullptr) {
    return codes;
  }
  codes.scale = load_word<uint32_t>(record + scale_at);
  if (count >= kPerThread) {
    codes.word = load_word<CodeWord<kBits>>(record + codes_at);
    return codes;
  }
  unsigned char bytes[kBits] = {};
#pragma unroll
  for (int i = 0; i < kBits; ++i) {
    if (i * 8 < static_cast<int>(count) * kBits) {
      bytes[i] = static_cast<unsigned char>(record[codes_at + i]);
    }
  }
  memcpy(&codes.word, bytes, sizeof codes.word);
  return codes;
}

template <class T, class C>
__global__ void __launch_bounds__(kRecordThreads) dequantize_kernel(SumArguments a) {
  constexpr int kBits = C::kBits;
  GRADWIRE_SHARED(table, ChunkRecords::Table);
  const ChunkRecord in_sum = record_of(blockIdx.x, a.numel, kBits, a.block);
  const size_t chunk = a.first_chunk + blockIdx.x;
  const ChunkRecords records(a, chunk, quantized_record_bytes(kChunk, kBits, a.block), table);
  for (unsigned mine = threadIdx.x * kPerThread; mine < in_sum.numel; mine += kRoundElements) {
    const unsigned scale_at = (mine >> a.shift) * 4;
    const size_t codes_at = in_sum.codes - in_sum.scales + mine * kBits / 8;
    float sum[kPerThread];
    if (!begin_sum<T>(a, chunk, in_sum.begin + mine, sum)) {
      return;
    }
#pragma unroll 1
    for (size_t part = 0; part < a.count; part += kPartsAtOnce) {
      PartCodes<kBits> loaded[kPartsAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kPartsAtOnce; ++i) {
        loaded[i] = load_codes<kBits>(part + i < a.count ? records[part + i] : nullptr, scale_at,
                                      codes_at, in_sum.numel - mine);
      }
#pragma unroll
      for (unsigned i = 0; i < kPartsAtOnce; ++i) {
        if (loaded[i].record == nullptr) {
          continue;
        }
        if (loaded[i].scale > kLargestFinite) {
          report_fault(a.step, part + i, FaultReason::kScale);
          continue;
        }
        int32_t codes[kPerThread];
        unpack_codes<kBits>(loaded[i].word, codes);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          sum[k] += code_value_of(C::kFormat, codes[k], __uint_as_float(loaded[i].scale));
        }
      }
    }
    store_sum<T>(a, in_sum.begin + mine, sum);
  }
}

}  // namespace gradwire::cuda
