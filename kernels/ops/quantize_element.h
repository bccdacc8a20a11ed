#pragma once
// Block-wise quantization of one element, the same bits on CPU and CUDA; quantize.h has the
// equations.

#include <math.h>  // sqrtf() of both backends

#include <bit>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/quantize.h"

namespace gradwire {

/// What codes are, at compile time.
template <int kBitsOfCode, CodeFormat kFormatOfCode = CodeFormat::kInteger, bool kLevels = false>
struct Code {
  static constexpr int kBits = kBitsOfCode;
  static constexpr CodeFormat kFormat = kFormatOfCode;
  static constexpr bool kIsInteger = kFormat == CodeFormat::kInteger;
  static constexpr bool kHasLevels = kLevels;  ///< scaled by the norm
  static constexpr bool kOnlyStochastic = kHasLevels || kFormat == CodeFormat::kPowerOfTwo;
};

/// Of one block. Scale 0: the block counts as zero.
struct BlockScale {
  float scale;
  float inverse;
};

/// From the bits of max|x|; `limit` is the largest code's value. NaN and infinity give scale 0.
GRADWIRE_HOST_DEVICE inline BlockScale block_scale(uint32_t maximum_bits, float limit,
                                                   float smallest = cpu::kSmallestMaximum) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  const float maximum = std::bit_cast<float>(maximum_bits);
  if (maximum_bits > kLargestFinite || maximum < smallest) {
    return {0.0f, 0.0f};
  }
  float scale = maximum / limit;
  if (std::bit_cast<uint32_t>(limit * scale) > kLargestFinite) {
    scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 1);  // the next smaller float
  }
  return {scale, limit / maximum};
}

/// The same for any format; `bits` are those of integers.
GRADWIRE_HOST_DEVICE inline BlockScale block_scale_of(CodeFormat format, int bits,
                                                      uint32_t maximum_bits) {
  if (format == CodeFormat::kInteger) {
    return block_scale(maximum_bits, static_cast<float>(cpu::largest_code(bits)));
  }
  const SmallFloat f = small_float(format);
  if (format != CodeFormat::kPowerOfTwo) {
    return block_scale(maximum_bits, f.largest, f.smallest_maximum);
  }
  uint32_t exponent = maximum_bits & 0x7F800000u;
  if (exponent < exponent_bits(-126) || exponent > exponent_bits(127)) {
    return {0.0f, 0.0f};
  }
  exponent = exponent < exponent_bits(126) ? exponent : exponent_bits(126);
  return {std::bit_cast<float>(exponent),
          std::bit_cast<float>(exponent_bits(127) - exponent)};
}

/// 2^-e, which brings the elements of a block to [0, 4) before they are squared.
GRADWIRE_HOST_DEVICE inline float square_factor(uint32_t maximum_bits) {
  uint32_t exponent = maximum_bits & 0x7F800000u;
  exponent = exponent > exponent_bits(-126) ? exponent : exponent_bits(-126);
  exponent = exponent < exponent_bits(126) ? exponent : exponent_bits(126);
  return std::bit_cast<float>(exponent_bits(127) - exponent);
}

/// As bits, at most FLT_MAX; from the sum of squares of factor * x.
GRADWIRE_HOST_DEVICE inline uint32_t norm_bits(float squares, float factor) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  const uint32_t norm = std::bit_cast<uint32_t>(sqrtf(squares) / factor);
  return norm < kLargestFinite ? norm : kLargestFinite;
}

GRADWIRE_HOST_DEVICE inline BlockScale norm_scale(uint32_t maximum_bits, float squares,
                                                  float factor, int levels) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  if (maximum_bits > kLargestFinite) {
    return {0.0f, 0.0f};
  }
  return block_scale(norm_bits(squares, factor), static_cast<float>(levels));
}

/// rint() for |x| < 2^22, without a call: the sum drops the fraction, to nearest even.
GRADWIRE_HOST_DEVICE inline int32_t round_to_int(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return std::bit_cast<int32_t>(x + kMagic) - std::bit_cast<int32_t>(kMagic);
}

GRADWIRE_HOST_DEVICE inline int32_t floor_to_int(float x) {
  const int32_t truncated = static_cast<int32_t>(x);
  return truncated - (static_cast<float>(truncated) > x ? 1 : 0);
}

GRADWIRE_HOST_DEVICE inline int32_t nearest_code(float x, BlockScale s) {
  return s.scale == 0.0f ? 0 : round_to_int(x * s.inverse);
}

/// In (0, 1), from 16 random bits.
GRADWIRE_HOST_DEVICE inline float uniform_of(uint32_t random_half) {
  return (static_cast<float>(random_half) + 0.5f) * 0x1p-16f;
}

GRADWIRE_HOST_DEVICE inline int32_t stochastic_code(float x, BlockScale s, int32_t limit,
                                                    uint32_t random_half) {
  if (s.scale == 0.0f) {
    return 0;
  }
  const int32_t code = floor_to_int(x * s.inverse + uniform_of(random_half));
  return code < -limit ? -limit : code > limit ? limit : code;
}

/// Of any format; scale 0 gives 0.
GRADWIRE_HOST_DEVICE inline int32_t nearest_code_of(CodeFormat format, float x, BlockScale s) {
  if (format == CodeFormat::kInteger) {
    return nearest_code(x, s);
  }
  return s.scale == 0.0f ? 0 : nearest_small_code(x * s.inverse, small_float(format));
}

GRADWIRE_HOST_DEVICE inline int32_t stochastic_code_of(CodeFormat format, float x, BlockScale s,
                                                       int32_t limit, uint32_t random_half) {
  if (format == CodeFormat::kInteger) {
    return stochastic_code(x, s, limit, random_half);
  }
  return s.scale == 0.0f ? 0
                         : stochastic_small_code(x * s.inverse, uniform_of(random_half),
                                                 small_float(format));
}

/// The largest magnitude that `bits` bits can stand for, times the scale; beyond what encoders
/// write.
GRADWIRE_HOST_DEVICE inline float largest_value(CodeFormat format, int bits) {
  return format == CodeFormat::kInteger ? static_cast<float>(1 << (bits - 1))
                                        : small_value(0x7F, small_float(format));
}

GRADWIRE_HOST_DEVICE inline float code_value(int32_t code, float scale) {
  return static_cast<float>(code) * scale;
}

GRADWIRE_HOST_DEVICE inline float code_value_of(CodeFormat format, int32_t code, float scale) {
  return format == CodeFormat::kInteger ? code_value(code, scale)
                                        : small_value(code, small_float(format)) * scale;
}

}  // namespace gradwire
