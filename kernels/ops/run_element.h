#pragma once
// The values of a run, which share one bf16 scale: what one of them becomes, the same bits on CPU
// and CUDA. kernels/compress/WIRE_FORMAT.md has the equations; a mean that is a scale is in signs.h.

#include "gradwire/kernels/ops/quantize_element.h"

namespace gradwire {

/// The largest code of integers.
GRADWIRE_HOST_DEVICE constexpr int32_t run_limit(int bits, int levels) {
  return levels > 0 ? levels : cpu::largest_code(bits);
}

/// From max|x|, or from the norm where there are levels; `limit` is of integers. Rounded up so that
/// no code exceeds its limit; down where the largest value decoded would overflow.
GRADWIRE_HOST_DEVICE inline bfloat16 run_scale(CodeFormat format, int32_t limit, float maximum) {
  if (format == CodeFormat::kPowerOfTwo) {
    const float power = block_scale_of(format, 8, std::bit_cast<uint32_t>(maximum)).scale;
    return {static_cast<uint16_t>(std::bit_cast<uint32_t>(power) >> 16)};
  }
  const bool integer = format == CodeFormat::kInteger;
  const SmallFloat f = small_float(format);
  const float largest = integer ? static_cast<float>(limit) : f.largest;
  if (maximum < (integer ? cpu::kSmallestMaximum : f.smallest_maximum)) {
    return {0};
  }
  const uint32_t bits = std::bit_cast<uint32_t>(maximum / largest);
  const bfloat16 up{static_cast<uint16_t>((bits + 0xFFFFu) >> 16)};
  const bool fits = largest * to_float(up) <= std::numeric_limits<float>::max();
  return fits ? up : bfloat16{static_cast<uint16_t>(bits >> 16)};
}

/// x / scale rounded to nearest and limited; 0 for scale 0.
GRADWIRE_HOST_DEVICE inline int32_t run_code(CodeFormat format, int32_t limit, float x,
                                             float scale) {
  if (scale == 0.0f) {
    return 0;
  }
  if (format != CodeFormat::kInteger) {
    return nearest_small_code(x / scale, small_float(format));
  }
  const int32_t code = round_to_int(x / scale);
  return code < -limit ? -limit : code > limit ? limit : code;
}

/// The same by chance, from 16 random bits.
GRADWIRE_HOST_DEVICE inline int32_t run_code_by_chance(CodeFormat format, int32_t limit, float x,
                                                       float scale, uint32_t random_half) {
  if (scale == 0.0f) {
    return 0;
  }
  if (format != CodeFormat::kInteger) {
    return stochastic_small_code(x / scale, uniform_of(random_half), small_float(format));
  }
  const int32_t code = floor_to_int(x / scale + uniform_of(random_half));
  return code < -limit ? -limit : code > limit ? limit : code;
}

}  // namespace gradwire
