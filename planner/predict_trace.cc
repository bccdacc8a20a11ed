// The predicted step as Chrome/Perfetto events.

#include <algorithm>

#include <nlohmann/json.hpp>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/steady_step.h"
#include "gradwire/planner/predict.h"

namespace gradwire::planner {

std::string predicted_chrome_json(const Profile& profile, const Cluster& cluster,
                                  const StepOptions& options) {
  using OrderedJson = nlohmann::ordered_json;
  validate(profile);
  validate(cluster);
  validate(profile, options);
  const SteadyState state = steady_state(profile, cluster, options, 0);
  const TaskGraph& graph = state.steps.graph;
  OrderedJson events = OrderedJson::array();
  const auto name = [&](std::string_view kind, size_t track, std::string_view text) {
    events.push_back(
        {{"ph", "M"}, {"name", kind}, {"pid", 0}, {"tid", track}, {"args", {{"name", text}}}});
  };
  name("process_name", 0,
       concat("predicted: ", profile.model, ", ", name_of(options.schedule), ", ", cluster.workers,
              " workers"));
  // One track per resource; a task that shares its resource with others gets one of its own slots.
  std::vector<size_t> first_track;
  std::vector<std::vector<double>> busy_until;
  size_t tracks = 0;
  for (const Resource& resource : graph.resources()) {
    first_track.push_back(tracks);
    busy_until.emplace_back(resource.slots, 0.0);
    tracks += resource.slots;
  }
  std::vector<TaskId> order(graph.tasks().size());
  for (TaskId t = 0; t < order.size(); ++t) {
    order[t] = t;
  }
  std::stable_sort(order.begin(), order.end(), [&](TaskId a, TaskId b) {
    return state.timeline.begin_s[a] < state.timeline.begin_s[b];
  });
  std::vector<bool> named(tracks);
  for (const TaskId t : order) {
    const Task& task = graph.tasks()[t];
    const double begin_s = state.timeline.begin_s[t], end_s = state.timeline.end_s[t];
    if (task.resource == kNone || task.worker != 0 || end_s <= begin_s) {
      continue;
    }
    std::vector<double>& slots = busy_until[task.resource];
    const auto slot = std::min_element(slots.begin(), slots.end()) - slots.begin();
    slots[static_cast<size_t>(slot)] = end_s;
    if (end_s <= state.last_begin_s) {
      continue;
    }
    const size_t track = first_track[task.resource] + static_cast<size_t>(slot);
    if (!named[track]) {
      named[track] = true;
      name("thread_name", track,
           concat(graph.resources()[task.resource].name,
                  slots.size() > 1 ? concat(" ", slot) : std::string()));
    }
    const std::string item = item_name(profile, task);
    events.push_back({{"ph", "X"},
                      {"name", concat(name_of(task.kind), item.empty() ? "" : " ", item)},
                      {"pid", 0},
                      {"tid", track},
                      {"ts", (begin_s - state.last_begin_s) * 1e6},
                      {"dur", (end_s - begin_s) * 1e6},
                      {"args", {{"step", task.step}}}});
  }
  const OrderedJson trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace gradwire::planner
