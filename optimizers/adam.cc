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

class Adam final : public SteppedOptimizer {
 public:
  Adam(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups), factors_(set().items().size()), rates_(set()) {}

 private:
  // The first pass only reads; moments are computed again by the second, which is cheaper than
  // writing them to a second pair of buffers until every gradient is known to be finite.
  void step(const StepOptions& options, ThreadPool& pool) override {
    const bool clips = spec().max_grad_norm != 0.0;  // looks at every gradient then
    const float factor = gradient_factor(options, false, pool);
    for (size_t i = 0; i < factors_.size(); ++i) {
      const ParameterSet::Item& item = set().items()[i];
      factors_[i] = adam_factors(item, item.steps, factor);
    }
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      measure(block, clips || options.known_finite);
    });
    rates_.set(set(), pool, rule(), options.learning_rate, factor);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      block.update([&](const ParameterSet::Piece& piece) {
        cpu::adam_update(operands(block, piece), factors_of(block), rates_.of(set(), block));
      });
    });
  }

  const AdamFactors& factors_of(const ParameterSet::Block& block) const {
    return factors_[static_cast<size_t>(block.item - set().items().data())];
  }

  cpu::AdamBlock operands(const ParameterSet::Block& block,
                          const ParameterSet::Piece& piece) const {
    return {piece.value, state(*block.item, piece, 0), state(*block.item, piece, 1),
            piece.gradient};
  }

  void measure(const ParameterSet::Block& block, bool finite) {
    if (!block.item->adapt) {  // no norm is needed, but the gradient must be finite all the same
      rates_.change_squares[block.index] =
          finite || all_finite(block) ? 0.0 : std::numeric_limits<double>::infinity();
      return;
    }
    double& values = rates_.value_squares[block.index] = 0.0;
    double& change = rates_.change_squares[block.index] = 0.0;
    block.read([&](const ParameterSet::Piece& piece) {
      values += cpu::sum_of_squares(piece.value);
      change += cpu::adam_sum_of_squares(operands(block, piece), factors_of(block));
    });
  }

  std::vector<AdamFactors> factors_;  // per parameter
  LayerRates rates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Adam>(spec, parameters, groups);
}

}  // namespace gradwire
