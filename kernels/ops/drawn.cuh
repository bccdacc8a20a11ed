#pragma once
// Records of elements that a draw chooses. A thread block takes a chunk: it draws, goes over all of
// the chunk where a residual is kept, and then over what was chosen.

#include "gradwire/kernels/ops/draw.cuh"
#include "gradwire/kernels/ops/drawn_cuda.h"
#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "gradwire/kernels/ops/records.cuh"
#include "gradwire/kernels/ops/sparse_values.cuh"

namespace gradwire::cuda {

template <SparseStorage kStorage>
inline constexpr uint32_t kRunBegin = kHasRunScale<kStorage> ? 2 : 0;  // in a record

template <SparseStorage kStorage>
__host__ __device__ constexpr uint32_t drawn_record_bytes(uint32_t count) {
  return kRunBegin<kStorage> + (count * kValueBits<kStorage> + 7) / 8;
}

struct EncodeDrawnArguments {
  EncodeMemory memory;
  uint32_t per_chunk;
  size_t first_chunk;  // of g in the group
  DrawnGroup group;
  StepWords* step;
  const DevicePart* parts;  // what g is the sum of
  size_t count;
  bool scale_up;
  ValueCodes codes;
  Seal seal;
  ParityPointer masked;
};

/// What this call draws. The first block also checks that all parts did.
__device__ inline uint32_t draw_of_call(const EncodeDrawnArguments& a) {
  if (a.count == 0) {
    return draw_in_step(a.group, a.step->step);
  }
  const uint32_t draw = a.parts[0].variant;
  if (blockIdx.x == 0) {
    for (size_t i = threadIdx.x; i < a.count; i += kRecordThreads) {
      if (a.parts[i].variant != draw) {
        report_fault(a.step, i, FaultReason::kVariant);
      }
    }
  }
  return draw;
}

/// x of the whole chunk, into e_next where there is one. @returns the thread's largest magnitude.
template <class T>
__device__ __forceinline__ uint32_t add_residual(const EncodeMemory& m, size_t begin,
                                                 uint32_t numel) {
  float* const next = m.e_next.get();
  uint32_t largest = 0;
  for (unsigned mine = threadIdx.x * kPerThread; mine < numel; mine += kRoundElements) {
    float x[kPerThread];
    load_scaled_sum<T>(m, begin + mine, x);
    const uint32_t of_x = largest_of(x, begin + mine, m.numel);
    largest = of_x > largest ? of_x : largest;
    if (next != nullptr && as_bytes(next) != m.g) {
      store_floats<float>(as_bytes(next), begin + mine, m.numel, x);
    }
  }
  return largest;
}

/// As casts do: what is finite stays finite.
__device__ __forceinline__ float scaled_up(float x, float factor) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if ((__float_as_uint(x) & 0x7FFFFFFFu) > kLargestFinite) {
    return x;
  }
  const float scaled = x * factor;
  return scaled < -kMost ? -kMost : scaled > kMost ? kMost : scaled;
}

template <class T, SparseStorage kStorage>
__global__ void __launch_bounds__(kRecordThreads) encode_drawn_kernel(EncodeDrawnArguments a) {
  GRADWIRE_SHARED(room, DrawRoom);
  GRADWIRE_SHARED(values, float[kChunk]);
  GRADWIRE_SHARED(largest, uint32_t);
  const EncodeMemory m = settled(a.memory);
  const uint32_t draw = draw_of_call(a);
  const size_t begin = blockIdx.x * kChunk;
  const uint32_t numel = chunk_numel(m.numel, blockIdx.x);
  const uint32_t count = kept_in_chunk(a.per_chunk, numel);
  if (threadIdx.x == 0) {
    largest = 0;
  }
  if (add_residual<T>(m, begin, numel) > kLargestFinite) {
    atomicOr(m.flags, kStatusNonFinite);
  }
  // Its barriers stand between what e_next got above and what is read below.
  draw_in_chunk(draw, static_cast<uint32_t>(a.first_chunk + blockIdx.x), numel, count, room);
  float* const next = m.e_next.get();
  const float factor = a.scale_up ? static_cast<float>(numel) / static_cast<float>(count) : 1.0f;
  float* const masked = a.masked.get();
  uint32_t mine = 0;
  for (uint32_t j = threadIdx.x; j < count; j += kRecordThreads) {
    const size_t at = begin + room.chosen[j];
    if (masked != nullptr) {
      masked[at] = 0.0f;
    }
    const float x = next != nullptr ? next[at] : m.scale * load_float<T>(m.g, at);
    values[j] = a.scale_up ? scaled_up(x, factor) : x;
    const uint32_t bits = __float_as_uint(values[j]) & 0x7FFFFFFFu;
    mine = bits > mine ? bits : mine;
  }
  if (mine > 0) {
    atomicMax(&largest, mine);
  }
  __syncthreads();
  const bool finite = largest <= kLargestFinite;
  if (!finite) {  // the same for all threads, of which each has its own values to clear
    for (uint32_t j = threadIdx.x; j < count; j += kRecordThreads) {
      values[j] = 0.0f;
    }
    __syncthreads();
  }
  std::byte* const record =
      m.records + blockIdx.x * size_t{drawn_record_bytes<kStorage>(a.per_chunk)};
  float* const back = m.put_back.get();
  if (count > 0) {  // else there is no chunk, but a header
    write_values<kStorage>(
        {values, count, finite ? largest : 0, record, record + kRunBegin<kStorage>}, a.codes,
        [&](uint32_t j) { return (a.first_chunk + blockIdx.x) * kChunk + room.chosen[j]; },
        [&](uint32_t j, float decoded) {
          const size_t at = begin + room.chosen[j];
          if (back != nullptr) {
            back[at] = back[at] + (load_float<T>(m.g, at) - decoded / m.scale);
          } else if (next != nullptr && finite) {
            next[at] = next[at] - decoded;
          }
        });
  }
  Seal seal = a.seal;
  seal.header.variant = draw;
  seal_payload(seal);
}

