#pragma once
// What the launchers of kernels on records share.

#include <bit>

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/records.cuh"

namespace gradwire::cuda {

inline void check_block(const char* op, size_t block) {
  check(block >= 8 && block <= kChunk && (block & (block - 1)) == 0, op, ": block is ", block,
        ", must be a power of two from 8 to ", kChunk);
}

inline unsigned shift_of(size_t block) { return static_cast<unsigned>(std::countr_zero(block)); }

inline void check_first(const char* op, uint64_t first) {
  check(first % kChunk == 0, op, ": first is ", first, ", must be a multiple of ", kChunk);
}

/// `Input` and `Output` are those of quantize(), encode_signs() or encode_drawn().
template <class Input, class Output>
EncodeMemory encode_memory(const char* op, const Input& in, const Output& out, size_t bytes,
                           const Stream& stream) {
  const size_t numel = in.g.numel;
  check_view(op, "g", in.g, stream);
  check_parity(op, "e", in.e, numel);
  check_parity(op, "e_next", out.e_next, numel);
  check_parity(op, "put_back", out.put_back, numel);
  check(out.e_next.empty() || out.put_back.empty(), op, ": e_next has ", out.e_next.size(),
        " elements, must have none where put_back has some");
  check_scale(op, in.scale);
  check(in.scale == 1.0f || in.e.empty(), op, ": scale is ", in.scale,
        ", must be 1 where there is e");
  check(out.records.size() >= bytes, op, ": records has ", out.records.size(),
        " bytes, must have at least ", bytes);
  check_pointer(op, "records", out.records.data(), bytes, 1);
  check_seal(op, out.call, out.seal);
  return {static_cast<const std::byte*>(in.g.data),
          in.scale,
          ParityPointer(in.e),
          ParityPointer(out.e_next),
          ParityPointer(out.put_back),
          out.records.data(),
          numel,
          &out.call->flags};
}

/// A thread block per chunk; one where there is only a header to write.
inline LaunchShape encode_shape(size_t numel, const Seal& seal, Stream& stream) {
  const size_t chunks = (numel + kChunk - 1) / kChunk;
  return {chunks == 0 && seal.out != nullptr ? 1 : chunks, kRecordThreads, stream};
}

/// `Parts` are those of dequantize() or sum_signs().
template <class Parts>
SumArguments sum_arguments(const char* op, const Parts& parts, float scale, const TensorView& sum,
                           const Stream& stream) {
  check_view(op, "sum", sum, stream);
  check_scale(op, scale);
  check_block(op, parts.block);
  check_first(op, parts.first);
  check_pointer(op, "parts", parts.parts.data(), parts.parts.size(), alignof(DevicePart));
  check(parts.faults.step != nullptr, op, ": faults.step is null, must be words in device memory");
  check_onto(op, parts.onto, parts.parts.size());
  return {parts.parts.data(),
          parts.parts.size(),
          parts.first / kChunk,
          static_cast<unsigned>(parts.block),
          shift_of(parts.block),
          scale,
          static_cast<std::byte*>(sum.data),
          sum.numel,
          parts.faults.step,
          parts.onto,
          parts.overflow};
}

inline LaunchShape sum_shape(size_t numel, Stream& stream) {
  return {(numel + kChunk - 1) / kChunk, kRecordThreads, stream};
}

}  // namespace gradwire::cuda
