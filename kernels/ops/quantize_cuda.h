#pragma once
// Block-wise quantization on a GPU, fused with error feedback; kernels/ops/quantize.h has the
// equations, kernels/compress/WIRE_FORMAT.md the bytes. All memory is the GPU's; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

/// Elements that share a scale: one warp's.
inline constexpr size_t kQuantizeBlock = 256;
/// Elements of one record: its scales, then its codes.
inline constexpr size_t kQuantizeChunk = 4096;

/// Bytes of the records of `numel` elements with codes of `bits`.
constexpr size_t quantized_bytes(size_t numel, int bits) {
  const auto record = [bits](size_t count) {
    return (count + kQuantizeBlock - 1) / kQuantizeBlock * 4 +
           (count * static_cast<size_t>(bits) + 7) / 8;
  };
  return numel / kQuantizeChunk * record(kQuantizeChunk) + record(numel % kQuantizeChunk);
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
  std::span<const float> e;                    ///< g's size, or empty
  int bits = 8;                                ///< 8, 4 or 2
  const RoundingSource* stochastic = nullptr;  ///< nullptr: to nearest, ties to even
};

struct QuantizeOutput {
  std::span<std::byte> records;  ///< quantized_bytes(), at any address
  std::span<float> e_next;       ///< g + e - decoded; e's size, and not e itself
  uint32_t* status = nullptr;    ///< device word; kStatusNonFinite is set, other bits stay
};

/// Encodes g + e. @throws InvalidArgument for sizes, bits or devices that do not fit.
void quantize(const QuantizeInput& input, const QuantizeOutput& output, Stream& stream);

struct QuantizedParts {
  /// In device memory: the records of each rank, every one quantized_bytes() long.
  std::span<const std::byte* const> records;
  int bits = 8;
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype. A scale that is
/// NaN, infinite or negative sets kStatusMalformed in `status`; its block counts as zero.
/// @throws InvalidArgument for bits, scale or devices that do not fit.
void dequantize(const QuantizedParts& parts, float scale, TensorView sum, uint32_t* status,
                Stream& stream);

}  // namespace gradwire::cuda
