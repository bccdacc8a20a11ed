#pragma once
// The sum of magnitudes has one order, 32 strided lanes: elements are loaded 8 to a thread, laid
// down in shared memory, and taken up again by the lanes of a warp. A warp adds up the blocks of its
// 256 elements alone; larger blocks wait for the whole chunk, then each has a warp.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/records.cuh"
#include "gradwire/kernels/ops/signs_cuda.h"

namespace gradwire::cuda {

struct SignsArguments {
  EncodeMemory memory;
  unsigned block;
  unsigned shift;  // its logarithm
  Seal seal;
};

/// Lane l has the magnitudes of elements l, l + 32, ... of a block (of its `width` elements, where
/// they are fewer than 32, like the other blocks in the same lanes). @returns their sum in the first
/// lane of the block.
__device__ __forceinline__ float sum_lanes(const float* x, unsigned rows, unsigned width,
                                           float factor) {
  float sum = 0.0f;
#pragma unroll 2
  for (unsigned row = 0; row < rows; ++row) {
    sum += fabsf(x[row * kWarp + lane_index()]) * factor;
  }
#pragma unroll 1
  for (unsigned delta = width / 2; delta > 0; delta /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, delta, static_cast<int>(width));
  }
  return sum;
}

/// One warp: the scale of the block that begins at x and has `rows` rows, or of the blocks of
/// `width` elements in one row. x holds zeros where there are no elements.
/// @returns it in the first lane of a block.
__device__ inline float scale_of(const float* x, unsigned rows, unsigned width, unsigned count,
                                 uint32_t* flags) {
  const float sum = sum_lanes(x, rows, width, 1.0f);
  const bool fits = (__float_as_uint(sum) & 0x7FFFFFFFu) <= kLargestFinite;
  const float numel = static_cast<float>(count);
  const bool mine = lane_index() % width == 0 && count > 0;
  if (__any_sync(kAllLanes, mine && !fits ? 1 : 0) == 0) {
    return count > 0 ? sum / numel : 0.0f;
  }
  uint32_t largest = 0;
#pragma unroll 1
  for (unsigned row = 0; row < rows; ++row) {
    const uint32_t bits = __float_as_uint(x[row * kWarp + lane_index()]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
#pragma unroll 1
  for (unsigned delta = width / 2; delta > 0; delta /= 2) {
    const uint32_t other =
        __shfl_down_sync(kAllLanes, largest, delta, static_cast<int>(width));
    largest = other > largest ? other : largest;
  }
  const float mean = sum_lanes(x, rows, width, 0x1p-12f) / numel;
  if (!mine || fits) {
    return count > 0 ? sum / numel : 0.0f;
  }
  if (largest > kLargestFinite) {
    atomicOr(flags, kStatusNonFinite);
    return 0.0f;
  }
  const float scale = mean * 0x1p12f;
  return __float_as_uint(scale) <= kLargestFinite ? scale : std::numeric_limits<float>::max();
}

/// Bits and residual of the thread's 8 elements from `mine` of the chunk on.
template <class T>
__device__ __forceinline__ void write_signs(const SignsArguments& a, const EncodeMemory& m,
                                            const ChunkRecord& record, unsigned mine, float scale,
                                            float (&x)[kPerThread]) {
  if (mine >= record.numel) {
    return;
  }
  uint32_t negative = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const bool minus = scale != 0.0f && mine + i < record.numel && x[i] < 0.0f;
    negative |= minus ? 1u << i : 0u;
  }
  const std::byte bits{static_cast<unsigned char>(negative)};
  m.records[record.codes + mine / kPerThread] = bits;
  if ((mine & (a.block - 1)) == 0) {
    store_word(m.records + record.scales + (mine >> a.shift) * 4, __float_as_uint(scale));
  }
  store_residual<T>(m, record.begin + mine, x,
                    [&](int i) { return (negative >> i & 1u) != 0 ? -scale : scale; });
}

/// Lays a thread's 8 elements down at `to`; zeros where there are none.
template <class T>
__device__ __forceinline__ void lay_down(const EncodeMemory& m, size_t first, float* to) {
  float x[kPerThread];
  load_scaled_sum<T>(m, first, x);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    to[i] = x[i];
  }
}

__device__ __forceinline__ void take_up(const float* from, float (&x)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = from[i];
  }
}

/// The elements of a block that begins at `begin` of the chunk.
__device__ __forceinline__ unsigned count_from(const ChunkRecord& record, unsigned begin,
                                               unsigned block) {
  const unsigned left = begin < record.numel ? record.numel - begin : 0;
  return left < block ? left : block;
}

