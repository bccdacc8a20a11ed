#pragma once
// What becomes of a rank's gradients: the exchange, and the optimizer's step.

#include <chrono>
#include <iosfwd>
#include <memory>
#include <vector>

#include "bench/trainer/network.h"
#include "bench/trainer/options.h"
#include "bench/trainer/pipeline.h"
#include "bench/trainer/state_file.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/saved_state.h"

namespace trainer {

/// Exchanges what the optimizer says is to be exchanged, by the plan of the method; an optimizer of
/// momenta has its gradients exchanged uncompressed until it begins with these. With local steps
/// what they moved is exchanged, and stepped on, once in so many. Where the planner chooses, plans
/// change behind an exchange. On a GPU (the context's stream says so) the calls of a step enqueue
/// and nothing waits. Everything outlives it.
class Updates {
 public:
  Updates(const Options& options, gradwire::Transport& transport, Network& model,
          gradwire::Context& context);

  /// Collective: the reducer, and where the model writes its gradients.
  void join();

  /// Begins a step: takes the plan for what it exchanges, and says whether that is another one than
  /// that of the step before; collective where it is the optimizer that changes it.
  bool begin_step();

  /// From backward, once for every parameter.
  void gradient_ready(gradwire::ParamId p);
  /// What is exchanged is in the gradients' memory behind it.
  void prepare();
  /// Blocks until the mean is there; with local steps, and without an exchange, does nothing.
  void exchange();
  /// The optimizer's step.
  void apply(double learning_rate);
  /// With local steps: exchanges what they moved, and steps on it.
  void outer_step();

  /// On a GPU: waits, and throws what a step since the last call has met. Behind the same step on
  /// all ranks.
  void synchronize();

  /// What the planner has decided since the last call, which was behind the step before.
  std::vector<gradwire::planner::Decision> decisions();
  /// So much of the time since the exchange is no part of a step, as the planner counts them.
  void leave_out(std::chrono::steady_clock::duration time);

  /// Between steps, for checkpoints: the optimizers' state, of the outer one as "outer." and the
  /// parameter's name; what the reducer keeps.
  void visit_state(gradwire::StateVisitor& visitor);
  /// Behind join(). Takes the plan that goes with the state; load_residuals() comes after it.
  /// @throws gradwire::InvalidArgument where a piece is missing or wrong.
  void load_state(gradwire::SavedState& saved);
  void save_residuals(std::ostream& out) const;
  void load_residuals(const gradwire::Reducer::OpenCheckpoint& open);
  /// The plan that the planner has chosen; nothing where it does not choose.
  void save_plan(StateWriter& to) const;
  /// Behind join() and before load_residuals(): goes on with a plan that was saved, where the
  /// planner chooses and there is one. `steps`: that the job had run.
  /// @throws gradwire::InvalidArgument as read_plan().
  void load_plan(StateReader& from, uint64_t steps);

  /// Whether the planner chooses plans.
  bool chooses() const { return pipeline_ != nullptr && pipeline_->chooses(); }
  bool has_local_steps() const { return outer_ != nullptr; }
  /// Null without an exchange.
  const gradwire::Reducer* reducer() const {
    return pipeline_ != nullptr ? &pipeline_->reducer() : nullptr;
  }
  /// Of the last exchange; null without one.
  const gradwire::StepTrace* last_exchange() const {
    return pipeline_ != nullptr ? &pipeline_->last_step() : nullptr;
  }
  /// Of the method; where the planner chooses, the one in force.
  const gradwire::Plan& plan() const { return chooses() ? pipeline_->reducer().plan() : plan_; }

 private:
  std::vector<gradwire::Parameter> bind_gradients();
  void bind_again();
  const gradwire::Plan& plan_now() const;
  bool take_plan();
  void exchange_ready();
  void wait_on_cpu();
  bool on_gpu() const { return context_.stream.device().type == gradwire::DeviceType::kCuda; }

  const Options& options_;
  gradwire::Transport& transport_;
  Network& model_;
  gradwire::Context& context_;
  gradwire::Plan plan_, plain_plan_;    // of the method, of gradients before there are momenta
  std::unique_ptr<Pipeline> pipeline_;  // null without an exchange
  bool replanned_ = false;              // behind the last step, by the planner
  Array<float> local_gradients_;        // without an exchange
  std::unique_ptr<gradwire::Optimizer> optimizer_;
  std::unique_ptr<gradwire::Optimizer> outer_;                       // with local steps
  gradwire::Exchanged exchanged_ = gradwire::Exchanged::kGradients;  // in the step to come
  std::vector<gradwire::ParamId> ready_;  // gradients held back until backward has ended
};

}  // namespace trainer
