#include "gradwire/optimizers/step_rule.h"

#include <algorithm>

namespace gradwire {

namespace {

/// LAMB without adaptation.
bool is_plain_adam(const OptimizerSpec& spec) {
  return spec.name == "adamw" || spec.name == "onebit-adam";
}

/// Rows that know nothing of codes keep floats, whatever a spec made by hand says.
bool has_codes(const OptimizerSpec& spec) {
  return spec.name != "diloco" && spec.state == StateBits::kEight;
}

}  // namespace

StepRule step_rule(const OptimizerSpec& spec) {
  const bool layerwise_adam = spec.name == "lamb" || spec.name == "onebit-lamb";
  const bool adam = layerwise_adam || is_plain_adam(spec);
  const bool sgd = spec.name == "sgd" || spec.name == "diloco";
  return {.form = adam ? StepForm::kAdam : (sgd ? StepForm::kSgd : StepForm::kLars),
          .layerwise = !sgd && !is_plain_adam(spec),
          .has_codes = has_codes(spec),
          .outer = spec.name == "diloco",
          .nesterov = spec.nesterov.value(),
          .rate_in_momentum = spec.rate_in_momentum.value(),
          .clip_rate = spec.clip_rate.value(),
          .decayed_norm = spec.decayed_norm,
          .decay_at_zero = spec.decay_at_zero.value(),
          .trust_coefficient = spec.trust_coefficient.value(),
          .min_norm = spec.min_norm,
          .max_norm = spec.max_norm,
          .min_ratio = spec.min_ratio,
          .max_ratio = spec.max_ratio,
          .max_grad_norm = spec.max_grad_norm};
}

std::vector<std::string_view> state_names(const OptimizerSpec& spec,
                                          const std::vector<ParamGroup>& groups) {
  if (spec.name == "diloco") {
    return {"anchor", "momentum"};
  }
  const StepForm form = step_rule(spec).form;
  if (form == StepForm::kAdam) {
    return spec.name == "onebit-lamb"
               ? std::vector<std::string_view>{"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"}
               : std::vector<std::string_view>{"exp_avg", "exp_avg_sq"};
  }
  const bool any = std::any_of(groups.begin(), groups.end(), [&](const ParamGroup& group) {
    return group.momentum.value_or(spec.momentum) != 0.0;
  });
  return any || form == StepForm::kLars ? std::vector<std::string_view>{"momentum"}
                                        : std::vector<std::string_view>{};
}

bool keeps_codes(const OptimizerSpec& spec, const ParamGroup& group, size_t numel) {
  return has_codes(spec) && !group.full_state && numel != 0 && numel >= spec.min_8bit_size;
}

std::vector<ParamGroup> adjusted_groups(const OptimizerSpec& spec,
                                        const std::vector<std::string_view>& states,
                                        std::vector<ParamGroup> groups) {
  check(state_names(spec, groups).size() <= states.size(), spec.name,
        ": a group has a momentum, expected 0 as in all groups when the optimizer was made: "
        "there is no state for it");
  for (ParamGroup& group : groups) {
    group.adapt = group.adapt && !is_plain_adam(spec);
  }
  return groups;
}

}  // namespace gradwire
