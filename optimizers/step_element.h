#pragma once
// What a step does to one element, the same bits on CPU and CUDA: the loops of step_cpu.cc and the
// kernels of step.cuh call it.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/core/dtype.h"

// Inlined into every clone of a CPU loop: a call would run code of the lowest instruction set.
#define GRADWIRE_ELEMENT GRADWIRE_HOST_DEVICE inline __attribute__((always_inline))

namespace gradwire {

/// d = scale (factor g + wd w). One of scale and rate is the learning rate's, so that it enters
/// before the momentum or after it; the other is 1, or a layer's ratio.
struct MomentumFactors {
  float factor;
  float weight_decay;
  float scale;
  float momentum;
  float rate;
};

struct MomentumElement {
  float value;
  float momentum;
};

GRADWIRE_ELEMENT float decayed_element(float w, float g, float factor, float weight_decay) {
  return factor * g + weight_decay * w;
}

/// w -= rate d.
GRADWIRE_ELEMENT float plain_element(float w, float g, const MomentumFactors& f) {
  return w - f.rate * (f.scale * decayed_element(w, g, f.factor, f.weight_decay));
}

/// v = mu v + d; w -= rate v.
GRADWIRE_ELEMENT MomentumElement momentum_element(float w, float v, float g,
                                                  const MomentumFactors& f) {
  const float next = f.momentum * v + f.scale * decayed_element(w, g, f.factor, f.weight_decay);
  return {w - f.rate * next, next};
}

/// v = mu v + d; w -= rate (d + mu v).
GRADWIRE_ELEMENT MomentumElement nesterov_element(float w, float v, float g,
                                                  const MomentumFactors& f) {
  const float direction = f.scale * decayed_element(w, g, f.factor, f.weight_decay);
  const float next = f.momentum * v + direction;
  return {w - f.rate * (direction + f.momentum * next), next};
}

/// Corrections are multiplied: m^ = correction1 m, sqrt v^ = root_correction2 sqrt v. Taking the
/// root first keeps v^ within float for gradients up to 1e20; v saturates at float's largest value.
struct AdamFactors {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float correction1;
  float root_correction2;
  float epsilon;
  float weight_decay;
  float factor;  ///< of gradients
};

struct AdamElement {
  float exp_avg;
  float exp_avg_sq;
  float update;
};

GRADWIRE_ELEMENT AdamElement adam_element(float w, float m, float v, float unscaled,
                                          const AdamFactors& f) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float g = f.factor * unscaled;
  const float next_m = f.beta1 * m + f.one_minus_beta1 * g;
  const float grown_v = f.beta2 * v + (f.one_minus_beta2 * g) * g;
  const float next_v = grown_v < kLargest ? grown_v : kLargest;
  const float root = std::sqrt(next_v) * f.root_correction2;
  return {next_m, next_v, (next_m * f.correction1) / (root + f.epsilon) + f.weight_decay * w};
}

/// Of a step behind the freeze of v: this rank's momentum is exchanged, times `scale`, a power of
/// two, and the mean's is stepped on. `recovery` is 1 / (1 - beta1), `fresh_root_correction2` of
/// the v that goes on.
struct FrozenFactors {
  float beta1;
  float one_minus_beta1;
  float recovery;
  float beta2;
  float one_minus_beta2;
  float correction1;
  float root_correction2;
  float fresh_root_correction2;
  float epsilon;
  float weight_decay;
  float scale;
  float unscale;
  float factor;  ///< of gradients
};

/// 0 where v froze at 0, which says that no gradient has been seen: momentum is 0 there, since what
/// 1-bit compression makes of it would be divided by epsilon alone. What is not finite stays so.
GRADWIRE_ELEMENT float frozen_mask(float v) { return v == 0.0f ? 0.0f : 1.0f; }

GRADWIRE_ELEMENT float local_momentum_element(float m, float v, float g, const FrozenFactors& f) {
  return (frozen_mask(v) * f.scale) * (f.beta1 * m + f.one_minus_beta1 * (f.factor * g));
}

/// The momentum that was exchanged.
GRADWIRE_ELEMENT float frozen_momentum(float exchanged, float v, const FrozenFactors& f) {
  return (frozen_mask(v) * f.unscale) * exchanged;
}

GRADWIRE_ELEMENT float frozen_denominator(float v, const FrozenFactors& f) {
  return std::sqrt(v) * f.root_correction2 + f.epsilon;
}

/// b2 v' + (1 - b2) g^2, of the mean gradient g that takes the momentum from `last_m` to `m`.
GRADWIRE_ELEMENT float fresh_element(float last_m, float m, float fresh, const FrozenFactors& f) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float g = (m - f.beta1 * last_m) * f.recovery;
  const float grown = f.beta2 * fresh + (f.one_minus_beta2 * g) * g;
  return grown < kLargest ? grown : kLargest;
}

GRADWIRE_ELEMENT bool is_nan_bits(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

/// A float as a bfloat16, rounded to nearest with ties away from zero, and its own lower 16 bits:
/// together they are the float again, bit for bit, because rounding up shows in the lower half's
/// first bit. NaNs become quiet and are not rounded, which would make zeros and infinities of some.
GRADWIRE_ELEMENT uint16_t upper_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((is_nan_bits(bits) ? bits | 0x400000u : bits + 0x8000u) >> 16);
}
GRADWIRE_ELEMENT uint16_t lower_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>(is_nan_bits(bits) ? bits & 0x7FFFu : bits);
}
/// Others may have written the upper half: that is what the float rounds to, whatever the lower one.
/// Nothing is rounded up to a zero or down to an infinity, which are written beside such halves.
GRADWIRE_ELEMENT float joined_halves(uint16_t upper, uint16_t lower) {
  const uint32_t magnitude = upper & 0x7FFFu, down = lower & 0x7FFFu;
  const bool written_infinity = magnitude == 0x7F80u && down == lower;
  const uint32_t kept = magnitude == 0 ? down : written_infinity ? 0u : uint32_t{lower};
  return std::bit_cast<float>(((upper - (kept >> 15)) << 16) | kept);
}

/// The master of a value of 16 bits, which others may have written: where it does not round to the
/// value, bit for bit, the value itself.
template <class T>
GRADWIRE_ELEMENT float followed(float master, T value) {
  return from_float<T>(master).bits == value.bits ? master : to_float(value);
}

}  // namespace gradwire
