// Adam with decoupled weight decay, Loshchilov and Hutter, arXiv 1711.05101, and LAMB, You et al.,
// arXiv 1904.00962 (version 5), algorithm 2. Of every parameter:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w
//   adamw: w -= lr u
//   lamb:  w -= lr min(phi(||w||) / ||u||, max_ratio) u,  phi(x) = min(max(x, min_norm), max_norm)
// LAMB's ratio is 1 where a norm is 0 and where nothing adapts, and it is AdamW there.

#include <algorithm>
#include <cmath>

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

/// By repeated squaring: std::pow may differ between the C libraries of two ranks.
double power(double base, uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 == 1) {
      result *= base;
    }
    base *= base;
  }
  return result;
}

class Adam final : public SteppedOptimizer {
 public:
  Adam(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups, {"exp_avg", "exp_avg_sq"}), rates_(set()) {}

 private:
  // The first pass only reads; moments are computed again by the second, which is cheaper than
  // writing them to a second pair of buffers until every gradient is known to be finite.
  void step(const StepOptions& options, ThreadPool& pool) override {
    const bool clips = spec().max_grad_norm != 0.0;  // looks at every gradient then
    const float factor = gradient_factor(options, false, pool);
    const cpu::AdamFactors shared = factors_of_step(steps() + 1, factor);
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      measure(block, shared, clips || options.known_finite);
    });
    const auto plain = [&](const ParameterSet::Item& item) {
      return options.learning_rate * item.learning_rate_scale;
    };
    rates_.set(
        set(), pool,
        [&](const ParameterSet::Item& item, double values, double update) {
          return plain(item) * ratio(values, update);
        },
        plain);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      cpu::adam_update(operands(block), with_decay(shared, block), rates_.of(set(), block));
    });
  }

  double ratio(double values, double update) const {
    const double least = std::max(values, spec().min_norm);
    const double norm = spec().max_norm == 0.0 ? least : std::min(least, spec().max_norm);
    return spec().max_ratio == 0.0 ? norm / update : std::min(norm / update, spec().max_ratio);
  }

  cpu::AdamFactors factors_of_step(uint64_t t, float factor) const {
    return {.beta1 = static_cast<float>(spec().beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - spec().beta1),
            .beta2 = static_cast<float>(spec().beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - spec().beta2),
            .correction1 = static_cast<float>(1.0 / (1.0 - power(spec().beta1, t))),
            .root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(spec().beta2, t))),
            .epsilon = static_cast<float>(spec().epsilon),
            .weight_decay = 0.0f,
            .factor = factor};
  }

  static cpu::AdamFactors with_decay(cpu::AdamFactors factors, const ParameterSet::Block& block) {
    factors.weight_decay = block.item->weight_decay;
    return factors;
  }

  cpu::AdamBlock operands(const ParameterSet::Block& block) const {
    return {block.value(), state(block, 0), state(block, 1), block.gradient()};
  }

  void measure(const ParameterSet::Block& block, const cpu::AdamFactors& shared, bool finite) {
    if (!block.item->adapt) {  // no norm is needed, but the gradient must be finite all the same
      rates_.change_squares[block.index] = finite || cpu::all_finite(block.gradient())
                                               ? 0.0
                                               : std::numeric_limits<double>::infinity();
      return;
    }
    rates_.value_squares[block.index] = cpu::sum_of_squares(block.value());
    rates_.change_squares[block.index] =
        cpu::adam_sum_of_squares(operands(block), with_decay(shared, block));
  }

  LayerRates rates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                      std::vector<ParamGroup> groups) {
  for (ParamGroup& group : groups) {
    group.adapt = false;
  }
  return std::make_unique<Adam>(spec, parameters, groups);
}

std::unique_ptr<Optimizer> make_lamb(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Adam>(spec, parameters, groups);
}

}  // namespace gradwire
