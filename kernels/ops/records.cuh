#pragma once
// What kernels share that write and add up records of fixed length: a chunk's scales, then its
// codes. A thread block takes a chunk, a thread 8 elements at a time.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kRecordThreads = 256;
inline constexpr unsigned kRecordWarps = kRecordThreads / kWarp;
inline constexpr unsigned kRoundElements = kRecordThreads * kPerThread;
inline constexpr unsigned kRecordRounds = kChunk / kRoundElements;
inline constexpr unsigned kWarpElements = kWarp * kPerThread;
inline constexpr uint32_t kLargestFinite = 0x7F7FFFFF;

/// Where a chunk's record lies, and how long the chunk is.
struct ChunkRecord {
  size_t begin;    // of the chunk in the group
  unsigned numel;  // of the chunk
  size_t scales;   // in the records
  size_t codes;
};

__device__ __forceinline__ ChunkRecord record_of(size_t chunk, size_t numel, int bits,
                                                 unsigned block) {
  const size_t begin = chunk * kChunk;
  const size_t left = numel - begin;
  const unsigned mine = left < kChunk ? static_cast<unsigned>(left) : kChunk;
  const size_t scales = chunk * quantized_record_bytes(kChunk, bits, block);
  return {begin, mine, scales, scales + (mine + block - 1) / block * 4};
}

/// What an encoding kernel reads and writes; what is not wanted is null.
struct EncodeMemory {
  const std::byte* g;
  float scale;  // of g; 1 where there is e
  ParityPointer e;
  ParityPointer e_next;
  ParityPointer put_back;
  std::byte* records;
  size_t numel;
  uint32_t* flags;
};

/// The same with the parity read, once for the kernel.
__device__ __forceinline__ EncodeMemory settled(EncodeMemory m) {
  m.e = m.e.settled();
  m.e_next = m.e_next.settled();
  m.put_back = m.put_back.settled();
  return m;
}

/// x = scale * g + e.
template <class T>
__device__ __forceinline__ void load_scaled_sum(const EncodeMemory& m, size_t first,
                                                float (&x)[kPerThread]) {
  load_sum<T>(m.g, m.e.get(), first, m.numel, x);
  if (m.scale != 1.0f) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = m.scale * x[i];
    }
  }
}

/// e_next or put_back of 8 elements from `first` on; decoded(i) is what element i decodes to.
template <class T, class Decoded>
__device__ __forceinline__ void store_residual(const EncodeMemory& m, size_t first,
                                               float (&x)[kPerThread], const Decoded& decoded) {
  if (float* const put_back = m.put_back.get()) {
    load_floats<T>(m.g, first, m.numel, x);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = x[i] - decoded(i) / m.scale;
    }
    float residual[kPerThread];
    load_floats<float>(as_bytes(put_back), first, m.numel, residual);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = residual[i] + x[i];
    }
    store_floats<float>(as_bytes(put_back), first, m.numel, x);
  } else if (float* const e_next = m.e_next.get()) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = x[i] - decoded(i);
    }
    store_floats<float>(as_bytes(e_next), first, m.numel, x);
  }
}

/// What an adding kernel reads and writes.
struct SumArguments {
  const DevicePart* parts;
  size_t count;
  size_t first_chunk;  // of the sum in the group
  unsigned block;
  unsigned shift;  // its logarithm
  float factor;
  std::byte* sum;
  size_t numel;
  StepWords* step;
  bool onto;  // the one part is added to what the sum holds
  SumFaults overflow;
};

inline constexpr unsigned kTabledParts = 128;
inline constexpr unsigned kPartsAtOnce = 4;  // whose records are under way together

/// Where a chunk's record lies in each part, looked up once for a thread block; null in parts that
/// do not hold the chunk.
class ChunkRecords {
 public:
  using Table = const std::byte* [kTabledParts];

  /// By all threads; ends behind a barrier.
  __device__ __forceinline__ ChunkRecords(const SumArguments& a, size_t chunk, size_t record_bytes,
                                          Table& table)
      : a_(a), chunk_(chunk), record_bytes_(record_bytes), table_(table) {
    for (unsigned part = threadIdx.x; part < kTabledParts && part < a.count; part += blockDim.x) {
      table[part] = look_up(part);
    }
    __syncthreads();
  }
  __device__ __forceinline__ const std::byte* operator[](size_t part) const {
    return part < kTabledParts ? table_[part] : look_up(part);
  }

 private:
  __device__ __forceinline__ const std::byte* look_up(size_t part) const {
    const DevicePart& from = a_.parts[part];
    return holds_chunk(from, chunk_) ? from.body + (chunk_ - from.first_chunk) * record_bytes_
                                     : nullptr;
  }

  const SumArguments& a_;
  const size_t chunk_, record_bytes_;
  Table& table_;
};

/// What 8 elements of the sum begin with. @returns false where there is nothing to add onto them.
template <class T>
__device__ __forceinline__ bool begin_sum(const SumArguments& a, size_t chunk, size_t first,
                                          float (&sum)[kPerThread]) {
  if (!a.onto) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sum[i] = 0.0f;
    }
    return true;
  }
  if (!holds_chunk(a.parts[0], chunk)) {
    return false;
  }
  load_floats<T>(a.sum, first, a.numel, sum);
  return true;
}

template <class T>
__device__ __forceinline__ void store_sum(const SumArguments& a, size_t first,
                                          float (&sum)[kPerThread]) {
  if (a.factor != 1.0f) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sum[i] *= a.factor;
    }
  }
  report_overflow(a.overflow, largest_of(sum, first, a.numel));
  store_floats<T>(a.sum, first, a.numel, sum);
}

}  // namespace gradwire::cuda
