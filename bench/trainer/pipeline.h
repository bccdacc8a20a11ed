#pragma once
// Between backward and the optimizer: gradients go in, the means of all ranks come out. By the plan
// of a method, or by plans that the planner chooses while it runs.

#include <chrono>
#include <memory>
#include <vector>

#include "bench/trainer/options.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/planner/decision.h"

namespace trainer {

class Pipeline {
 public:
  Pipeline() = default;
  virtual ~Pipeline() = default;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// The reducer of now: valid until the next wait().
  virtual gradwire::Reducer& reducer() = 0;
  virtual void grad_ready(gradwire::ParamId p) = 0;
  /// Reducer::wait(), told the loss of this rank's step.
  /// @returns whether the plan is another one now: the means, too, lie elsewhere.
  virtual bool wait(double loss) = 0;
  /// Of the step that wait() concluded last.
  virtual const gradwire::StepTrace& last_step() = 0;

  /// Whether it chooses its plans itself. The rest is of those that do, and nothing of others.
  virtual bool chooses() const { return false; }
  /// Before the first step, collective: goes on with the plan that a former run had, behind so many
  /// steps.
  virtual void keep(gradwire::Plan, uint64_t /*steps*/) {}
  /// So much of the time since the last wait() is no part of a step.
  virtual void leave_out(std::chrono::steady_clock::duration) {}
  /// What was decided since the last call, oldest first: asked for behind every wait(), so that its
  /// step is the last one.
  virtual std::vector<gradwire::planner::Decision> decisions() { return {}; }
};

/// Collective. `plan`: of the first step; where the method is auto, its parameters alone. `stream`:
/// on a GPU that of backward and the optimizer, which outlives it.
/// @throws gradwire::InvalidArgument as Reducer() and planner::Autopilot().
std::unique_ptr<Pipeline> make_pipeline(const Options& options, gradwire::Plan plan,
                                        gradwire::Transport& transport, gradwire::Stream& stream);

/// Collective. @throws gradwire::InvalidArgument as planner::Autopilot(), and in a build without
/// the planner.
std::unique_ptr<Pipeline> make_auto_pipeline(const Options& options,
                                             std::vector<gradwire::ParamInfo> parameters,
                                             gradwire::Transport& transport);

}  // namespace trainer
