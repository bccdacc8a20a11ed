#include "gradwire/planner/internal/steady_step.h"

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {

SteadyState steady_state(const Profile& profile, const Cluster& cluster, const StepOptions& options,
                         size_t draw) {
  // The loader runs at most two steps ahead, and priorities settle within a few: what goes on after
  // four steps repeats. Where nothing outlasts a step, two say the same as many.
  constexpr size_t kStartUp = 4, kWindow = 4;
  const bool repeats_at_once = options.schedule == Schedule::kNaive;
  const size_t start_up = repeats_at_once ? 1 : kStartUp;
  const size_t window = repeats_at_once ? 1 : kWindow;
  SteadyState state{.steps = make_step_graph(profile, cluster, options, start_up + window, draw),
                    .timeline = {},
                    .window_steps = window};
  state.timeline = simulate(state.steps.graph);
  const auto end_of = [&](size_t step) { return state.timeline.end_s[state.steps.step_end[step]]; };
  state.begin_s = end_of(start_up - 1);
  state.last_begin_s = end_of(start_up + window - 2);
  state.end_s = end_of(start_up + window - 1);
  for (const Worker& worker : state.steps.workers) {
    state.input_s =
        std::max(state.input_s, worker.input * (profile.io_s + profile.host_to_device_s));
  }
  return state;
}

std::string item_name(const Profile& profile, const Task& task) {
  switch (task.kind) {
    case TaskKind::kForward:
    case TaskKind::kBackward:
    case TaskKind::kUpdate:
      return task.item == kNone ? "the rest" : profile.layers[task.item].name;
    case TaskKind::kHandOver:
    case TaskKind::kCopy:
    case TaskKind::kCompress:
    case TaskKind::kExchange:
    case TaskKind::kDecompress:
      return concat("bucket ", task.item);
    default:
      return {};
  }
}

}  // namespace gradwire::planner
