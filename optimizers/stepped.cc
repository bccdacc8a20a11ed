#include "gradwire/optimizers/stepped.h"

#include <array>
#include <cmath>

#include "gradwire/optimizers/step.h"

namespace gradwire {

SteppedOptimizer::SteppedOptimizer(const OptimizerSpec& spec,
                                   const std::vector<Parameter>& parameters,
                                   const std::vector<ParamGroup>& groups)
    : spec_(spec),
      rule_(step_rule(spec)),
      set_(spec, parameters, adjusted_groups(spec, state_names(spec, groups), groups)),
      states_(set_, state_names(spec, groups)),
      group_count_(groups.size()) {
  ThreadPool alone(1);
  set_.take_values(false, alone);
  if (spec.max_grad_norm != 0.0) {
    gradient_squares_.resize(set_.blocks().size());
  }
}

void SteppedOptimizer::check_on_cpu(const StepOptions& options) const {
  check_options(spec_.name, options);
  const StepOptions::OnDevice& on_device = options.on_device;
  check(on_device.learning_rate == nullptr && on_device.loss_scale == nullptr &&
            on_device.found_inf == nullptr && on_device.add_up == nullptr,
        spec_.name, ": on_device has a pointer, expected none: the parameters are in CPU memory");
}

void SteppedOptimizer::apply(const StepOptions& options, Context& context) {
  check_on_cpu(options);
  context.stream.enqueue([this, options, &pool = context.stream.pool()] {
    set_.take_values(true, pool);  // what was loaded since this optimizer was made
    try {
      step(options, pool);
    } catch (const NonFiniteGradient&) {
      if (options.on_non_finite == OnNonFinite::kError) {
        throw;
      }
      ++skipped_;
      return;
    }
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
  set_.set_groups(spec_, adjusted_groups(spec_, states_.names(), std::move(groups)));
}

float SteppedOptimizer::gradient_factor(const StepOptions& options, bool check, ThreadPool& pool) {
  if (spec_.max_grad_norm == 0.0) {
    if (check) {
      check_gradients(options, pool);
    }
    return static_cast<float>(options.gradient_scale);
  }
  double squares = sum_of_gradient_squares(pool, options.add_up != nullptr);
  add_up_slices(options, {&squares, 1});
  if (!std::isfinite(squares)) {
    find_non_finite(set_, options, pool);
  }
  return static_cast<float>(clipped_scale(options.gradient_scale, squares, spec_.max_grad_norm));
}

void SteppedOptimizer::check_gradients(const StepOptions& options, ThreadPool& pool) {
  if (options.add_up == nullptr) {
    set_.check_gradients(pool);
    return;
  }
  double bad = set_.all_gradients_finite(pool) ? 0.0 : 1.0;
  add_up_slices(options, {&bad, 1});
  if (bad != 0.0) {
    find_non_finite(set_, options, pool);
  }
}

float SteppedOptimizer::clipping_factor(double scale, ThreadPool& pool) {
  return static_cast<float>(
      spec_.max_grad_norm == 0.0
          ? scale
          : clipped_scale(scale, sum_of_gradient_squares(pool), spec_.max_grad_norm));
}

double SteppedOptimizer::sum_of_gradient_squares(ThreadPool& pool, bool slices) {
  set_.for_each_block(pool, [this](const ParameterSet::Block& block) {
    gradient_squares_[block.index] = gradient_sum_of_squares(block);
  });
  double squares = 0.0;
  for (const ParameterSet::Item& item : set_.items()) {
    const double own = item.present() ? sum_of_blocks(item, gradient_squares_) : 0.0;
    squares += slices ? counted_squares(item, own) : own;
  }
  return squares;
}

void SteppedOptimizer::descend(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                               bool has_momentum, const MomentumFactors& factors) const {
  if (!has_momentum) {
    cpu::descend({piece.value, {}, piece.gradient}, spec_.nesterov.value(), factors);
    return;
  }
  alignas(64) std::array<float, kStepPiece> scratch;
  const std::span<float> momentum = states_.load(item, piece, 0, scratch);
  cpu::descend({piece.value, momentum, piece.gradient}, spec_.nesterov.value(), factors);
  states_.store(item, piece, {momentum});
}

uint64_t SteppedOptimizer::skipped_steps(Context& context) {
  context.stream.wait();
  return skipped_;
}

void SteppedOptimizer::visit_state(StateVisitor& visitor) {
  for (size_t i = 0; i < set_.items().size(); ++i) {
    ParameterSet::Item& item = set_.items()[i];
    visitor.scalar(item.name, "step", item.steps);
    states_.visit(item, visitor);
    set_.visit_master(item, visitor);
    visit_more(i, visitor);
  }
}

void add_up_slices(const StepOptions& options, std::span<double> values) {
  if (options.add_up != nullptr) {
    (*options.add_up)(values);
  }
}

void find_non_finite(ParameterSet& set, const StepOptions& options, ThreadPool& pool) {
  set.check_gradients(pool);
  if (options.add_up != nullptr) {
    throw NonFiniteGradient(
        "gradients: another rank's slice has an element that is not finite, expected finite "
        "values");
  }
}

void LayerRates::set(ParameterSet& set, ThreadPool& pool, const StepRule& rule,
                     const StepOptions& options, float factor) {
  for (size_t i = 0; i < rates_.size(); ++i) {
    const ParameterSet::Item& item = set.items()[i];
    squares_[2 * i] = item.present() && item.adapt ? sum_of_blocks(item, value_squares) : 0.0;
    squares_[2 * i + 1] = item.present() ? sum_of_blocks(item, change_squares) : 0.0;
    if (options.add_up != nullptr) {
      squares_[2 * i] = counted_squares(item, squares_[2 * i]);
      squares_[2 * i + 1] = counted_squares(item, squares_[2 * i + 1]);
    }
  }
  add_up_slices(options, squares_);
  for (size_t i = 0; i < rates_.size(); ++i) {
    const ParameterSet::Item& item = set.items()[i];
    const double value_square = squares_[2 * i], change_square = squares_[2 * i + 1];
    if (!std::isfinite(change_square)) {
      find_non_finite(set, options, pool);
    }
    if (!item.present()) {
      continue;
    }
    const LayerNorms norms{std::sqrt(value_square), std::sqrt(change_square)};
    rates_[i] = layer_rate(rule, item, norms, options.learning_rate, factor);
    still_[i] = item.adapt && norms.change == 0.0;
  }
}

}  // namespace gradwire
