// Stochastic gradient descent with momentum, as in Sutskever et al., ICML 2013, with the momentum
// in gradient units and the learning rate outside:
//   d = g + wd w;  v = mu v + d;  w -= lr v          (heavy ball)
//                                 w -= lr (d + mu v)  (Nesterov)
// Without momentum there is no state: w -= lr d.

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

class Sgd final : public SteppedOptimizer {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
      const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups) {}

 private:
  void step(const StepOptions& options, ThreadPool& pool) override {
    const float factor = gradient_factor(options, !options.known_finite, pool);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      update(block, sgd_factors(*block.item, options.learning_rate, factor));
    });
  }

  void update(const ParameterSet::Block& block, const MomentumFactors& factors) const {
    const bool still = factors.weight_decay == 0.0f && block.item->momentum == 0.0f;
    if (still && block.gradient_known_zero()) {
      return;
    }
    block.update([&](const ParameterSet::Piece& piece) {
      descend(*block.item, piece, block.item->momentum != 0.0f, factors);
    });
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                    std::vector<ParamGroup> groups) {
  return std::make_unique<Sgd>(spec, parameters, groups);
}

}  // namespace gradwire
