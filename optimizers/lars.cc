// LARS, You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1, per layer:
//   local = eta ||w|| / (||g|| + wd ||w|| + eps)
//   v = mu v + lr local (g + wd w);  w -= v
// The ratio `local` is 1 where a norm is 0 and for groups that do not adapt. The paper has no eps.

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

class Lars final : public SteppedOptimizer {
 public:
  Lars(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups, {"momentum"}), rates_(set()) {}

 private:
  void step(double learning_rate, ThreadPool& pool) override {
    set().for_each_block(pool, [this](const ParameterSet::Block& block) { measure(block); });
    rates_.set(learning_rate, set(), pool,
               [this](const ParameterSet::Item& item, double values, double gradient) {
                 const auto decay = static_cast<double>(item.weight_decay);
                 return spec().trust_coefficient * values /
                        (gradient + decay * values + spec().epsilon);
               });
    set().for_each_block_backwards(pool, [this](const ParameterSet::Block& block) {
      const cpu::MomentumFactors factors{.rate = rates_.of(set(), block),
                                         .momentum = static_cast<float>(spec().momentum),
                                         .weight_decay = block.item->weight_decay};
      cpu::lars_momentum({block.value(), state(block, 0), block.gradient()}, factors);
    });
  }

  // The gradient's sum is not finite exactly when an element is not.
  void measure(const ParameterSet::Block& block) {
    rates_.change_squares[block.index] = cpu::sum_of_squares(block.gradient());
    if (block.item->adapt) {
      rates_.value_squares[block.index] = cpu::sum_of_squares(block.value());
    }
  }

  LayerRates rates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Lars>(spec, parameters, groups);
}

}  // namespace gradwire
