#pragma once
// What a training step will take, what it waits for, and what would change that.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/planner/step_graph.h"

namespace gradwire::planner {

/// A task on the chain that decides how long a step takes.
struct CriticalTask {
  TaskKind kind = TaskKind::kBarrier;
  std::string what;    ///< layer or bucket; empty for input
  double begin_s = 0;  ///< from the beginning of the step
  double seconds = 0;
};

/// A training step in the steady state: the mean over steps after the first ones, and over draws.
struct Prediction {
  Schedule schedule = Schedule::kWfbp;
  size_t workers = 1;
  double step_s = 0;
  double least_s = 0, most_s = 0;  ///< over draws; step_s where nothing is drawn
  // step_s in three parts, as the slowest worker at computing sees it:
  double compute_s = 0;      ///< it computes: forward, backward, update, codecs that run in turn
  double exposed_s = 0;      ///< it waits while something is exchanged, copied, or coded beside it
  double input_s = 0;        ///< it waits for the next batch, or for slower workers
  double exchange_s = 0;     ///< exchanges of a step, hidden or exposed, one after another
  size_t exchanges = 0;      ///< of a step
  double samples_per_s = 0;  ///< of all workers
  std::vector<CriticalTask> critical_path{};  ///< of one step, of the first draw, in order of time

  double exchange_exposed() const { return step_s > 0 ? exposed_s / step_s : 0; }
};

/// @throws InvalidArgument for what validate() of profile, cluster or options refuses.
Prediction predict(const Profile& profile, const Cluster& cluster, const StepOptions& options = {});

/// A prediction with more workers, and how many times one worker's samples per second it makes.
struct ScalingPoint {
  size_t workers = 1;
  double step_s = 0;
  double exposed_s = 0;
  double samples_per_s = 0;
  double speedup = 1;     ///< workers * step_s of one / step_s
  double efficiency = 1;  ///< speedup / workers
};

/// For each count in turn; a cluster of uneven workers is taken from its first one on.
std::vector<ScalingPoint> scaling_curve(const Profile& profile, const Cluster& cluster,
                                        const StepOptions& options,
                                        std::span<const size_t> workers);
/// 1, 2, 4, ... and the cluster's own number, without those that its nodes do not divide.
std::vector<size_t> doubling_workers(const Cluster& cluster);

/// How a step's time follows one input.
struct Sensitivity {
  std::string input;
  double value = 0;
  /// d log(step) / d log(input): -0.5 says 1% more of it makes the step 0.5% shorter.
  double elasticity = 0;
  std::string no_effect{};  ///< why a change of it changes nothing; empty where it does
};

/// Of every input, by predictions with 1% more and 1% less of it; the strongest first.
std::vector<Sensitivity> sensitivities(const Profile& profile, const Cluster& cluster,
                                       const StepOptions& options);

/// Chrome/Perfetto "traceEvents" JSON of one step in the steady state, of the first draw: tracks
/// for what the slowest worker loads, copies and computes, and for exchanges.
std::string predicted_chrome_json(const Profile& profile, const Cluster& cluster,
                                  const StepOptions& options = {});

/// Both in one file, the measured step with its processes behind the predicted one's. A trace of
/// the Reducer is laid so that its first gradient is there when the predicted one is; one of
/// torch.profiler so that its step begins where the predicted one does. `step` counts from 0 among
/// the measured ones, without one the last is taken. `name` of the measured text is for messages.
/// @throws InvalidArgument for text that is no such trace, or a step that it does not have.
std::string beside_measured(std::string_view predicted, std::string_view measured,
                            std::optional<size_t> step = {}, std::string_view name = "measured");

}  // namespace gradwire::planner
