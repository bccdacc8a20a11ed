#pragma once
// Block-wise quantization on a GPU, fused with error feedback; kernels/ops/quantize.h has the
// equations, kernels/compress/WIRE_FORMAT.md the bytes. All memory is the GPU's; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"
#include "gradwire/kernels/ops/small_float.h"

namespace gradwire::cuda {

/// Bytes of the record of `count` elements, at most kChunk: its scales, then its codes.
GRADWIRE_HOST_DEVICE constexpr size_t quantized_record_bytes(size_t count, int bits, size_t block) {
  return (count + block - 1) / block * 4 + (count * static_cast<size_t>(bits) + 7) / 8;
}

/// Bytes of the records of `numel` elements with codes of `bits`.
constexpr size_t quantized_bytes(size_t numel, int bits, size_t block) {
  return numel / kChunk * quantized_record_bytes(kChunk, bits, block) +
         quantized_record_bytes(numel % kChunk, bits, block);
}

/// A run of the group's elements that belongs to one parameter.
struct RandomSegment {
  uint64_t end;    ///< in the group, exclusive
  uint64_t first;  ///< where the run begins in its parameter
  uint32_t parameter;
};

/// Stochastic rounding as kernels/core/philox.h defines it.
struct RoundingSource {
  std::span<const RandomSegment> segments;  ///< in device memory; they tile the group
  const uint32_t* step = nullptr;           ///< in device memory: a replayed graph reads it anew
  uint64_t seed = 0;
  uint32_t rank_stage = 0;  ///< rank * 4 + stage
};

struct QuantizeInput {
  ConstTensorView g;
  ParitySpan e{};      ///< g's size, or empty
  int bits = 8;        ///< 8, 4 or 2
  size_t block = 256;  ///< elements that share a scale: a power of two from 8 to kChunk
  const RoundingSource* stochastic = nullptr;  ///< nullptr: to nearest, ties to even
  uint64_t first = 0;  ///< g's first element in the group, on a chunk: which random numbers it takes
  float scale = 1.0f;  ///< of g, where e is empty
  CodeFormat format = CodeFormat::kInteger;  ///< of others bits is 8
  int levels = 0;  ///< of integers, stochastic: scaled by the norm (quantize.h); 0: by the maximum
};

struct QuantizeOutput {
  std::span<std::byte> records;  ///< quantized_bytes(), at any address
  /// x - decoded; g's size or empty. e's own memory, or g's where that is float32, is allowed.
  ParitySpan e_next{};
  ParitySpan put_back{};      ///< += g - decoded / scale; g's size or empty; not with e_next
  CallWords* call = nullptr;  ///< device memory; kStatusNonFinite is set in its flags
  Seal seal{};
};

/// Encodes x = scale * g + e. @throws InvalidArgument for sizes, pointers, bits, format, blocks,
/// scale or devices that do not fit.
void quantize(const QuantizeInput& input, const QuantizeOutput& output, Stream& stream);

struct QuantizedParts {
  std::span<const DevicePart> parts;  ///< in device memory; bodies are records
  int bits = 8;
  size_t block = 256;
  uint64_t first = 0;   ///< the sum's first element in the group; on a chunk
  PartFaults faults{};  ///< `flags` is not used
  bool onto = false;    ///< one part, which is added to what the sum holds; the rest stays
  SumFaults overflow{};  ///< of the sum
  CodeFormat format = CodeFormat::kInteger;
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype; `sum` ends on a
/// chunk or with the group. A scale that is NaN, infinite or negative is reported as
/// FaultReason::kScale; its block counts as zero.
/// @throws InvalidArgument for pointers, bits, blocks, scale or devices that do not fit.
void dequantize(const QuantizedParts& parts, float scale, TensorView sum, Stream& stream);

}  // namespace gradwire::cuda
