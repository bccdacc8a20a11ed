#pragma once
// The sum of checked payloads over some elements, in the shared memory of a thread block: each
// element begins with 0, parts are added in their order, then the factor, as decompress() has it.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/sparse_index.cuh"
#include "gradwire/kernels/ops/sparse_layout.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kReadThreads = 256;

__device__ __forceinline__ unsigned bits_of(SparseStorage storage) {
  return storage == SparseStorage::kFloat32 ? 32
         : storage == SparseStorage::kEight ? 8
         : storage == SparseStorage::kFour  ? 4
         : storage == SparseStorage::kTwo   ? 2
         : storage == SparseStorage::kOne   ? 1
                                            : 16;
}

/// Elements [begin, begin + count) of the group, which has at most 2^31, and where their sum goes.
struct ReadWindow {
  uint32_t begin;
  unsigned count;
  float* out;
  float values[256];  // of all codes, times their scale: where a thread block has them at hand
};

/// A value of `bits` bits, of 16 a float16 where it is no bfloat16: what unpack_value() has at
/// compile time. Codes are looked up: how they are told apart would take registers in every loop.
struct ReadCodec {
  unsigned bits;
  bool brain;

  __device__ __forceinline__ float value(const ReadWindow& window, const std::byte* values,
                                         uint32_t at, float scale) const {
    if (bits <= 8) {
      const auto byte = static_cast<uint32_t>(values[at * bits / 8]);
      return window.values[byte >> (at * bits % 8) & ((1u << bits) - 1)] * scale;
    }
    if (bits == 32) {
      return load_float<float, Memory::kPayload>(values, at);
    }
    return brain ? load_float<bfloat16, Memory::kPayload>(values, at)
                 : load_float<float16, Memory::kPayload>(values, at);
  }
};

/// Code `code` as unpack_value() has it with the scale 1.
__device__ __forceinline__ float value_of_code(SparseValues values, unsigned bits, uint32_t code) {
  if (bits == 1) {
    return code != 0 ? -1.0f : 1.0f;
  }
  const int32_t number = static_cast<int32_t>(code << (32 - bits)) >> (32 - bits);
  return code_value_of(code_format_of(values), number, 1.0f);
}

/// Values and records: an element is one thread's for all parts.
__device__ inline void read_fixed(const PayloadSource& s, const ReadWindow& window,
                                  ReadCodec codec) {
  const bool records = s.format.kind == BodyKind::kRecords;
  const auto block = static_cast<unsigned>(records ? s.format.block : 1);  // a power of two
  const auto shift = static_cast<unsigned>(__ffs(static_cast<int>(block))) - 1;
  const auto record_bytes =
      static_cast<uint32_t>(quantized_record_bytes(kChunk, static_cast<int>(codec.bits), block));
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < window.count; i += kReadThreads) {
    const uint32_t element = window.begin + i;
    const uint32_t chunk = element / kChunk, at = element % kChunk;
    const unsigned scales = (chunk_numel(s.numel, chunk) + block - 1) >> shift;
    float sum = 0.0f;
#pragma unroll 1
    for (unsigned p = 0; p < s.count; ++p) {
      const DevicePart& part = s.parts[p];
      if (!holds_chunk(part, chunk)) {
        continue;
      }
      const uint32_t local = chunk - part.first_chunk;
      if (records) {
        const std::byte* const record = part.body + size_t{local} * record_bytes;
        const float scale = __uint_as_float(load_word<uint32_t>(record + (at >> shift) * 4));
        sum += codec.value(window, record + scales * 4, at, scale);
      } else {
        sum += codec.value(window, part.body + size_t{local} * kChunk * (codec.bits / 8), at, 0.0f);
      }
    }
    window.out[i] = s.factor == 1.0f ? sum : sum * s.factor;
  }
}

/// A chunk's entries in a part, which is added where the window has them.
struct ChunkEntries {
  const std::byte* indices;
  const std::byte* values;
  uint32_t count;   // of entries
  uint32_t listed;  // of indices
  uint32_t numel;   // of the chunk
  float scale;
  ReadCodec codec;

  /// `to` is where the chunk's first element would be in the window, which may be before it.
  __device__ __forceinline__ void add(const ReadWindow& window, int32_t to, uint32_t index,
                                      uint32_t at) const {
    const uint32_t place = static_cast<uint32_t>(to) + index;  // far beyond where it is before
    if (place < window.count) {
      window.out[place] += codec.value(window, values, at, scale);
    }
  }
};

__device__ inline void add_bitmap(const ChunkEntries& e, const ReadWindow& window, int32_t to) {
  uint32_t before = 0;
#pragma unroll 1
  for (unsigned round = 0; round < (e.numel + 7) / 8; round += kReadThreads) {
    const unsigned byte = round + threadIdx.x;
    auto flags = byte < (e.numel + 7) / 8 ? static_cast<uint32_t>(e.indices[byte]) : 0u;
    uint32_t of_round;
    uint32_t at = before + block_exclusive_sum(static_cast<uint32_t>(__popc(flags)), of_round);
    for (; flags != 0; flags &= flags - 1, ++at) {
      const unsigned bit = static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
      e.add(window, to, byte * 8 + bit, at);
    }
    before += of_round;
  }
}

