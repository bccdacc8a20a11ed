// Stochastic gradient descent with momentum, as in Sutskever et al., ICML 2013, with the momentum
// in gradient units and the learning rate outside:
//   d = g + wd w;  v = mu v + d;  w -= lr v          (heavy ball)
//                                 w -= lr (d + mu v)  (Nesterov)
// Without momentum there is no state: w -= lr d.

#include <algorithm>

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

std::vector<std::string_view> states_of(const OptimizerSpec& spec,
                                        const std::vector<ParamGroup>& groups) {
  const bool any = std::any_of(groups.begin(), groups.end(), [&](const ParamGroup& group) {
    return group.momentum.value_or(spec.momentum) != 0.0;
  });
  return any ? std::vector<std::string_view>{"momentum"} : std::vector<std::string_view>{};
}

class Sgd final : public SteppedOptimizer {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
      const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups, states_of(spec, groups)),
        has_momentum_(!states_of(spec, groups).empty()) {}

 private:
  void step(const StepOptions& options, ThreadPool& pool) override {
    const float factor = gradient_factor(options, !options.known_finite, pool);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      const double rate = options.learning_rate * block.item->learning_rate_scale;
      update(block, {.factor = factor,
                     .weight_decay = block.item->weight_decay,
                     .scale = 1.0f,
                     .momentum = block.item->momentum,
                     .rate = to_rate(rate)});
    });
  }

  void check_groups(std::vector<ParamGroup>& groups) const override {
    check(has_momentum_ || states_of(spec(), groups).empty(),
          "sgd: a group has a momentum, expected 0 as in all groups when the optimizer was made: "
          "there is no state for it");
  }

  void update(const ParameterSet::Block& block, const cpu::MomentumFactors& factors) const {
    block.update([&](const ParameterSet::Piece& piece) {
      if (factors.momentum == 0.0f) {
        cpu::plain_step({piece.value, {}, piece.gradient}, factors);
        return;
      }
      const cpu::MomentumBlock operands{piece.value, state(*block.item, piece, 0), piece.gradient};
      if (spec().nesterov) {
        cpu::nesterov_step(operands, factors);
      } else {
        cpu::momentum_step(operands, factors);
      }
    });
  }

  const bool has_momentum_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                    std::vector<ParamGroup> groups) {
  return std::make_unique<Sgd>(spec, parameters, groups);
}

}  // namespace gradwire
