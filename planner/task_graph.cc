#include "gradwire/planner/task_graph.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kTaskKindNames[] = {
    "io",       "host_to_device", "forward",    "backward", "hand_over", "copy",
    "compress", "exchange",       "decompress", "update",   "barrier"};

void check_time(double seconds, std::string_view what, const Task& task) {
  check(std::isfinite(seconds) && seconds >= 0, "task graph: ", what, " of a ", name_of(task.kind),
        ": ", text_of(seconds), ", must be a time of at least 0 s");
}

}  // namespace

std::string_view name_of(TaskKind kind) { return kTaskKindNames[static_cast<size_t>(kind)]; }

uint32_t TaskGraph::add_resource(Resource resource) {
  check(resource.slots > 0, "task graph: 0 slots of '", resource.name, "', must be at least 1");
  check(resource.most_share > 0 && resource.most_share <= 1, "task graph: a share of ",
        text_of(resource.most_share), " of '", resource.name, "', must be in (0, 1]");
  resources_.push_back(std::move(resource));
  return static_cast<uint32_t>(resources_.size() - 1);
}

uint32_t TaskGraph::add_processor(Processor processor) {
  check(std::isfinite(processor.cores) && processor.cores > 0, "task graph: a processor of ",
        text_of(processor.cores), " cores, must be above 0 and finite");
  processors_.push_back(processor);
  return static_cast<uint32_t>(processors_.size() - 1);
}

TaskId TaskGraph::add(const Task& task) {
  check_time(task.seconds, "seconds", task);
  check_time(task.shared_s, "shared_s", task);
  check(task.resource == kNone || task.resource < resources_.size(), "task graph: resource ",
        task.resource, ", must be one of the ", resources_.size(), " there are");
  check(task.resource != kNone || task.shared_s == 0,
        "task graph: shared_s without a resource, expected one to share");
  if (task.processor != kNone) {
    check(task.processor < processors_.size() || (task.processor == kEvery && !processors_.empty()),
          "task graph: processor ", task.processor, ", must be one of the ", processors_.size(),
          " there are");
    check(std::isfinite(task.cores) && task.cores > 0, "task graph: ", text_of(task.cores),
          " cores of a processor, must be above 0 and finite");
    check(std::isfinite(task.threads) && task.threads >= 1, "task graph: ", text_of(task.threads),
          " threads, must be at least 1");
  }
  tasks_.push_back(task);
  return static_cast<TaskId>(tasks_.size() - 1);
}

void TaskGraph::order(TaskId first, TaskId then) {
  check(first < tasks_.size() && then < tasks_.size(), "task graph: task ", std::max(first, then),
        ", must be one of the ", tasks_.size(), " there are");
  edges_.push_back({first, then});
}

double Timeline::end() const {
  return end_s.empty() ? 0 : *std::max_element(end_s.begin(), end_s.end());
}

std::vector<TaskId> critical_path(const Timeline& timeline, TaskId last) {
  std::vector<TaskId> path;
  for (TaskId task = last; task != kNone; task = timeline.cause[task]) {
    path.push_back(task);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace gradwire::planner
