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

/// A float as a bfloat16, rounded to nearest with ties away from zero, and its own lower 16 bits:
/// together they are the float again, bit for bit, because rounding up shows in the lower half's
/// first bit.
GRADWIRE_ELEMENT uint16_t upper_half(float x) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0x8000u) >> 16);
}
GRADWIRE_ELEMENT uint16_t lower_half(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(x));
}
GRADWIRE_ELEMENT float joined_halves(uint16_t upper, uint16_t lower) {
  const uint32_t rounded_up = lower >> 15;
  return std::bit_cast<float>(((upper - rounded_up) << 16) | lower);
}

}  // namespace gradwire
