#pragma once
// Codes of eight bits that are floats themselves: a sign, an exponent, a mantissa. The same bits on
// CPU and CUDA.
//
//   value of code c (its low seven bits), m mantissa bits, lowest exponent e:
//     c < 2^m:  c * 2^(e - m)                                  zero and subnormal
//     else:     (2^m + c % 2^m) * 2^(c / 2^m - 1 + e - m)
//
// There are neither infinities nor NaNs. An encoder writes no code above `largest_code`, so that
// E4M3 and E5M2 mean what the Open Compute Project's OFP8 specification (2023) says.

#include <bit>
#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

/// What the codes of a block are. Integers have 8, 4 or 2 bits, the others 8.
enum class CodeFormat : uint8_t { kInteger, kE4M3, kE5M2, kPowerOfTwo };

struct SmallFloat {
  int mantissa_bits;
  int lowest_exponent;      ///< of the smallest normal value
  int32_t largest_code;
  float largest;            ///< what largest_code decodes to
  float smallest_maximum;   ///< blocks whose largest magnitude is below count as zero
};

/// Of E4M3 and E5M2 the smallest maxima keep largest / maximum finite. Powers of two are scaled by
/// one, so that 2^-126 is enough; 125 of them lie below the block's largest.
GRADWIRE_HOST_DEVICE constexpr SmallFloat small_float(CodeFormat format) {
  return format == CodeFormat::kE4M3   ? SmallFloat{3, -6, 0x7E, 448.0f, 1.33e-36f}
         : format == CodeFormat::kE5M2 ? SmallFloat{2, -14, 0x7B, 57344.0f, 1.7e-34f}
                                       : SmallFloat{0, -125, 0x7F, 2.0f, 0x1p-126f};
}

/// As the bits of a float: its exponent alone.
GRADWIRE_HOST_DEVICE constexpr uint32_t exponent_bits(int exponent) {
  return static_cast<uint32_t>(127 + exponent) << 23;
}

/// |y| in units of the last place of its code, and the codes before the unit 0.
struct CodePlace {
  float units;
  int32_t before;
};

GRADWIRE_HOST_DEVICE inline CodePlace place_in_codes(float y, SmallFloat f) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(y) & 0x7FFFFFFFu;
  const uint32_t lowest = exponent_bits(f.lowest_exponent);
  uint32_t exponent = magnitude & 0x7F800000u;
  exponent = exponent > lowest ? exponent : lowest;
  const float unit = std::bit_cast<float>(exponent_bits(127 + f.mantissa_bits) - exponent);
  return {std::bit_cast<float>(magnitude) * unit,
          static_cast<int32_t>((exponent - lowest) >> (23 - f.mantissa_bits))};
}

/// From units that are rounded already. As an int8_t in two's complement.
GRADWIRE_HOST_DEVICE inline int32_t small_code(float y, int32_t before, int32_t units,
                                               SmallFloat f) {
  const int32_t code = before + units < f.largest_code ? before + units : f.largest_code;
  return (std::bit_cast<int32_t>(y) >> 31 & ~0x7F) | code;
}

/// Nearest, ties to even; |y| at most 2^22 units of the smallest subnormal.
GRADWIRE_HOST_DEVICE inline int32_t nearest_small_code(float y, SmallFloat f) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum drops the fraction
  const CodePlace at = place_in_codes(y, f);
  const int32_t units =
      std::bit_cast<int32_t>(at.units + kMagic) - std::bit_cast<int32_t>(kMagic);
  return small_code(y, at.before, units, f);
}

/// Away from zero with the probability of what lies above the code below; `uniform` is in (0, 1).
GRADWIRE_HOST_DEVICE inline int32_t stochastic_small_code(float y, float uniform, SmallFloat f) {
  const CodePlace at = place_in_codes(y, f);
  return small_code(y, at.before, static_cast<int32_t>(at.units + uniform), f);
}

GRADWIRE_HOST_DEVICE inline float small_value(int32_t code, SmallFloat f) {
  const int32_t magnitude = code & 0x7F;
  const float tiny = static_cast<float>(magnitude) *
                     std::bit_cast<float>(exponent_bits(f.lowest_exponent - f.mantissa_bits));
  const uint32_t normal = (static_cast<uint32_t>(magnitude) << (23 - f.mantissa_bits)) +
                          exponent_bits(f.lowest_exponent - 1);
  const uint32_t bits =
      magnitude < 1 << f.mantissa_bits ? std::bit_cast<uint32_t>(tiny) : normal;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(code) & 0x80u) << 24);
}

}  // namespace gradwire