struct SumDrawnArguments {
  const DevicePart* parts;
  size_t count;
  size_t first_chunk;  // of the sum in the group
  uint32_t per_chunk;
  float factor;
  CodeFormat codes;  // of eight bits
  std::byte* sum;
  size_t numel;
  StepWords* step;
  bool onto;  // the one part is added to what the sum holds
  SumFaults overflow;
};

/// A block owns a chunk of the sum. What one part chose is distinct, and in the same places for
/// others of its draw: there each thread adds to its own.
template <class T, SparseStorage kStorage>
__global__ void __launch_bounds__(kRecordThreads) sum_drawn_kernel(SumDrawnArguments a) {
  GRADWIRE_SHARED(room, DrawRoom);
  GRADWIRE_SHARED(sum, float[kChunk]);
  const size_t chunk = a.first_chunk + blockIdx.x;
  const size_t begin = blockIdx.x * kChunk;
  const uint32_t numel = chunk_numel(a.numel, blockIdx.x);
  const uint32_t count = kept_in_chunk(a.per_chunk, numel);
  for (uint32_t i = threadIdx.x; i < kChunk && !a.onto; i += kRecordThreads) {
    sum[i] = 0.0f;
  }
  bool drawn = false;
  uint32_t draw = 0;
  for (size_t i = 0; i < a.count; ++i) {
    const DevicePart part = a.parts[i];
    if (!holds_chunk(part, chunk)) {
      continue;
    }
    if (!drawn || part.variant != draw) {
      __syncthreads();  // the sum is cleared, the places of another draw are done with
      drawn = true;
      draw = part.variant;
      draw_in_chunk(draw, static_cast<uint32_t>(chunk), numel, count, room);
    }
    const std::byte* const record =
        part.body + (chunk - part.first_chunk) * drawn_record_bytes<kStorage>(a.per_chunk);
    bfloat16 scale{0};
    if constexpr (kHasRunScale<kStorage>) {
      scale.bits = load_word<uint16_t>(record);
      if (scale.bits >= kInfinityBrain) {
        if (threadIdx.x == 0) {
          report_fault(a.step, i, FaultReason::kScale);
        }
        continue;
      }
    }
    const std::byte* const run = record + kRunBegin<kStorage>;
    for (uint32_t j = threadIdx.x; j < count; j += kRecordThreads) {
      const uint32_t at = room.chosen[j];
      const float value = unpack_value<kStorage>(run, j, to_float(scale), a.codes);
      if (a.onto) {
        store_float<T>(a.sum, begin + at, load_float<T>(a.sum, begin + at) + value);
      } else {
        sum[at] += value;
      }
    }
  }
  if (a.onto) {
    return;
  }
  __syncthreads();
  for (unsigned mine = threadIdx.x * kPerThread; mine < numel; mine += kRoundElements) {
    float x[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = a.factor == 1.0f ? sum[mine + i] : sum[mine + i] * a.factor;
    }
    report_overflow(a.overflow, largest_of(x, mine, numel));
    store_floats<T>(a.sum, begin + mine, a.numel, x);
  }
}

}  // namespace gradwire::cuda
