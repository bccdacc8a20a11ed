#include "bench/trainer/updates.h"

#include <utility>

#include "bench/trainer/host_verbs.h"
#include "bench/trainer/plan_pieces.h"
#include "bench/trainer/process.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {

using gradwire::Exchanged;
using gradwire::ParamId;

namespace {

using View = std::string_view;

std::string outer_name(View parameter) { return gradwire::concat("outer.", parameter); }

// The outer optimizer's state beside the other's, whose pieces may have the same names.
class OuterNames final : public gradwire::StateVisitor {
 public:
  explicit OuterNames(gradwire::StateVisitor& to) : to_(to) {}
  void tensor(View parameter, View name, gradwire::TensorView value) override {
    to_.tensor(outer_name(parameter), name, value);
  }
  void bytes(View parameter, View name, std::span<std::byte> value,
             gradwire::Device device) override {
    to_.bytes(outer_name(parameter), name, value, device);
  }
  void scalar(View parameter, View name, uint64_t& value) override {
    to_.scalar(outer_name(parameter), name, value);
  }

 private:
  gradwire::StateVisitor& to_;
};

class OuterSaved final : public gradwire::SavedState {
 public:
  explicit OuterSaved(gradwire::SavedState& from) : from_(from) {}
  std::string name_of(View parameter, View name) const override {
    return from_.name_of(outer_name(parameter), name);
  }
  std::optional<gradwire::ConstTensorView> tensor(View parameter, View name) override {
    return from_.tensor(outer_name(parameter), name);
  }
  std::optional<std::span<const std::byte>> bytes(View parameter, View name) override {
    return from_.bytes(outer_name(parameter), name);
  }
  std::optional<uint64_t> scalar(View parameter, View name) override {
    return from_.scalar(outer_name(parameter), name);
  }

 private:
  gradwire::SavedState& from_;
};

gradwire::TensorView view_on(gradwire::Device device, std::span<float> elements) {
  return {elements.data(), elements.size(), gradwire::DType::kFloat32, device};
}

gradwire::PlanOptions plan_options(const Options& options) {
  return {.spec = options.method,
          .exchange = options.exchange,
          .bucket_bytes = options.bucket_kib * 1024,
          .seed = options.seed};
}

}  // namespace

Updates::Updates(const Options& options, gradwire::Transport& transport, Network& model,
                 gradwire::Context& context)
    : options_(options), transport_(transport), model_(model), context_(context) {
  gradwire::PlanOptions plan = plan_options(options);
  plan_ = gradwire::make_plan(model.parameters(), plan);
  if (exchanges_momenta(options) && options.local_steps == 1) {
    plan.spec = {};
    plan.exchange = "auto";
  }
  plain_plan_ = gradwire::make_plan(model.parameters(), plan);
}

const gradwire::Plan& Updates::plan_now() const {
  return exchanged_ == Exchanged::kGradients ? plain_plan_ : plan_;
}

void Updates::join() {
  if (options_.exchange_gradients) {
    pipeline_ = make_pipeline(options_, plan_now(), transport_, context_.stream);
  } else {
    local_gradients_ = {model_.parameter_count(), model_.device()};
  }
  keep_to(options_.compute_cpus);
  std::vector<gradwire::Parameter> parameters = bind_gradients();
  if (pipeline_ != nullptr && options_.local_steps > 1) {
    outer_ = gradwire::make_optimizer(options_.outer, parameters, {{}, {}});
  }
  const ParameterGroups groups = parameter_groups(options_);
  optimizer_ = gradwire::make_optimizer(options_.optimizer, std::move(parameters),
                                        {groups.matrices, groups.vectors});
}

// [bind]
std::vector<gradwire::Parameter> Updates::bind_gradients() {
  std::vector<gradwire::Parameter> parameters;
  size_t offset = 0;
  for (ParamId p = 0; p < model_.parameters().size(); ++p) {
    const std::span<float> value = model_.value(p);
    const gradwire::TensorView gradient =
        pipeline_ != nullptr
            ? pipeline_->reducer().gradient(p)
            : view_on(model_.device(), local_gradients_.span().subspan(offset, value.size()));
    offset += value.size();
    model_.bind_gradient(p, gradient.as<float>());
    const auto& info = model_.parameters()[p];
    parameters.push_back(
        {info.name, view_on(model_.device(), value), gradient, info.shape.size() == 1 ? 1u : 0u});
  }
  return parameters;
}
// [bind-end]

