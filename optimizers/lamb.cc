// LAMB, You et al., arXiv 1904.00962 (version 5), algorithm 2 with phi the identity, per layer:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   w -= lr ||w|| / ||r + wd w|| (r + wd w)
// The ratio is 1 where a norm is 0 and for groups that do not adapt.

#include <cmath>

#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/step.h"

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

class Lamb final : public Optimizer {
 public:
  Lamb(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups)
      : spec_(spec),
        set_(spec, parameters, groups),
        exp_avg_(set_.make_state()),
        exp_avg_sq_(set_.make_state()),
        value_squares_(set_.blocks().size()),
        update_squares_(set_.blocks().size()),
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
      visitor.tensor(item.name, "exp_avg", set_.state_view(exp_avg_, item));
      visitor.tensor(item.name, "exp_avg_sq", set_.state_view(exp_avg_sq_, item));
    }
  }

 private:
  // The first pass only reads; moments are computed again by the second, which is cheaper than
  // writing them to a second pair of buffers until every gradient is known to be finite.
  void step(double learning_rate, ThreadPool& pool) {
    const cpu::LambFactors shared = factors_of_step(step_ + 1);
    set_.for_each_block(pool, [&](const ParameterSet::Block& block) { measure(block, shared); });
    set_rates(learning_rate, pool);
    set_.for_each_block_backwards(pool, [&](const ParameterSet::Block& block) {
      cpu::lamb_update(operands(block), with_decay(shared, block), rate_of(block));
    });
    ++step_;
  }

  cpu::LambFactors factors_of_step(uint64_t t) const {
    return {.beta1 = static_cast<float>(spec_.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - spec_.beta1),
            .beta2 = static_cast<float>(spec_.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - spec_.beta2),
            .correction1 = static_cast<float>(1.0 / (1.0 - power(spec_.beta1, t))),
            .root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(spec_.beta2, t))),
            .epsilon = static_cast<float>(spec_.epsilon),
            .weight_decay = 0.0f};
  }

  static cpu::LambFactors with_decay(cpu::LambFactors factors, const ParameterSet::Block& block) {
    factors.weight_decay = block.item->weight_decay;
    return factors;
  }

  cpu::LambBlock operands(const ParameterSet::Block& block) const {
    return {block.value(), block.state(exp_avg_), block.state(exp_avg_sq_), block.gradient()};
  }

  void measure(const ParameterSet::Block& block, const cpu::LambFactors& shared) {
    if (!block.item->adapt) {  // no norm is needed, but the gradient must be finite all the same
      update_squares_[block.index] =
          cpu::all_finite(block.gradient()) ? 0.0 : std::numeric_limits<double>::infinity();
      return;
    }
    value_squares_[block.index] = cpu::sum_of_squares(block.value());
    update_squares_[block.index] =
        cpu::lamb_sum_of_squares(operands(block), with_decay(shared, block));
  }

  void set_rates(double learning_rate, ThreadPool& pool) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const ParameterSet::Item& item = set_.items()[i];
      const double update_square = sum_of_blocks(item, update_squares_);
      if (!std::isfinite(update_square)) {
        set_.check_gradients(pool);
      }
      const double value_norm = std::sqrt(sum_of_blocks(item, value_squares_));
      rates_[i] = to_rate(learning_rate * item.learning_rate_scale *
                          ratio(item, value_norm, std::sqrt(update_square)));
    }
  }

  static double ratio(const ParameterSet::Item& item, double value_norm, double update_norm) {
    if (!item.adapt || value_norm == 0.0 || update_norm == 0.0) {
      return 1.0;
    }
    return value_norm / update_norm;
  }

  float rate_of(const ParameterSet::Block& block) const {
    return rates_[static_cast<size_t>(block.item - set_.items().data())];
  }

  const OptimizerSpec spec_;
  ParameterSet set_;
  Buffer exp_avg_;
  Buffer exp_avg_sq_;
  std::vector<double> value_squares_;   // per block
  std::vector<double> update_squares_;  // per block
  std::vector<float> rates_;            // per parameter
  uint64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups) {
  return std::make_unique<Lamb>(spec, parameters, groups);
}

}  // namespace gradwire
