#include "gradwire/optimizers/stepped.h"

#include <algorithm>
#include <cmath>

#include "gradwire/optimizers/step.h"

namespace gradwire {

SteppedOptimizer::SteppedOptimizer(const OptimizerSpec& spec,
                                   const std::vector<Parameter>& parameters,
                                   const std::vector<ParamGroup>& groups,
                                   std::vector<std::string_view> states)
    : spec_(spec),
      set_(spec, parameters, groups),
      names_(std::move(states)),
      group_count_(groups.size()) {
  ThreadPool alone(1);
  set_.take_values(false, alone);
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
    set_.take_values(true, pool);  // what was loaded since this optimizer was made
    step(options, pool);
    set_.count_step();
  });
}

void SteppedOptimizer::values_changed(Context& context) {
  context.stream.enqueue([this, &pool = context.stream.pool()] {
    set_.take_values(false, pool);
    values_taken();
  });
}

void SteppedOptimizer::set_groups(std::vector<ParamGroup> groups) {
  check(groups.size() == group_count_, spec_.name, ": there are ", groups.size(),
        " groups, expected ", group_count_, " as before");
  check_groups(groups);
  set_.set_groups(spec_, groups);
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
    gradient_squares_[block.index] = gradient_sum_of_squares(block);
  });
  double squares = 0.0;
  for (const ParameterSet::Item& item : set_.items()) {
    squares += item.present() ? sum_of_blocks(item, gradient_squares_) : 0.0;
  }
  if (!std::isfinite(squares)) {
    set_.check_gradients(pool);
  }
  factor /= std::max(1.0, factor * std::sqrt(squares) / spec_.max_grad_norm);
  return static_cast<float>(factor);
}

void SteppedOptimizer::visit_state(StateVisitor& visitor) {
  for (ParameterSet::Item& item : set_.items()) {
    visitor.scalar(item.name, "step", item.steps);
    for (size_t i = 0; i < names_.size(); ++i) {
      visitor.tensor(item.name, names_[i], set_.state_view(buffers_[i], item));
    }
    if (!item.master.empty()) {
      visitor.tensor(item.name, "master", view_of(item.master));
    } else if (!item.remainder.empty()) {
      visitor.tensor(item.name, "remainder",
                     {item.remainder.data(), item.remainder.size(), DType::kBFloat16, {}});
    }
  }
}

}  // namespace gradwire