// Behind a change of the plan.
void Updates::bind_again() {
  std::vector<gradwire::Binding> places;
  for (const gradwire::Parameter& p : bind_gradients()) {
    places.push_back({p.value, p.gradient});
  }
  optimizer_->bind(places);
}

bool Updates::begin_step() {
  ready_.clear();
  const bool replanned = std::exchange(replanned_, false);
  return take_plan() || replanned;
}

bool Updates::take_plan() {
  const Exchanged next = optimizer_->exchanges(context_);
  if (pipeline_ == nullptr || outer_ != nullptr || next == exchanged_) {
    return false;
  }
  exchanged_ = next;
  pipeline_->reducer().set_plan(plan_now());
  bind_again();
  return true;
}

void Updates::gradient_ready(ParamId p) {
  const bool leaves = pipeline_ != nullptr && options_.overlap && outer_ == nullptr &&
                      exchanged_ == Exchanged::kGradients;
  if (leaves) {
    pipeline_->grad_ready(p);
  } else {
    ready_.push_back(p);
  }
}

// Where errors of its calls surface.
void Updates::wait_on_cpu() {
  if (!on_gpu()) {
    context_.stream.wait();
  }
}

void Updates::prepare() {
  optimizer_->prepare(context_);
  wait_on_cpu();
}

void Updates::exchange() {
  if (pipeline_ != nullptr && outer_ == nullptr) {
    exchange_ready();
  }
}

void Updates::exchange_ready() {
  for (const ParamId p : ready_) {
    pipeline_->grad_ready(p);
  }
  try {
    // The planner alone looks at the loss, and it does not choose for outer steps.
    if (pipeline_->wait(chooses() ? model_.last_result().loss : 0)) {
      replanned_ = true;
      bind_again();
    }
  } catch (const gradwire::NonFiniteGradient&) {
    if (!on_gpu()) {
      throw;
    }
    // Of a step before, heard of at another step on every rank: synchronize() throws it on all
    // behind the same one, and until then nothing is committed.
  }
}

void Updates::apply(double learning_rate) {
  optimizer_->apply(learning_rate, context_);
  wait_on_cpu();
}

void Updates::synchronize() {
  if (!on_gpu()) {
    return;
  }
  try {
    if (pipeline_ != nullptr) {
      pipeline_->reducer().synchronize();
    }
  } catch (const gradwire::NonFiniteGradient&) {
    try {  // a rank that fails ends the group: not before all have heard of it
      meet("gradients that are not finite", transport_, context_);
    } catch (const gradwire::TransportError&) {
      // Another rank was faster to leave; the gradient is what to report either way.
    }
    throw;
  }
  optimizer_->synchronize(context_);
}

// The gradients' memory, which the optimizer has read, takes what the local steps moved.
void Updates::outer_step() {
  outer_->prepare(context_);
  wait_on_cpu();
  exchange_ready();
  outer_->apply(options_.outer_learning_rate, context_);
  wait_on_cpu();
}

std::vector<gradwire::planner::Decision> Updates::decisions() {
  return pipeline_ != nullptr ? pipeline_->decisions() : std::vector<gradwire::planner::Decision>();
}

void Updates::leave_out(std::chrono::steady_clock::duration time) {
  if (pipeline_ != nullptr) {
    pipeline_->leave_out(time);
  }
}

void Updates::visit_state(gradwire::StateVisitor& visitor) {
  optimizer_->visit_state(visitor);
  if (outer_ != nullptr) {
    OuterNames outer(visitor);
    outer_->visit_state(outer);
  }
}

void Updates::load_state(gradwire::SavedState& saved) {
  if (outer_ != nullptr) {
    OuterSaved outer(saved);
    gradwire::load_state(*outer_, outer);
  }
  gradwire::load_state(*optimizer_, saved);
  take_plan();
}

void Updates::save_residuals(std::ostream& out) const { pipeline_->reducer().save(out); }

void Updates::load_residuals(const gradwire::Reducer::OpenCheckpoint& open) {
  pipeline_->reducer().load(open);
}

void Updates::save_plan(StateWriter& to) const {
  if (chooses()) {
    add_plan(plan(), to);
  }
}

void Updates::load_plan(StateReader& from, uint64_t steps) {
  if (!chooses()) {
    return;  // the method is the plan
  }
  if (auto saved = read_plan(model_.parameters(), plan_options(options_), from)) {
    pipeline_->keep(*std::move(saved), steps);
    bind_again();
  }
}

}  // namespace trainer
