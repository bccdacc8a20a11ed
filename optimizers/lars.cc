// LARS, You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1, per layer:
//   local = eta ||w|| / (||g|| + wd ||w|| + eps);  d = local (g + wd w)
//   v = mu v + lr d;  w -= v
// and as others write it:
//   rate_in_momentum=0  v = mu v + d;  w -= lr v
//   nesterov=1          the weights take d + mu v (lr d + mu v) in the place of v
//   clip_rate=1         min(local, lr) in the place of lr local: LARC, which is the row larc
//   decayed_norm=1      ||g + wd w|| in the place of ||g|| + wd ||w||
//   decay_at_zero=0     d = 0 where ||g|| is 0; without decayed_norm
// The ratio `local` is 1 where a norm is 0 and where nothing adapts. The paper has no eps.

#include <algorithm>

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

class Lars final : public SteppedOptimizer {
 public:
  Lars(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups), scales_(set()) {}

 private:
  void step(const StepOptions& options, ThreadPool& pool) override {
    const float factor = gradient_factor(options, false, pool);
    set().for_each_block(pool, [&](const ParameterSet::Block& block) { measure(block, factor); });
    scales_.set(set(), pool, rule(), options, factor);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      update(block, lars_factors(rule(), *block.item, scales_.still(set(), block),
                                 scales_.of(set(), block), options.learning_rate, factor));
    });
  }

  // The gradient's sum is not finite exactly when an element is not.
  void measure(const ParameterSet::Block& block, float factor) {
    double& change = scales_.change_squares[block.index] = 0.0;
    if (!block.item->adapt) {
      change = gradient_sum_of_squares(block);
      return;
    }
    double& values = scales_.value_squares[block.index] = 0.0;
    block.read([&](const ParameterSet::Piece& piece) {
      change += spec().decayed_norm ? cpu::decayed_sum_of_squares(piece.value, piece.gradient,
                                                                  factor, block.item->weight_decay)
                                    : cpu::sum_of_squares(piece.gradient);
      values += cpu::sum_of_squares(piece.value);
    });
  }

  void update(const ParameterSet::Block& block, const MomentumFactors& factors) const {
    block.update(
        [&](const ParameterSet::Piece& piece) { descend(*block.item, piece, true, factors); });
  }

  LayerRates scales_;  // of d: the ratio, times the learning rate where the momentum holds steps
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Lars>(spec, parameters, groups);
}

}  // namespace gradwire
