// Adam with decoupled weight decay, Loshchilov and Hutter, arXiv 1711.05101, and LAMB, You et al.,
// arXiv 1904.00962 (version 5), algorithm 2. Of every parameter:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w
//   adamw: w -= lr u
//   lamb:  w -= lr min(phi(||w||) / ||u||, max_ratio) u,  phi(x) = min(max(x, min_norm), max_norm)
// LAMB's ratio is 1 where a norm is 0 and where nothing adapts, and it is AdamW there.

#include "gradwire/optimizers/adam.h"

#include <limits>

#include "gradwire/optimizers/registry.h"

namespace gradwire {

Adam::Adam(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
           const std::vector<ParamGroup>& groups)
    : SteppedOptimizer(spec, parameters, groups), rates_(set()), factors_(set().items().size()) {}

// The first pass only reads; moments are computed again by the second, which is cheaper than
// writing them to a second pair of buffers until every gradient is known to be finite.
void Adam::step(const StepOptions& options, ThreadPool& pool) {
  const bool clips = spec().max_grad_norm != 0.0;  // looks at every gradient then
  const float factor = gradient_factor(options, false, pool);
  for (size_t i = 0; i < factors_.size(); ++i) {
    factors_[i] = factors(i, factor);
  }
  set().for_each_block(pool, [&](const ParameterSet::Block& block) {
    measure(block, clips || options.known_finite);
  });
  rates_.set(set(), pool, rule(), options, factor);
  set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
    block.update([&](const ParameterSet::Piece& piece) {
      Moments scratch;
      const cpu::AdamBlock all = operands(block, piece, scratch);
      cpu::adam_update(all, factors_[place(block)], rates_.of(set(), block));
      states().store(*block.item, piece, {all.exp_avg, all.exp_avg_sq});
    });
  });
}

cpu::AdamBlock Adam::operands(const ParameterSet::Block& block, const ParameterSet::Piece& piece,
                              Moments& scratch) const {
  return {piece.value, states().load(*block.item, piece, 0, scratch.exp_avg),
          states().load(*block.item, piece, 1, scratch.exp_avg_sq), piece.gradient};
}

void Adam::look_at(const ParameterSet::Block& block, bool finite) {
  rates_.change_squares[block.index] =
      finite || all_finite(block) ? 0.0 : std::numeric_limits<double>::infinity();
}

void Adam::measure(const ParameterSet::Block& block, bool finite) {
  if (!block.item->adapt) {  // no norm is needed, but the gradient must be finite all the same
    look_at(block, finite);
    return;
  }
  double& values = rates_.value_squares[block.index] = 0.0;
  double& change = rates_.change_squares[block.index] = 0.0;
  block.read([&](const ParameterSet::Piece& piece) {
    values += cpu::sum_of_squares(piece.value);
    Moments scratch;
    change += cpu::adam_sum_of_squares(operands(block, piece, scratch), factors_[place(block)]);
  });
}

std::unique_ptr<Optimizer> make_adam(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Adam>(spec, parameters, groups);
}

}  // namespace gradwire
