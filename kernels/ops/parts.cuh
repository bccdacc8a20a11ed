#pragma once
// Checks of received headers, one thread per payload; slices of fixed records; the commit.

#include "gradwire/kernels/ops/slice.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kPartThreads = 64;
inline constexpr unsigned kClearThreads = 256;

/// Payloads as a kernel argument: their addresses and lengths need no copy to the device.
struct PayloadList {
  const std::byte* data[kPartThreads];
  uint64_t bytes[kPartThreads];
  size_t first;  // number of the first one among all parts
  unsigned count;
};

__device__ __forceinline__ PayloadHeader load_header(const std::byte* from) {
  uint32_t words[sizeof(PayloadHeader) / 4];
#pragma unroll
  for (unsigned i = 0; i < sizeof(PayloadHeader) / 4; ++i) {
    words[i] = load_word<uint32_t>(from + 4 * i);
  }
  PayloadHeader header;
  memcpy(&header, words, sizeof header);
  return header;
}

/// The bytes of the records of chunks that hold `numel` elements and end where `tail` says so.
__device__ __forceinline__ uint64_t records_bytes(const ExpectedParts& expected, uint64_t numel) {
  return numel / kChunk * expected.record_bytes + (numel % kChunk != 0 ? expected.tail_bytes : 0);
}

__device__ inline FaultReason fault_of(const PayloadHeader& header, uint64_t bytes,
                                       const ExpectedParts& expected) {
  const PayloadHeader& right = expected.header;
  if (header.magic != right.magic) {
    return FaultReason::kMagic;
  }
  if (header.version != right.version) {
    return FaultReason::kVersion;
  }
  if (header.bytes < sizeof header || header.bytes > bytes) {
    return FaultReason::kLength;
  }
  if (header.format != right.format) {
    return FaultReason::kFormat;
  }
  if (header.values != right.values) {
    return FaultReason::kValues;
  }
  if ((header.flags & ~kFlagNonFinite) != 0) {
    return FaultReason::kFlags;
  }
  if (header.spec_fingerprint != right.spec_fingerprint) {
    return FaultReason::kFingerprint;
  }
  if (header.variant > expected.last_variant) {
    return FaultReason::kVariant;
  }
  const uint64_t begin = uint64_t{header.first_chunk} * kChunk;
  const uint64_t group = expected.group_numel;
  const bool inside = begin <= group && header.numel <= group - begin;
  const uint64_t end = begin + header.numel;
  const bool on_chunks = end % kChunk == 0 || end == group;
  const bool covers = begin <= expected.region_begin && end >= expected.region_end;
  const bool equal = begin == expected.region_begin && end == expected.region_end;
  if (!inside || !on_chunks || !covers || (expected.region_exactly && !equal)) {
    return FaultReason::kRegion;
  }
  const uint64_t body = header.bytes - sizeof header;
  if (expected.record_bytes != 0 && body != records_bytes(expected, header.numel)) {
    return FaultReason::kBody;
  }
  return FaultReason::kNone;
}

/// One block, a thread per payload.
__global__ void __launch_bounds__(kPartThreads)
    open_parts_kernel(PayloadList list, ExpectedParts expected, DevicePart* table,
                      PartFaults faults) {
  if (threadIdx.x >= list.count) {
    return;
  }
  const std::byte* const payload = list.data[threadIdx.x];
  const uint64_t bytes = list.bytes[threadIdx.x];
  DevicePart part;
  FaultReason fault = FaultReason::kTooShort;
  if (bytes >= sizeof(PayloadHeader)) {
    const PayloadHeader header = load_header(payload);
    fault = fault_of(header, bytes, expected);
    if (fault == FaultReason::kNone) {
      part = {payload + sizeof header,
              header.bytes - sizeof header,
              header.first_chunk,
              static_cast<uint32_t>((header.numel + kChunk - 1) / kChunk),
              header.numel,
              header.flags,
              header.variant};
      if (expected.wanted == PartsWanted::kAll) {
        if (header.flags != 0) {
          atomicOr(faults.flags, kStatusNonFinite);
        }
      } else if ((header.flags != 0) != (expected.wanted == PartsWanted::kFlagged)) {
        part = {};
      }
    }
  }
  table[list.first + threadIdx.x] = part;
  if (fault != FaultReason::kNone) {
    report_fault(faults.step, list.first + threadIdx.x, fault);
  }
}

__global__ void __launch_bounds__(kSliceThreads)
    slice_records_kernel(const DevicePart* table, uint64_t record_bytes, PayloadHeader header,
                         std::byte* out) {
  const DevicePart part = *table;
  if (begin_slice(part, out, header)) {
    copy_share(part.body + (header.first_chunk - part.first_chunk) * record_bytes,
               out + sizeof header, header.bytes - sizeof header);
  }
}

/// A thread per word of each header.
__global__ void __launch_bounds__(kClearThreads)
    clear_headers_kernel(std::byte* messages, uint64_t stride, uint64_t count) {
  constexpr unsigned kWords = sizeof(PayloadHeader) / 4;
  const uint64_t at = uint64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  if (at < count * kWords) {
    store_word(messages + at / kWords * stride + at % kWords * 4, 0u);
  }
}

__global__ void commit_step_kernel(StepWords* step, bool skip) {
  conclude(*step, skip);
}

__global__ void clear_faults_kernel(StepWords* step) {
  step->status = step->fault = step->overflowed = 0;
}

__global__ void set_step_kernel(StepWords* step, uint32_t committed) {
  step->step = committed;
  step->epoch += 1;
}

}  // namespace gradwire::cuda
