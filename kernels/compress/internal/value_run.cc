#include "gradwire/kernels/compress/internal/value_run.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/payload_header.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/quantize_element.h"
#include "gradwire/kernels/ops/run_element.h"
#include "gradwire/kernels/ops/signs.h"

namespace gradwire {

ValueRun::ValueRun(const CompressorSpec& spec)
    : codec_(spec.codec.values),
      bits_(value_bits(spec.codec.values, DType::kFloat32)),
      draws_(spec.codec.rounding == Rounding::kStochastic),
      levels_(static_cast<int>(spec.codec.levels)),
      format_(code_format(spec.codec.values)) {}

size_t ValueRun::most_bytes(size_t count, size_t runs) const {
  if (bits_ >= 8) {
    return bytes(count);
  }
  // The last byte of each run holds one code at worst.
  const size_t per_byte = 8 / static_cast<size_t>(bits_);
  return (count + (per_byte - 1) * std::min(count, runs)) / per_byte;
}

bfloat16 ValueRun::write(std::span<const float> values, std::span<const uint16_t> random,
                         std::span<float> decoded, std::byte* out) const {
  if (has_scale()) {
    return write_codes(values, random, decoded, out);
  }
  const TensorView sent{out, values.size(), static_cast<DType>(codec_)};
  cpu::narrow(values, sent);
  cpu::widen(sent, decoded);
  return {0};
}

bfloat16 ValueRun::write_codes(std::span<const float> values, std::span<const uint16_t> random,
                               std::span<float> decoded, std::byte* out) const {
  int8_t code_memory[kChunk];
  const std::span<int8_t> codes(code_memory, values.size());
  bfloat16 scale;
  if (codec_ == ValueCodec::kSign) {
    scale = from_float<bfloat16>(cpu::mean_magnitude(values));
    for (size_t i = 0; i < values.size(); ++i) {
      codes[i] = scale.bits != 0 && values[i] < 0 ? 1 : 0;
    }
  } else {
    const int limit = run_limit(bits_, levels_);
    const float maximum = levels_ > 0 ? cpu::norm(values)
                                      : std::bit_cast<float>(cpu::max_magnitude_bits(values));
    scale = run_scale(format_, limit, maximum);
    if (draws_) {
      cpu::round_by_chance(values, to_float(scale), format_, limit, random, codes);
    } else if (format_ == CodeFormat::kInteger) {
      cpu::quantize_with_scale(values, to_float(scale), limit, codes);
    } else {
      cpu::round_with_scale(values, to_float(scale), format_, codes);
    }
  }
  decode(codes, to_float(scale), decoded);
  cpu::pack_codes(codes, bits_, out);
  return scale;
}

void ValueRun::decode(std::span<const int8_t> codes, float scale, std::span<float> values) const {
  assert(codes.size() == values.size());
  if (codec_ != ValueCodec::kSign) {
    cpu::dequantize_with_scale(codes, scale, format_, values);
    return;
  }
  for (size_t i = 0; i < codes.size(); ++i) {
    values[i] = codes[i] != 0 ? -scale : scale;
  }
}

float ValueRun::most(const std::byte* sent, bfloat16 scale, size_t count) const {
  if (codec_ == ValueCodec::kSign) {
    return to_float(scale);
  }
  if (has_scale()) {
    return to_float(scale) * largest_value(format_, bits_);
  }
  alignas(64) float memory[kChunk];
  const std::span<float> values(memory, count);
  cpu::widen({sent, count, static_cast<DType>(codec_)}, values);
  return std::bit_cast<float>(cpu::max_magnitude_bits(values));
}

void ValueRun::read(const std::byte* sent, bfloat16 scale, std::span<float> values) const {
  if (!has_scale()) {
    cpu::widen({sent, values.size(), static_cast<DType>(codec_)}, values);
    return;
  }
  int8_t code_memory[kChunk];
  const std::span<int8_t> codes(code_memory, values.size());
  cpu::unpack_codes(sent, bits_, codes);
  decode(codes, to_float(scale), values);
}

}  // namespace gradwire
