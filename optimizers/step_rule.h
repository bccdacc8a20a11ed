#pragma once
// What an optimizer's spec makes of a step, in double precision, and the sizes of steps that follow
// from norms: once per step or per parameter, the same bits on CPU and CUDA.

#include <cmath>
#include <string_view>
#include <vector>

#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/step_element.h"

namespace gradwire {

enum class StepForm : uint8_t { kSgd, kLars, kAdam };

/// A spec's numbers as the host and kernels use them.
struct StepRule {
  StepForm form;
  bool layerwise;  ///< rates follow two norms of each parameter that adapts
  bool has_codes;  ///< some parameters' state may be of 8 bits
  bool outer;      ///< steps an anchor, of what local steps have moved values by
  bool nesterov, rate_in_momentum, clip_rate, decayed_norm, decay_at_zero;
  double trust_coefficient, min_norm, max_norm, min_ratio, max_ratio, max_grad_norm;
};

StepRule step_rule(const OptimizerSpec& spec);

/// Of one parameter, from its group and the spec.
struct StepSettings {
  float weight_decay = 0.0f;
  float momentum = 0.0f;
  double learning_rate_scale = 1.0;
  double beta1 = 0.0, beta2 = 0.0, epsilon = 0.0;
  bool adapt = true;
  bool replica = false;  ///< of a slice that another rank counts
};

/// The state there is one number of per element, by name. It outlives every optimizer.
std::vector<std::string_view> state_names(const OptimizerSpec& spec,
                                          const std::vector<ParamGroup>& groups);
/// Whether codes of 8 bits of this state have a sign: all but those of mean squares.
inline bool state_has_sign(std::string_view name) { return !name.starts_with("exp_avg_sq"); }
/// Whether state of a parameter of the group is of 8 bits.
bool keeps_codes(const OptimizerSpec& spec, const ParamGroup& group, size_t numel);
/// What groups mean to this optimizer. @throws InvalidArgument where they ask for state that an
/// optimizer with `states` does not have.
std::vector<ParamGroup> adjusted_groups(const OptimizerSpec& spec,
                                        const std::vector<std::string_view>& states,
                                        std::vector<ParamGroup> groups);

/// A step size as the loops use it; what float cannot hold becomes its largest value.
GRADWIRE_HOST_DEVICE inline float to_rate(double rate) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(kLargest < rate ? kLargest : rate);
}

/// What gradients are multiplied by, from the sum of their squares: `scale`, and what brings their
/// norm down to `max_norm`.
GRADWIRE_HOST_DEVICE inline double clipped_scale(double scale, double squares, double max_norm) {
  const double excess = scale * std::sqrt(squares) / max_norm;
  return scale / (1.0 < excess ? excess : 1.0);
}

/// By repeated squaring: pow() may differ between the libraries of two ranks.
GRADWIRE_HOST_DEVICE inline double power(double base, uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 == 1) {
      result *= base;
    }
    base *= base;
  }
  return result;
}

/// Of a parameter that has made `steps` steps.
GRADWIRE_HOST_DEVICE inline AdamFactors adam_factors(const StepSettings& s, uint64_t steps,
                                                     float factor) {
  const uint64_t t = steps + 1;
  return {.beta1 = static_cast<float>(s.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - s.beta2),
          .correction1 = static_cast<float>(1.0 / (1.0 - power(s.beta1, t))),
          .root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(s.beta2, t))),
          .epsilon = static_cast<float>(s.epsilon),
          .weight_decay = s.weight_decay,
          .factor = factor};
}

/// The two norms of a parameter that its rate follows, as they enter the formula.
struct LayerNorms {
  double values;
  double change;  ///< of gradients (lars), of gradients with decay (decayed_norm), of the update u
};

/// What ranks add up of a slice's sum of squares: of a replica nothing, but what is not finite.
GRADWIRE_HOST_DEVICE inline double counted_squares(const StepSettings& s, double squares) {
  constexpr double kLargest = std::numeric_limits<double>::max();
  return s.replica && squares <= kLargest ? 0.0 : squares;
}

/// LAMB's: rate min(max(phi(||w||) / ||u||, min_ratio), max_ratio).
GRADWIRE_HOST_DEVICE inline double lamb_rate(const StepRule& r, LayerNorms norms, double rate) {
  const double least = norms.values < r.min_norm ? r.min_norm : norms.values;
  const double norm = r.max_norm != 0.0 && r.max_norm < least ? r.max_norm : least;
  const double plain = norm / norms.change;
  const double ratio = plain < r.min_ratio ? r.min_ratio : plain;
  return rate * (r.max_ratio != 0.0 && r.max_ratio < ratio ? r.max_ratio : ratio);
}

/// LARS's scale of d: the ratio, times the learning rate where the momentum holds steps.
GRADWIRE_HOST_DEVICE inline double lars_rate(const StepRule& r, const StepSettings& s,
                                             LayerNorms norms, double rate, double factor) {
  const double decay = static_cast<double>(s.weight_decay);
  const double changed =
      r.decayed_norm ? norms.change : factor * norms.change + decay * norms.values;
  const double local = r.trust_coefficient * norms.values / (changed + s.epsilon);
  if (r.clip_rate && local >= rate) {
    return r.rate_in_momentum ? rate : 1.0;
  }
  const double adapted = r.clip_rate ? local / rate : local;
  return r.rate_in_momentum ? rate * adapted : adapted;
}

/// The rate that follows the norms, of LAMB or the scale of LARS; the plain one where nothing
/// adapts and where a norm is 0.
GRADWIRE_HOST_DEVICE inline float layer_rate(const StepRule& r, const StepSettings& s,
                                             LayerNorms norms, double learning_rate, float factor) {
  const double rate = learning_rate * s.learning_rate_scale;
  const bool adapts = s.adapt && norms.values != 0.0 && norms.change != 0.0;
  if (r.form == StepForm::kAdam) {
    return to_rate(adapts ? lamb_rate(r, norms, rate) : rate);
  }
  const double plain = r.rate_in_momentum ? rate : 1.0;
  return to_rate(adapts ? lars_rate(r, s, norms, rate, static_cast<double>(factor)) : plain);
}

/// What SGD's loops take.
GRADWIRE_HOST_DEVICE inline MomentumFactors sgd_factors(const StepSettings& s, double learning_rate,
                                                        float factor) {
  return {.factor = factor,
          .weight_decay = s.weight_decay,
          .scale = 1.0f,
          .momentum = s.momentum,
          .rate = to_rate(learning_rate * s.learning_rate_scale)};
}

/// What the loops of LARS take. `still`: it adapts and its change has the norm 0.
GRADWIRE_HOST_DEVICE inline MomentumFactors lars_factors(const StepRule& r, const StepSettings& s,
                                                         bool still, float scale,
                                                         double learning_rate, float factor) {
  return {.factor = factor,
          .weight_decay = r.decay_at_zero || !still ? s.weight_decay : 0.0f,
          .scale = scale,
          .momentum = s.momentum,
          .rate = r.rate_in_momentum ? 1.0f : to_rate(learning_rate * s.learning_rate_scale)};
}

}  // namespace gradwire
