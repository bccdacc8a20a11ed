#include "gradwire/optimizers/stepped.h"

#include <algorithm>
#include <cmath>

#include "gradwire/optimizers/step.h"

namespace gradwire {

SteppedOptimizer::SteppedOptimizer(const OptimizerSpec& spec,
                                   const std::vector<Parameter>& parameters,
                                   const std::vector<ParamGroup>& groups,
                                   std::vector<std::string_view> states)
    : spec_(spec), set_(spec, parameters, groups), names_(std::move(states)) {
  if (spec.max_grad_norm != 0.0) {
    gradient_squares_.resize(set_.blocks().size());
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    buffers_.push_back(set_.make_state());
  }
}

void SteppedOptimizer::apply(const StepOptions& options, Context& context) {
  check_options(spec_.name, options);
  context.stream.enqueue([this, options, &pool = context.stream.pool()] {
    step(options, pool);
    ++steps_;
  });
}

float SteppedOptimizer::gradient_factor(const StepOptions& options, bool check, ThreadPool& pool) {
  double factor = options.gradient_scale;
  if (spec_.max_grad_norm == 0.0) {
    if (check) {
      set_.check_gradients(pool);
    }
    return static_cast<float>(factor);
  }
  set_.for_each_block(pool, [this](const ParameterSet::Block& block) {
    gradient_squares_[block.index] = cpu::sum_of_squares(block.gradient());
  });
  double squares = 0.0;
  for (const ParameterSet::Item& item : set_.items()) {
    squares += sum_of_blocks(item, gradient_squares_);
  }
  if (!std::isfinite(squares)) {
    set_.check_gradients(pool);
  }
  factor /= std::max(1.0, factor * std::sqrt(squares) / spec_.max_grad_norm);
  return static_cast<float>(factor);
}

void SteppedOptimizer::visit_state(StateVisitor& visitor) {
  visitor.scalar("step", steps_);
  for (const ParameterSet::Item& item : set_.items()) {
    for (size_t i = 0; i < names_.size(); ++i) {
      visitor.tensor(item.name, names_[i], set_.state_view(buffers_[i], item));
    }
  }
}

}  // namespace gradwire
