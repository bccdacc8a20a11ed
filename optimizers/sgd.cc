// Stochastic gradient descent with momentum, as in Sutskever et al., ICML 2013, with the momentum
// in gradient units and the learning rate outside:
//   d = g + wd w;  v = mu v + d;  w -= lr v          (heavy ball)
//                                 w -= lr (d + mu v)  (Nesterov)
// Without momentum there is no state: w -= lr d.

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

std::vector<std::string_view> states_of(const OptimizerSpec& spec) {
  return spec.momentum != 0.0 ? std::vector<std::string_view>{"momentum"}
                              : std::vector<std::string_view>{};
}

class Sgd final : public SteppedOptimizer {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
      const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups, states_of(spec)) {}

 private:
  void step(double learning_rate, ThreadPool& pool) override {
    set().check_gradients(pool);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      update(block, to_rate(learning_rate * block.item->learning_rate_scale));
    });
  }

  void update(const ParameterSet::Block& block, float rate) const {
    const cpu::MomentumFactors factors{.rate = rate,
                                       .momentum = static_cast<float>(spec().momentum),
                                       .weight_decay = block.item->weight_decay};
    if (spec().momentum == 0.0) {
      cpu::sgd_plain({block.value(), {}, block.gradient()}, factors);
      return;
    }
    const cpu::MomentumBlock operands{block.value(), state(block, 0), block.gradient()};
    if (spec().nesterov) {
      cpu::sgd_nesterov(operands, factors);
    } else {
      cpu::sgd_momentum(operands, factors);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                    std::vector<ParamGroup> groups) {
  return std::make_unique<Sgd>(spec, parameters, groups);
}

}  // namespace gradwire
