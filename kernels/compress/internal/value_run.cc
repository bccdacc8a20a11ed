#include "gradwire/kernels/compress/internal/value_run.h"

#include <bit>
#include <cstring>
#include <limits>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/payload_header.h"
#include "gradwire/kernels/ops/quantize.h"

namespace gradwire {
namespace {

/// maximum / limit, rounded up so that no code exceeds the limit; down where limit * scale, the
/// largest value decoded, would overflow.
bfloat16 scale_of(float maximum, float limit, float smallest) {
  if (maximum < smallest) {
    return {0};
  }
  const uint32_t bits = std::bit_cast<uint32_t>(maximum / limit);
  const bfloat16 up{static_cast<uint16_t>((bits + 0xFFFFu) >> 16)};
  return limit * to_float(up) <= std::numeric_limits<float>::max()
             ? up
             : bfloat16{static_cast<uint16_t>(bits >> 16)};
}

}  // namespace

ValueRun::ValueRun(ValueCodec codec)
    : codec_(codec), bits_(value_bits(codec, DType::kFloat32)), format_(code_format(codec)) {}

bfloat16 ValueRun::write(std::span<const float> values, std::span<float> decoded,
                         std::byte* out) const {
  if (has_scale()) {
    return write_codes(values, decoded, out);
  }
  const TensorView sent{out, values.size(), static_cast<DType>(codec_)};
  cpu::narrow(values, sent);
  cpu::widen(sent, decoded);
  return {0};
}

bfloat16 ValueRun::write_codes(std::span<const float> values, std::span<float> decoded,
                               std::byte* out) const {
  int8_t code_memory[kChunk];
  const std::span<int8_t> codes(code_memory, values.size());
  const auto maximum = std::bit_cast<float>(cpu::max_magnitude_bits(values));
  bfloat16 scale;
  if (format_ == CodeFormat::kInteger) {
    const int limit = cpu::largest_code(bits_);
    scale = scale_of(maximum, static_cast<float>(limit), cpu::kSmallestMaximum);
    cpu::quantize_with_scale(values, to_float(scale), limit, codes);
  } else {
    const SmallFloat format = small_float(format_);
    scale = scale_of(maximum, format.largest, format.smallest_maximum);
    cpu::round_with_scale(values, to_float(scale), format_, codes);
  }
  cpu::dequantize_with_scale(codes, to_float(scale), format_, decoded);
  if (bits_ == 8) {
    std::memcpy(out, codes.data(), codes.size());
  } else {
    cpu::pack_nibbles(codes, out);
  }
  return scale;
}

void ValueRun::read(const std::byte* sent, bfloat16 scale, std::span<float> values) const {
  if (!has_scale()) {
    cpu::widen({sent, values.size(), static_cast<DType>(codec_)}, values);
    return;
  }
  int8_t code_memory[kChunk];
  const std::span<int8_t> codes(code_memory, values.size());
  if (bits_ == 8) {
    std::memcpy(codes.data(), sent, codes.size());
  } else {
    cpu::unpack_nibbles(sent, codes);
  }
  cpu::dequantize_with_scale(codes, to_float(scale), format_, values);
}

}  // namespace gradwire
