#pragma once
// A Reducer that chooses its own plan: measures itself, asks the pilot, and changes plans between
// steps.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/comm/reducer.h"
#include "gradwire/planner/pilot.h"

namespace gradwire::planner {

struct AutopilotOptions {
  PilotOptions pilot{};  ///< say what is known of the optimizer (updates): SGD may send less
  /// Its streams are not read: the pilot chooses them.
  ReducerOptions reducer{};
  /// For slow links a longer budget than probe_link()'s own: what passes in a burst says nothing.
  /// Before the first step a tenth of it is spent, later no more than ten steps take.
  ProbeOptions probe{.budget = std::chrono::milliseconds(20)};
  /// Steps at the end of each window in which the guard's norms are measured: three passes over
  /// the gradients, and a copy of them (4 bytes an element) that is kept.
  size_t norm_steps = 4;
  size_t codec_numel = size_t{1} << 18;  ///< elements that compressors are timed with
};

/// Where "auto" lives: owns a Reducer, begins without compression, or on a slow link with what is
/// predicted to be fast there, and takes what is fastest on this link, or nothing (pilot.h says
/// how). All ranks make one with the same parameters and options, and call the same steps. Every
/// decision rests on numbers of all ranks, exchanged by one small all-gather behind each window of
/// steps, so that all take it alike. While cruising a step costs a clock reading more than the
/// Reducer's; residuals stay through every change of the plan.
///
/// CPU only. Of parameters whose spec keeps a momentum, or is ef21, the guard sees no norms.
class Autopilot {
 public:
  /// Collective, as the Reducer's constructor, and blocking: it probes the link, and where that is
  /// slow times the compressors. The transport outlives it, which alone uses it.
  /// @throws InvalidArgument as Pilot() and Reducer(), for a transport of GPU memory, norm_steps of
  /// 0, and fewer than 4096 codec_numel.
  Autopilot(std::vector<ParamInfo> parameters, Transport& transport, AutopilotOptions options = {});
  ~Autopilot();
  Autopilot(const Autopilot&) = delete;
  Autopilot& operator=(const Autopilot&) = delete;

  /// As Reducer::gradient(), valid until the next wait() returns or throws: ask again behind it,
  /// for the mean.
  Gradient gradient(ParamId p);
  /// As Reducer::grad_ready().
  void grad_ready(ParamId p);
  /// As Reducer::wait(), and where a window of steps ends with it the pilot decides: the plan may
  /// change, gradient() keeps its values. `loss`: of this rank's step, for the guard; the same
  /// ranks give one in every step of a window, or its losses are not looked at.
  StepOutcome wait(double loss = GuardWindow::kUnknown);
  /// So much of the time since the last wait() is no part of a step: an evaluation, a checkpoint.
  void leave_out(std::chrono::steady_clock::duration time);

  /// Before the first step, collective: goes on with `plan`, which a former run had, for `steps`
  /// steps, in which nothing is measured and nothing judged, and begins as a new one behind them, in
  /// a job that had run for `age` steps before, and PilotOptions::age.
  /// What that run's Reducer saved is loaded behind this: reducer().load(). Gradients lie
  /// elsewhere. The wait() of the last of these steps probes as the constructor does.
  /// @throws InvalidArgument behind a step, for 0 steps, and as Reducer::set_plan().
  void keep(Plan plan, size_t steps, uint64_t age = 0);

  /// The reducer of now, for its other calls between steps (residual(), save(), trace(), ...);
  /// valid until the next wait(). Its plan is the pilot's: do not set another.
  Reducer& reducer();
  const Pilot& pilot() const;
  const Plan& plan() const;
  /// How often the plan has changed.
  uint64_t epoch() const;
  /// Of the step that wait() concluded last, also where its reducer is gone.
  /// @throws InvalidArgument before the first step.
  const StepTrace& last_step() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire::planner
