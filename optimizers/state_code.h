#pragma once
// State of 8 bits an element, the same bits on CPU and CUDA. A block of kCodeBlock elements shares
// a scale, 2^e, the least power of two of which no element is above 1.875 times; it is 0 where all
// are 0. A code c below the sign is 0, or (1 + (c % 8) / 8) 2^(c / 8 - 15) of the scale, and
// without a sign 2^(c / 8 - 31): moments of gradients down to 2^-15 of a block's largest, either of
// them.
//
// Rounding is random between the two codes around an element, in proportion, so that a code is
// right in expectation: v moves by 0.1% a step, and to the nearest code it would never move.
// Because the scale is a power of two, a value that has a code keeps it while the scale moves, and
// nothing is divided. Without a sign what is not 0 never becomes 0: an m over the root of a v that
// was rounded away would be a step of m / epsilon.

#include <cstddef>

#include "gradwire/kernels/core/philox.h"
#include "gradwire/optimizers/step_element.h"

namespace gradwire {

/// Elements that share a scale.
inline constexpr size_t kCodeBlock = 256;

constexpr size_t code_blocks(size_t numel) { return (numel + kCodeBlock - 1) / kCodeBlock; }

namespace code {
inline constexpr int kDropped = 20;  // bits of a float's mantissa below a code's three
inline constexpr uint32_t kGap = 1u << kDropped;
// Exponents of scales as floats have them. Below the least one, 2^-87, all codes are still normal
// floats, and so is a random part of the smallest; the largest one is float's.
inline constexpr uint32_t kLeastExponent = 40;
inline constexpr uint32_t kMostExponent = 254;
/// The largest code, without its sign; codes have this many / 8 octaves.
template <bool kSigned>
inline constexpr uint32_t kTop = kSigned ? 127 : 255;
}  // namespace code

/// The scale of a block whose elements have at most these bits, but for the sign.
GRADWIRE_ELEMENT float scale_of_codes(uint32_t largest) {
  const uint32_t exponent = (largest + code::kGap - 1) >> 23;  // of what it may be rounded up to
  const uint32_t most = exponent < code::kMostExponent ? exponent : code::kMostExponent;
  const uint32_t least = most > code::kLeastExponent ? most : code::kLeastExponent;
  return std::bit_cast<float>(largest == 0 ? 0u : least << 23);
}

/// Added to a code these are the upper bits of its float.
template <bool kSigned>
GRADWIRE_ELEMENT uint32_t code_base(float scale) {
  return (std::bit_cast<uint32_t>(scale) >> code::kDropped) - (code::kTop<kSigned> - 7);
}

template <bool kSigned>
GRADWIRE_ELEMENT float decoded_state(uint32_t code, uint32_t base) {
  const uint32_t magnitude = code & code::kTop<kSigned>;
  const uint32_t bits = magnitude == 0 ? 0u : (magnitude + base) << code::kDropped;
  return std::bit_cast<float>(kSigned ? bits | (code & 0x80u) << 24 : bits);
}

/// `draw` is 16 random bits: the code above where x is so far between two codes, as a part of their
/// distance, that with (draw + 1/2) / 2^16 it reaches 1. What is above the largest code, infinity
/// as well, becomes that.
template <bool kSigned>
GRADWIRE_ELEMENT uint32_t encoded_state(float x, uint32_t base, uint32_t draw) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t smallest = (base + 1) << code::kDropped;
  const uint32_t rounded = ((magnitude + (draw << 4 | 8u)) >> code::kDropped) - base;
  const uint32_t fitting = rounded < code::kTop<kSigned> ? rounded : code::kTop<kSigned>;
  if constexpr (kSigned) {
    // Exact: 4 bits times 17.
    const float part =
        std::bit_cast<float>(smallest) * (static_cast<float>(0x1FFFF - 2 * draw) * 0x1p-17f);
    const uint32_t below = magnitude >= std::bit_cast<uint32_t>(part) ? 1u : 0u;
    const uint32_t code = magnitude >= smallest ? fitting : below;
    return code == 0 ? 0u : code | (bits >> 24 & 0x80u);
  } else {
    return magnitude >= smallest ? fitting : (magnitude != 0 ? 1u : 0u);
  }
}

/// The random bits of eight elements from `first`, a multiple of eight, in the step that follows
/// `steps`. `key` is the parameter's: all ranks draw the same, and whatever it is stepped with.
GRADWIRE_HOST_DEVICE inline PhiloxCounter code_draws(uint64_t key, uint64_t steps, uint64_t first) {
  return philox(
      rounding_counter(first, static_cast<uint32_t>(steps), static_cast<uint32_t>(steps >> 32), 0),
      key);
}

}  // namespace gradwire