/// Indices say blocks: a thread finds where one begins, a warp adds it.
__device__ inline void add_blocks(const ChunkEntries& e, const ReadWindow& window, int32_t to,
                                  const BlockGrid& grid, uint32_t first) {
  GRADWIRE_SHARED(begins, uint32_t[kReadThreads]);  // in the chunk
  GRADWIRE_SHARED(before, uint32_t[kReadThreads]);  // entries
  uint32_t entries = 0;
#pragma unroll 1
  for (uint32_t round = 0; round < e.listed; round += kReadThreads) {
    const uint32_t block = round + threadIdx.x;
    uint32_t length = 0;
    if (block < e.listed) {
      const uint32_t index = unpack_index(e.indices, block, e.listed);
      const auto end = static_cast<uint32_t>(grid.extent_at(first + index).end);
      const uint32_t chunk_end = first + e.numel;
      length = (end < chunk_end ? end : chunk_end) - first - index;
      begins[threadIdx.x] = index;
    }
    uint32_t of_round;
    before[threadIdx.x] = entries + block_exclusive_sum(length, of_round);
    entries += of_round;
    __syncthreads();
    const uint32_t here = e.listed - round < kReadThreads ? e.listed - round : kReadThreads;
#pragma unroll 1
    for (uint32_t b = warp_index(); b < here; b += kReadThreads / kWarp) {
      const uint32_t end = b + 1 < here ? before[b + 1] : entries;
#pragma unroll 1
      for (uint32_t at = before[b] + lane_index(); at < end; at += kWarp) {
        e.add(window, to, begins[b] + at - before[b], at);
      }
    }
    __syncthreads();
  }
}

__device__ inline void read_entries(const PayloadSource& s, const ReadWindow& window,
                                    ReadCodec codec) {
  const SparseFormat& f = s.format.format;
  const bool has_blocks = f.blocks.width > 0;
  const bool has_scales = codec.bits <= 8;
  for (unsigned i = threadIdx.x; i < window.count; i += kReadThreads) {
    window.out[i] = 0.0f;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned p = 0; p < s.count; ++p) {
    const DevicePart& part = s.parts[p];
    const bool bitmap = f.by_variant ? part.variant < f.bitmap_variants : f.bitmap;
#pragma unroll 1
    for (uint32_t chunk = window.begin / kChunk; chunk * kChunk < window.begin + window.count;
         ++chunk) {
      if (!holds_chunk(part, chunk)) {
        continue;
      }
      const uint32_t local = chunk - part.first_chunk;
      const ChunkPlace place = s.places[p * s.most_chunks + local];
      const auto counts_bytes = static_cast<uint32_t>(pad4(2 * part.chunks));
      const uint32_t scales = counts_bytes * (has_blocks ? 2 : 1);
      const ChunkEntries entries{
          .indices = part.body + place.indices,
          .values = part.body + s.bodies[p].values_begin + place.values,
          .count = load_word<uint16_t>(part.body + 2 * local),
          .listed = load_word<uint16_t>(part.body + (has_blocks ? counts_bytes : 0) + 2 * local),
          .numel = chunk_numel(s.numel, chunk),
          .scale = has_scales
                       ? to_float(bfloat16{load_word<uint16_t>(part.body + scales + 2 * local)})
                       : 0.0f,
          .codec = codec};
      const auto to = static_cast<int32_t>(chunk * kChunk - window.begin);
      if (has_blocks) {
        add_blocks(entries, window, to, f.blocks, chunk * kChunk);
      } else if (bitmap) {
        add_bitmap(entries, window, to);
      } else {
        for (uint32_t at = threadIdx.x; at < entries.count; at += kReadThreads) {
          entries.add(window, to, unpack_index(entries.indices, at, entries.count), at);
        }
      }
    }
    __syncthreads();  // the next part adds to the same elements
  }
  for (unsigned i = threadIdx.x; i < window.count && s.factor != 1.0f; i += kReadThreads) {
    window.out[i] *= s.factor;
  }
}

/// All kReadThreads threads of a block; the window and its `out` are in shared memory, and what is
/// made is there behind the caller's barrier. What cannot be read is 0. A call of its own: with
/// what kernels hold meanwhile the registers would not do.
__device__ __attribute__((noinline)) inline void read_sum(const PayloadSource& s,
                                                          ReadWindow& window) {
  const SparseValues values = s.format.format.values;
  const SparseStorage storage = storage_of(values);
  const ReadCodec codec{bits_of(storage), storage == SparseStorage::kBFloat16};
  if (codec.bits <= 8 && threadIdx.x < 1u << codec.bits) {
    window.values[threadIdx.x] = value_of_code(values, codec.bits, threadIdx.x);
  }
  __syncthreads();
  if (s.usable == 0) {
    for (unsigned i = threadIdx.x; i < window.count; i += kReadThreads) {
      window.out[i] = 0.0f;
    }
  } else if (s.format.kind == BodyKind::kEntries) {
    read_entries(s, window, codec);
  } else {
    read_fixed(s, window, codec);
  }
}

}  // namespace gradwire::cuda
