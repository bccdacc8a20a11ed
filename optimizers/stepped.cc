#include "gradwire/optimizers/stepped.h"

namespace gradwire {

SteppedOptimizer::SteppedOptimizer(const OptimizerSpec& spec,
                                   const std::vector<Parameter>& parameters,
                                   const std::vector<ParamGroup>& groups,
                                   std::vector<std::string_view> states)
    : spec_(spec), set_(spec, parameters, groups), names_(std::move(states)) {
  for (size_t i = 0; i < names_.size(); ++i) {
    buffers_.push_back(set_.make_state());
  }
}

void SteppedOptimizer::apply(double learning_rate, Context& context) {
  check_learning_rate(spec_.name, learning_rate);
  context.stream.enqueue([this, learning_rate, &pool = context.stream.pool()] {
    step(learning_rate, pool);
    ++steps_;
  });
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