/// kWide: blocks of more than 256 elements.
template <class T, bool kWide>
__global__ void __launch_bounds__(kRecordThreads) encode_signs_kernel(SignsArguments a) {
  const ChunkRecord record = record_of(blockIdx.x, a.memory.numel, 1, a.block);
  const EncodeMemory m = settled(a.memory);
  if constexpr (kWide) {
    GRADWIRE_SHARED(held, float[kChunk]);
    GRADWIRE_SHARED(scales, float[kRecordWarps]);
    for (unsigned mine = threadIdx.x * kPerThread; mine < kChunk; mine += kRoundElements) {
      lay_down<T>(m, record.begin + mine, held + mine);
    }
    __syncthreads();
    const unsigned begin = warp_index() << a.shift;
    if (begin < kChunk) {
      const float scale = scale_of(held + begin, a.block / kWarp, kWarp,
                                   count_from(record, begin, a.block), a.memory.flags);
      if (lane_index() == 0) {
        scales[warp_index()] = scale;
      }
    }
    __syncthreads();
    for (unsigned mine = threadIdx.x * kPerThread; mine < kChunk; mine += kRoundElements) {
      float x[kPerThread];
      take_up(held + mine, x);
      write_signs<T>(a, m, record, mine, scales[mine >> a.shift], x);
    }
  } else {
    GRADWIRE_SHARED(held, float[kRecordThreads * kPerThread]);
    GRADWIRE_SHARED(scales, float[kRecordThreads]);  // of each thread's block
    float* const of_warp = held + warp_index() * kWarpElements;
    float* const scale_of_thread = scales + warp_index() * kWarp;
    for (unsigned first = warp_index() * kWarpElements; first < record.numel;
         first += kRoundElements) {
      const unsigned mine = first + lane_index() * kPerThread;
      lay_down<T>(m, record.begin + mine, of_warp + lane_index() * kPerThread);
      __syncwarp();
      const unsigned rows = a.block > kWarp ? a.block / kWarp : 1;
      const unsigned width = a.block < kWarp ? a.block : kWarp;
      for (unsigned begin = 0; begin < kWarpElements; begin += rows * kWarp) {
        const unsigned in_warp = begin + lane_index() / width * width;
        const float scale = scale_of(of_warp + begin, rows, width,
                                     count_from(record, first + in_warp, a.block), a.memory.flags);
        if (lane_index() % width == 0) {
          for (unsigned i = 0; i < a.block / kPerThread; ++i) {
            scale_of_thread[in_warp / kPerThread + i] = scale;
          }
        }
      }
      __syncwarp();
      float x[kPerThread];
      take_up(of_warp + lane_index() * kPerThread, x);
      write_signs<T>(a, m, record, mine, scale_of_thread[lane_index()], x);
      __syncwarp();
    }
  }
  seal_payload(a.seal);
}

template <class T>
__global__ void __launch_bounds__(kRecordThreads) sum_signs_kernel(SumArguments a) {
  GRADWIRE_SHARED(table, ChunkRecords::Table);
  const ChunkRecord in_sum = record_of(blockIdx.x, a.numel, 1, a.block);
  const size_t chunk = a.first_chunk + blockIdx.x;
  const ChunkRecords records(a, chunk, quantized_record_bytes(kChunk, 1, a.block), table);
  for (unsigned mine = threadIdx.x * kPerThread; mine < in_sum.numel; mine += kRoundElements) {
    const unsigned scale_at = (mine >> a.shift) * 4;
    const size_t bits_at = in_sum.codes - in_sum.scales + mine / kPerThread;
    float sum[kPerThread];
    if (!begin_sum<T>(a, chunk, in_sum.begin + mine, sum)) {
      return;
    }
#pragma unroll 1
    for (size_t part = 0; part < a.count; part += kPartsAtOnce) {
      const std::byte* record[kPartsAtOnce];
      uint32_t scale[kPartsAtOnce] = {}, negative[kPartsAtOnce] = {};
#pragma unroll
      for (unsigned i = 0; i < kPartsAtOnce; ++i) {
        record[i] = part + i < a.count ? records[part + i] : nullptr;
        if (record[i] != nullptr) {
          scale[i] = load_word<uint32_t>(record[i] + scale_at);
          negative[i] = static_cast<uint32_t>(record[i][bits_at]);
        }
      }
#pragma unroll
      for (unsigned i = 0; i < kPartsAtOnce; ++i) {
        if (record[i] == nullptr) {
          continue;
        }
        if (scale[i] > kLargestFinite) {
          report_fault(a.step, part + i, FaultReason::kScale);
          continue;
        }
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          sum[k] += __uint_as_float(scale[i] | (negative[i] >> k & 1u) << 31);
        }
      }
    }
    store_sum<T>(a, in_sum.begin + mine, sum);
  }
}

}  // namespace gradwire::cuda
