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
      : SteppedOptimizer(spec, parameters, groups, {"exp_avg", "exp_avg_sq"}),
        factors_(set().items().size()),
        rates_(set()) {}

 private:
  // The first pass only reads; moments are computed again by the second, which is cheaper than
  // writing them to a second pair of buffers until every gradient is known to be finite.
  void step(const StepOptions& options, ThreadPool& pool) override {
    const bool clips = spec().max_grad_norm != 0.0;  // looks at every gradient then
    const float factor = gradient_factor(options, false, pool);
    for (size_t i = 0; i < factors_.size(); ++i) {
      factors_[i] = factors_of_step(set().items()[i], factor);
    }
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      measure(block, clips || options.known_finite);
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
      block.update([&](const ParameterSet::Piece& piece) {
        cpu::adam_update(operands(block, piece), factors_of(block), rates_.of(set(), block));
      });
    });
  }

  double ratio(double values, double update) const {
    const double least = std::max(values, spec().min_norm);
    const double norm = spec().max_norm == 0.0 ? least : std::min(least, spec().max_norm);
    return spec().max_ratio == 0.0 ? norm / update : std::min(norm / update, spec().max_ratio);
  }

  static cpu::AdamFactors factors_of_step(const ParameterSet::Item& item, float factor) {
    const uint64_t t = item.steps + 1;
    return {.beta1 = static_cast<float>(item.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - item.beta1),
            .beta2 = static_cast<float>(item.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - item.beta2),
            .correction1 = static_cast<float>(1.0 / (1.0 - power(item.beta1, t))),
            .root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(item.beta2, t))),
            .epsilon = static_cast<float>(item.epsilon),
            .weight_decay = item.weight_decay,
            .factor = factor};
  }

  const cpu::AdamFactors& factors_of(const ParameterSet::Block& block) const {
    return factors_[static_cast<size_t>(block.item - set().items().data())];
  }

  /// AdamW is LAMB without adaptation.
  void check_groups(std::vector<ParamGroup>& groups) const override {
    for (ParamGroup& group : groups) {
      group.adapt = group.adapt && spec().name != "adamw";
    }
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

  std::vector<cpu::AdamFactors> factors_;  // per parameter
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
