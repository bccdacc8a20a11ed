#pragma once
// One bit per element on a GPU, fused with error feedback; kernels/ops/signs.h has the equations,
// kernels/compress/WIRE_FORMAT.md the bytes. All memory is the GPU's; nothing is allocated, nothing
// waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

struct SignsInput {
  ConstTensorView g;
  ParitySpan e{};      ///< g's size, or empty
  size_t block = 256;  ///< elements that share a scale: a power of two from 8 to kChunk
  float scale = 1.0f;  ///< of g, where e is empty
};

struct SignsOutput {
  std::span<std::byte> records;  ///< quantized_bytes(numel, 1, block), at any address
  /// x - decoded; g's size or empty. e's own memory, or g's where that is float32, is allowed.
  ParitySpan e_next{};
  ParitySpan put_back{};      ///< += g - decoded / scale; g's size or empty; not with e_next
  CallWords* call = nullptr;  ///< device memory; kStatusNonFinite is set in its flags
  Seal seal{};
};

/// Encodes x = scale * g + e. @throws InvalidArgument for sizes, pointers, blocks, scale or devices
/// that do not fit.
void encode_signs(const SignsInput& input, const SignsOutput& output, Stream& stream);

struct SignsParts {
  std::span<const DevicePart> parts;  ///< in device memory; bodies are records
  size_t block = 256;
  uint64_t first = 0;   ///< the sum's first element in the group; on a chunk
  PartFaults faults{};  ///< `flags` is not used
  bool onto = false;    ///< one part, which is added to what the sum holds; the rest stays
  SumFaults overflow{};
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype; `sum` ends on a
/// chunk or with the group. A scale that is NaN, infinite or negative is reported as
/// FaultReason::kScale; its block counts as zero.
/// @throws InvalidArgument for pointers, blocks, scale or devices that do not fit.
void sum_signs(const SignsParts& parts, float scale, TensorView sum, Stream& stream);

}  // namespace gradwire::cuda
