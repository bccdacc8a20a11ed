#pragma once
// The numbers of 1-bit Adam and 1-bit LAMB that there is one of per parameter (onebit.cc has the
// formulas), the same bits on CPU and CUDA.

#include "gradwire/optimizers/step_rule.h"

namespace gradwire {

struct OneBitRule {
  uint64_t freeze_step;
  bool bias_correction;
  double variance_floor, coeff_beta, factor_min, factor_max, factor_threshold;
};

/// @throws InvalidArgument for bounds that leave nothing between them.
inline OneBitRule onebit_rule(const OptimizerSpec& spec) {
  check(spec.factor_min <= spec.factor_max, spec.name, ": factor_min is ", spec.factor_min,
        ", must be at most factor_max, ", spec.factor_max);
  check(spec.max_ratio == 0.0 || spec.min_ratio <= spec.max_ratio, spec.name, ": min_ratio is ",
        spec.min_ratio, ", must be at most max_ratio, ", spec.max_ratio);
  return {spec.freeze_step, spec.bias_correction, spec.variance_floor.value(), spec.coeff_beta,
          spec.factor_min,  spec.factor_max,      spec.factor_threshold};
}

/// What there is of a parameter beside its elements' state.
struct OneBitLayer {
  float coefficient = 0.0f;
  float factor = 1.0f;
  float momentum_scale = 1.0f;
};
struct OneBitCounts {
  uint64_t variance_steps = 0;  ///< of which v is the average
  uint64_t coefficients = 0;    ///< of which `coefficient` is
};

GRADWIRE_HOST_DEVICE inline float root_correction2(const OneBitRule& r, const StepSettings& s,
                                                   uint64_t steps) {
  return r.bias_correction ? adam_factors(s, steps, 1.0f).root_correction2 : 1.0f;
}

/// Of a step before the freeze.
GRADWIRE_HOST_DEVICE inline AdamFactors onebit_factors(const OneBitRule& r, const StepSettings& s,
                                                       uint64_t steps, uint64_t variance_steps,
                                                       float factor) {
  AdamFactors f = adam_factors(s, steps, factor);
  f.correction1 = r.bias_correction ? f.correction1 : 1.0f;
  f.root_correction2 = root_correction2(r, s, variance_steps);
  return f;
}

/// Of one behind it.
GRADWIRE_HOST_DEVICE inline FrozenFactors frozen_factors(const OneBitRule& r, const StepSettings& s,
                                                         float momentum_scale, uint64_t steps,
                                                         uint64_t variance_steps, float factor) {
  const AdamFactors now = adam_factors(s, steps, factor);
  const uint64_t last_variance = variance_steps == 0 ? 0 : variance_steps - 1;
  return {.beta1 = now.beta1,
          .one_minus_beta1 = now.one_minus_beta1,
          .recovery = static_cast<float>(1.0 / (1.0 - s.beta1)),
          .beta2 = now.beta2,
          .one_minus_beta2 = now.one_minus_beta2,
          .correction1 = r.bias_correction ? now.correction1 : 1.0f,
          .root_correction2 = root_correction2(r, s, last_variance),
          .fresh_root_correction2 = root_correction2(r, s, steps),
          .epsilon = now.epsilon,
          .weight_decay = now.weight_decay,
          .scale = momentum_scale,
          .unscale = 1.0f / momentum_scale,
          .factor = factor};
}

/// Behind a step of LAMB of a parameter that adapts.
GRADWIRE_HOST_DEVICE inline void average_ratio(const OneBitRule& r, const StepRule& rule,
                                               LayerNorms norms, OneBitLayer& layer,
                                               OneBitCounts& counts) {
  if (norms.values != 0.0 && norms.change != 0.0) {
    layer.coefficient = to_rate(r.coeff_beta * static_cast<double>(layer.coefficient) +
                                (1.0 - r.coeff_beta) * lamb_rate(rule, norms, 1.0));
    ++counts.coefficients;
  }
}

GRADWIRE_HOST_DEVICE inline double mean_ratio(const OneBitRule& r, float coefficient,
                                              uint64_t count) {
  const auto average = static_cast<double>(coefficient);
  if (count == 0) {  // no step adapted
    return 1.0;
  }
  return r.bias_correction ? average / (1.0 - power(r.coeff_beta, count)) : average;
}

/// r, from the largest ratio of denominators, and the sums of squares of the update without and
/// with decay.
GRADWIRE_HOST_DEVICE inline float next_factor(const OneBitRule& r, const StepSettings& s,
                                              float largest, LayerNorms squares, float last) {
  auto factor = static_cast<double>(largest);
  if (s.weight_decay > 0.0f) {
    // 1 as well where both are 0.
    const double ratio = std::sqrt(squares.values) / std::sqrt(squares.change);
    const double part = ratio < 1.0 ? ratio : 1.0;
    factor = factor * part + (1.0 - part);
  }
  const auto within = [](double x, double least, double most) {
    const double below = most < x ? most : x;
    return below < least ? least : below;
  };
  const auto before = static_cast<double>(last);
  factor = within(factor, r.factor_min, r.factor_max);
  return static_cast<float>(
      within(factor, before * (1.0 - r.factor_threshold), before * (1.0 + r.factor_threshold)));
}

/// What v is at the least where it is not 0, from its sum over a parameter.
GRADWIRE_HOST_DEVICE inline float least_variance(const OneBitRule& r, double sum, uint64_t numel) {
  return to_rate(r.variance_floor * r.variance_floor * (sum / static_cast<double>(numel)));
}

GRADWIRE_HOST_DEVICE inline float raised_variance(float v, float least) {
  return v != 0.0f && v < least ? least : v;
}

/// The power of two nearest x in ratio, within what keeps numbers near 1 within float.
GRADWIRE_HOST_DEVICE inline float nearest_power_of_two(double x) {
  int exponent = 0;
  const double part = std::frexp(x, &exponent);  // in [1/2, 1)
  const int nearest = part * part < 0.5 ? exponent - 1 : exponent;
  return std::ldexp(1.0f, nearest < -60 ? -60 : nearest > 60 ? 60 : nearest);
}

}  // namespace gradwire
