// LAMB, You et al., arXiv 1904.00962 (version 5), algorithm 2 with phi the identity, per layer:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   w -= lr ||w|| / ||r + wd w|| (r + wd w)
// The ratio is 1 where a norm is 0 and for groups that do not adapt.

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

class Lamb final : public SteppedOptimizer {
 public:
  Lamb(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups, {"exp_avg", "exp_avg_sq"}), rates_(set()) {}

 private:
  // The first pass only reads; moments are computed again by the second, which is cheaper than
  // writing them to a second pair of buffers until every gradient is known to be finite.
  void step(double learning_rate, ThreadPool& pool) override {
    const cpu::LambFactors shared = factors_of_step(steps() + 1);
    set().for_each_block(pool, [&](const ParameterSet::Block& block) { measure(block, shared); });
    rates_.set(learning_rate, set(), pool,
               [](const ParameterSet::Item&, double values, double update) {
                 return values / update;
               });
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      cpu::lamb_update(operands(block), with_decay(shared, block), rates_.of(set(), block));
    });
  }

  cpu::LambFactors factors_of_step(uint64_t t) const {
    return {.beta1 = static_cast<float>(spec().beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - spec().beta1),
            .beta2 = static_cast<float>(spec().beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - spec().beta2),
            .correction1 = static_cast<float>(1.0 / (1.0 - power(spec().beta1, t))),
            .root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(spec().beta2, t))),
            .epsilon = static_cast<float>(spec().epsilon),
            .weight_decay = 0.0f};
  }

  static cpu::LambFactors with_decay(cpu::LambFactors factors, const ParameterSet::Block& block) {
    factors.weight_decay = block.item->weight_decay;
    return factors;
  }

  cpu::LambBlock operands(const ParameterSet::Block& block) const {
    return {block.value(), state(block, 0), state(block, 1), block.gradient()};
  }

  void measure(const ParameterSet::Block& block, const cpu::LambFactors& shared) {
    if (!block.item->adapt) {  // no norm is needed, but the gradient must be finite all the same
      rates_.change_squares[block.index] =
          cpu::all_finite(block.gradient()) ? 0.0 : std::numeric_limits<double>::infinity();
      return;
    }
    rates_.value_squares[block.index] = cpu::sum_of_squares(block.value());
    rates_.change_squares[block.index] =
        cpu::lamb_sum_of_squares(operands(block), with_decay(shared, block));
  }

  LayerRates rates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Lamb>(spec, parameters, groups);
}

}  // namespace gradwire
