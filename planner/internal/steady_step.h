#pragma once
// One step of a simulation that has reached its steady state.

#include <algorithm>
#include <string>

#include "gradwire/planner/step_graph.h"

namespace gradwire::planner {

/// Some steps in a row, simulated. The window holds the last ones: what came before is start-up.
struct SteadyState {
  StepGraph steps;
  Timeline timeline;
  size_t window_steps = 0;
  double begin_s = 0;       ///< of the window
  double last_begin_s = 0;  ///< of its last step
  double end_s = 0;
  /// What a step takes at least, because batches come no faster. Where another worker computes
  /// almost as slowly as one loads, the loader falls behind over more steps than are simulated.
  double input_s = 0;

  double step_s() const {
    return std::max(input_s, (end_s - begin_s) / static_cast<double>(window_steps));
  }
};
SteadyState steady_state(const Profile& profile, const Cluster& cluster, const StepOptions& options,
                         size_t draw);

/// The name of the layer, or "bucket 3"; empty for what is of neither.
std::string item_name(const Profile& profile, const Task& task);

}  // namespace gradwire::planner
