// LARS, You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1, per layer:
//   local = eta ||w|| / (||g|| + wd ||w|| + eps)
//   v = mu v + lr local (g + wd w);  w -= v
// The ratio `local` is 1 where a norm is 0 and for groups that do not adapt. The paper has no eps.

#include <cmath>

#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"

namespace gradwire {
namespace {

class Lars final : public Optimizer {
 public:
  Lars(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : spec_(spec),
        set_(spec, parameters, groups),
        momentum_(set_.make_state()),
        value_squares_(set_.blocks().size()),
        gradient_squares_(set_.blocks().size()),
        rates_(set_.items().size()) {}

  const OptimizerSpec& spec() const override { return spec_; }

  void prepare(Context&) override {}

  void apply(double learning_rate, Context& context) override {
    check_learning_rate(spec_.name, learning_rate);
    context.stream.enqueue(
        [this, learning_rate, &pool = context.stream.pool()] { step(learning_rate, pool); });
  }

  void visit_state(StateVisitor& visitor) override {
    visitor.scalar("step", step_);
    for (const ParameterSet::Item& item : set_.items()) {
      visitor.tensor(item.name, "momentum", set_.state_view(momentum_, item));
    }
  }

 private:
  void step(double learning_rate, ThreadPool& pool) {
    set_.for_each_block(pool, [this](const ParameterSet::Block& block) { measure(block); });
    set_rates(learning_rate, pool);
    set_.for_each_block_backwards(pool, [this](const ParameterSet::Block& block) {
      const cpu::MomentumFactors factors{.rate = rate_of(block),
                                         .momentum = static_cast<float>(spec_.momentum),
                                         .weight_decay = block.item->weight_decay};
      cpu::lars_momentum({block.value(), block.state(momentum_), block.gradient()}, factors);
    });
    ++step_;
  }

  // The gradient's sum is not finite exactly when an element is not.
  void measure(const ParameterSet::Block& block) {
    gradient_squares_[block.index] = cpu::sum_of_squares(block.gradient());
    if (block.item->adapt) {
      value_squares_[block.index] = cpu::sum_of_squares(block.value());
    }
  }

  void set_rates(double learning_rate, ThreadPool& pool) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const ParameterSet::Item& item = set_.items()[i];
      const double gradient_square = sum_of_blocks(item, gradient_squares_);
      if (!std::isfinite(gradient_square)) {
        set_.check_gradients(pool);
      }
      const double value_norm = std::sqrt(sum_of_blocks(item, value_squares_));
      rates_[i] = to_rate(learning_rate * item.learning_rate_scale *
                          ratio(item, value_norm, std::sqrt(gradient_square)));
    }
  }

  double ratio(const ParameterSet::Item& item, double value_norm, double gradient_norm) const {
    if (!item.adapt || value_norm == 0.0 || gradient_norm == 0.0) {
      return 1.0;
    }
    return spec_.trust_coefficient * value_norm /
           (gradient_norm + static_cast<double>(item.weight_decay) * value_norm + spec_.epsilon);
  }

  float rate_of(const ParameterSet::Block& block) const {
    return rates_[static_cast<size_t>(block.item - set_.items().data())];
  }

  const OptimizerSpec spec_;
  ParameterSet set_;
  Buffer momentum_;
  std::vector<double> value_squares_;     // per block
  std::vector<double> gradient_squares_;  // per block
  std::vector<float> rates_;              // per parameter
  uint64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Lars>(spec, parameters, groups);
}

}  // namespace gradwire
