// Stochastic gradient descent with momentum, as in Sutskever et al., ICML 2013, with the momentum
// in gradient units and the learning rate outside:
//   d = g + wd w;  v = mu v + d;  w -= lr v          (heavy ball)
//                                 w -= lr (d + mu v)  (Nesterov)
// Without momentum there is no state: w -= lr d.

#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"

namespace gradwire {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
      const std::vector<ParamGroup>& groups)
      : spec_(spec), set_(spec, parameters, groups) {
    if (has_momentum()) {
      momentum_ = set_.make_state();
    }
  }

  const OptimizerSpec& spec() const override { return spec_; }

  void prepare(Context&) override {}

  void apply(double learning_rate, Context& context) override {
    check_learning_rate(spec_.name, learning_rate);
    context.stream.enqueue(
        [this, learning_rate, &pool = context.stream.pool()] { step(learning_rate, pool); });
  }

  void visit_state(StateVisitor& visitor) override {
    visitor.scalar("step", step_);
    if (has_momentum()) {
      for (const ParameterSet::Item& item : set_.items()) {
        visitor.tensor(item.name, "momentum", set_.state_view(momentum_, item));
      }
    }
  }

 private:
  bool has_momentum() const { return spec_.momentum != 0.0; }

  void step(double learning_rate, ThreadPool& pool) {
    set_.check_gradients(pool);
    set_.for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      update(block, to_rate(learning_rate * block.item->learning_rate_scale));
    });
    ++step_;
  }

  void update(const ParameterSet::Block& block, float rate) const {
    const cpu::MomentumFactors factors{.rate = rate,
                                       .momentum = static_cast<float>(spec_.momentum),
                                       .weight_decay = block.item->weight_decay};
    if (!has_momentum()) {
      cpu::sgd_plain({block.value(), {}, block.gradient()}, factors);
      return;
    }
    const cpu::MomentumBlock operands{block.value(), block.state(momentum_), block.gradient()};
    if (spec_.nesterov) {
      cpu::sgd_nesterov(operands, factors);
    } else {
      cpu::sgd_momentum(operands, factors);
    }
  }

  const OptimizerSpec spec_;
  ParameterSet set_;
  Buffer momentum_;
  uint64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                    std::vector<ParamGroup> groups) {
  return std::make_unique<Sgd>(spec, parameters, groups);
}

}  // namespace gradwire
