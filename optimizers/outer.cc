// The outer step of training that exchanges only once in H inner steps, DiLoCo (Douillard et al.,
// arXiv 2311.08105), algorithm 1. Of every parameter, theta being the anchor, the value all ranks
// had when their inner steps began, and theta_i what those of rank i made of it:
//   prepare:  g = theta - theta_i, to be exchanged; the mean is D
//   apply:    v = mu v + D;  theta -= lr v              (heavy ball)
//                            theta -= lr (D + mu v)     (Nesterov, the paper's)
//             the value becomes theta
// Without momentum and with lr 1 all ranks go on from the mean of their values, which is local SGD
// (Stich, arXiv 1805.09767) and, over a compressor with a residual that decays, SparseLoCo (Sarfi
// et al., arXiv 2508.15706).

#include <algorithm>

#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {
namespace {

class Outer final : public SteppedOptimizer {
 public:
  Outer(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
        const std::vector<ParamGroup>& groups)
      : SteppedOptimizer(spec, parameters, groups) {
    for (const Parameter& parameter : parameters) {
      check_floats(parameter.name, {parameter.value, parameter.gradient});
    }
    values_taken();
  }

  void bind(std::span<const Binding> places) override {
    for (size_t i = 0; i < std::min(places.size(), set().items().size()); ++i) {
      check_floats(set().items()[i].name, places[i]);
    }
    SteppedOptimizer::bind(places);
  }

  using Optimizer::exchanges;
  Exchanged exchanges() const override { return Exchanged::kMoves; }

  using Optimizer::prepare;
  void prepare(const StepOptions& options, Context& context) override {
    SteppedOptimizer::prepare(options, context);
    check_scale_of_moves(spec().name, options);
    context.stream.enqueue([this, &pool = context.stream.pool()] {
      set().check_gradients_in_memory("prepare");
      set().for_each_block(pool, [this](const ParameterSet::Block& block) {
        block.rewrite_gradient([&](const ParameterSet::Piece& piece, std::span<float> out) {
          const std::span<const float> anchor = state(*block.item, piece, 0);
          for (size_t i = 0; i < anchor.size(); ++i) {
            out[i] = anchor[i] - piece.value[i];
          }
        });
      });
    });
  }

 private:
  void step(const StepOptions& options, ThreadPool& pool) override {
    const float factor = gradient_factor(options, !options.known_finite, pool);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      MomentumFactors factors = sgd_factors(*block.item, options.learning_rate, factor);
      factors.weight_decay = 0.0f;
      update(block, factors);
    });
  }

  void update(const ParameterSet::Block& block, const MomentumFactors& factors) const {
    block.update([&](const ParameterSet::Piece& piece) {
      const std::span<float> anchor = state(*block.item, piece, 0);
      cpu::descend({anchor, momentum(*block.item, piece, 1), piece.gradient},
                   spec().nesterov.value(), factors);
      std::copy(anchor.begin(), anchor.end(), piece.value.begin());
    });
  }

  void values_taken() override {
    for (const ParameterSet::Item& item : set().items()) {
      const std::span<float> value = item.value.as<float>();
      const std::span<float> anchor = states().floats(item, 0);
      std::copy(value.begin(), value.end(), anchor.begin());
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_outer(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                      std::vector<ParamGroup> groups) {
  return std::make_unique<Outer>(spec, parameters, groups);
}

}  // namespace gradwire
