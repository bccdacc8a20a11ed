#include "gradwire/planner/task_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kNames[] = {"io",     "host_to_device", "forward",  "backward",
                                       "copy",   "compress",       "exchange", "decompress",
                                       "update", "barrier"};

std::string shown(const TaskGraph& graph, TaskId id) {
  const Task& task = graph.tasks()[id];
  std::string text = concat(name_of(task.kind));
  if (task.item != kNone) {
    text += concat(" ", task.item);
  }
  return text + concat(" of step ", task.step, " (task ", id, ")");
}

// Edges by their first (or, for what a task waits for, their second) task.
class Neighbours {
 public:
  Neighbours(size_t tasks, const std::vector<TaskGraph::Edge>& edges, TaskId TaskGraph::Edge::*from,
             TaskId TaskGraph::Edge::*to)
      : begin_(tasks + 1), to_(edges.size()) {
    for (const TaskGraph::Edge& edge : edges) {
      ++begin_[edge.*from + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
    for (const TaskGraph::Edge& edge : edges) {
      to_[next[edge.*from]++] = edge.*to;
    }
  }
  std::span<const TaskId> of(TaskId task) const {
    return {to_.data() + begin_[task], begin_[task + 1] - begin_[task]};
  }

 private:
  std::vector<size_t> begin_;
  std::vector<TaskId> to_;
};

class Simulation {
 public:
  explicit Simulation(const TaskGraph& graph)
      : graph_(graph),
        after_(graph.tasks().size(), graph.edges(), &TaskGraph::Edge::first,
               &TaskGraph::Edge::then),
        unfinished_before_(graph.tasks().size()),
        lines_(graph.resources().size()) {
    const size_t n = graph.tasks().size();
    timeline_ = {std::vector<double>(n), std::vector<double>(n), std::vector<TaskId>(n, kNone)};
    for (const TaskGraph::Edge& edge : graph.edges()) {
      ++unfinished_before_[edge.then];
    }
    for (size_t r = 0; r < lines_.size(); ++r) {
      lines_[r].free = graph.resources()[r].slots;
    }
  }

  Timeline run() {
    for (TaskId t = 0; t < graph_.tasks().size(); ++t) {
      if (unfinished_before_[t] == 0) {
        ready(t, kNone);
      }
    }
    start_waiting();
    while (!events_.empty()) {
      now_ = events_.top().time;
      // All that ends now ends before anything begins, so that priorities decide, not the order
      // here.
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
      }
      start_waiting();
    }
    if (finished_ < graph_.tasks().size()) {
      throw_cycle();
    }
    return std::move(timeline_);
  }

 private:
  struct Waiting {
    double priority, since;
    TaskId task;
    bool operator<(const Waiting& other) const {  // the greatest is on top of a queue
      return std::tie(priority, since, task) > std::tie(other.priority, other.since, other.task);
    }
  };
  struct Flow {
    TaskId task;
    double left_s;
  };
  // What goes on at one resource.
  struct Line {
    size_t free = 0;
    TaskId freed_by = kNone;
    std::priority_queue<Waiting> waiting;
    std::vector<Flow> flows;
    double since = 0;      // the flows' left_s were right
    uint64_t version = 0;  // of the flows; an event of an older one says nothing any more
    bool touched = false;
  };
  struct Event {
    double time;
    uint64_t number;  // in the order of their making
    TaskId task;      // kNone: the next flow of `line` ends
    uint32_t line;
    uint64_t version;
    bool operator<(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };

  void ready(TaskId task, TaskId cause) {
    timeline_.cause[task] = cause;
    const Task& what = graph_.tasks()[task];
    if (what.resource == kNone) {
      begin(task);
      return;
    }
    lines_[what.resource].waiting.push({what.priority, now_, task});
    touch(what.resource);
  }

  void touch(uint32_t line) {
    if (!lines_[line].touched) {
      lines_[line].touched = true;
      touched_.push_back(line);
    }
  }

  void start_waiting() {
    for (size_t i = 0; i < touched_.size(); ++i) {
      Line& line = lines_[touched_[i]];
      line.touched = false;
      while (line.free > 0 && !line.waiting.empty()) {
        const Waiting next = line.waiting.top();
        line.waiting.pop();
        --line.free;
        if (next.since < now_) {  // it waited for the slot, not for what comes before it
          timeline_.cause[next.task] = line.freed_by;
        }
        begin(next.task);
      }
    }
    touched_.clear();
  }

  void begin(TaskId task) {
    timeline_.begin_s[task] = now_;
    events_.push({now_ + graph_.tasks()[task].seconds, events_made_++, task, kNone, 0});
  }

  void happen(const Event& event) {
    if (event.task != kNone) {
      const Task& task = graph_.tasks()[event.task];
      if (task.shared_s > 0 && task.resource != kNone) {
        Line& line = lines_[task.resource];
        advance(task.resource);
        line.flows.push_back({event.task, task.shared_s});
        plan_next_flow(task.resource);
      } else {
        finish(event.task);
      }
      return;
    }
    Line& line = lines_[event.line];
    if (event.version != line.version) {
      return;
    }
    advance(event.line);
    const auto least =
        std::min_element(line.flows.begin(), line.flows.end(),
                         [](const Flow& a, const Flow& b) { return a.left_s < b.left_s; });
    const TaskId ended = least->task;
    line.flows.erase(least);
    plan_next_flow(event.line);
    finish(ended);
  }

  double rate_of(uint32_t line) const {
    return std::min(graph_.resources()[line].most_share,
                    1.0 / static_cast<double>(std::max<size_t>(1, lines_[line].flows.size())));
  }

  void advance(uint32_t index) {
    Line& line = lines_[index];
    const double done = (now_ - line.since) * rate_of(index);
    for (Flow& flow : line.flows) {
      flow.left_s = std::max(0.0, flow.left_s - done);
    }
    line.since = now_;
  }

  void plan_next_flow(uint32_t index) {
    Line& line = lines_[index];
    ++line.version;
    if (!line.flows.empty()) {
      double least = line.flows[0].left_s;
      for (const Flow& flow : line.flows) {
        least = std::min(least, flow.left_s);
      }
      events_.push({now_ + least / rate_of(index), events_made_++, kNone, index, line.version});
    }
  }

  void finish(TaskId task) {
    timeline_.end_s[task] = now_;
    ++finished_;
    const uint32_t resource = graph_.tasks()[task].resource;
    if (resource != kNone) {
      ++lines_[resource].free;
      lines_[resource].freed_by = task;
      touch(resource);
    }
    for (const TaskId next : after_.of(task)) {
      if (--unfinished_before_[next] == 0) {
        ready(next, task);
      }
    }
  }

  [[noreturn]] void throw_cycle() const {
    const Neighbours before(graph_.tasks().size(), graph_.edges(), &TaskGraph::Edge::then,
                            &TaskGraph::Edge::first);
    // Each task that is not finished waits for another such: walking back must come round.
    TaskId at = 0;
    while (unfinished_before_[at] == 0) {
      ++at;
    }
    std::vector<bool> seen(graph_.tasks().size());
    std::vector<TaskId> walk;
    while (!seen[at]) {
      seen[at] = true;
      walk.push_back(at);
      for (const TaskId first : before.of(at)) {
        if (unfinished_before_[first] > 0) {
          at = first;
          break;
        }
      }
    }
    std::string text = concat("task graph: a cycle, ", shown(graph_, at));
    for (size_t i = walk.size(); i-- > 0;) {
      text += concat(" before ", shown(graph_, walk[i]));
      if (walk[i] == at) {
        break;
      }
    }
    throw InvalidArgument(text + ", expected an order without one");
  }

  const TaskGraph& graph_;
  Neighbours after_;
  std::vector<uint32_t> unfinished_before_;
  std::vector<Line> lines_;
  std::vector<uint32_t> touched_;
  std::priority_queue<Event> events_;
  uint64_t events_made_ = 0;
  size_t finished_ = 0;
  double now_ = 0;
  Timeline timeline_;
};

void check_time(double seconds, std::string_view what, const Task& task) {
  check(std::isfinite(seconds) && seconds >= 0, "task graph: ", what, " of a ", name_of(task.kind),
        ": ", text_of(seconds), ", must be a time of at least 0 s");
}

}  // namespace

std::string_view name_of(TaskKind kind) { return kNames[static_cast<size_t>(kind)]; }

uint32_t TaskGraph::add_resource(Resource resource) {
  check(resource.slots > 0, "task graph: 0 slots of '", resource.name, "', must be at least 1");
  check(resource.most_share > 0 && resource.most_share <= 1, "task graph: a share of ",
        text_of(resource.most_share), " of '", resource.name, "', must be in (0, 1]");
  resources_.push_back(std::move(resource));
  return static_cast<uint32_t>(resources_.size() - 1);
}

TaskId TaskGraph::add(const Task& task) {
  check_time(task.seconds, "seconds", task);
  check_time(task.shared_s, "shared_s", task);
  check(task.resource == kNone || task.resource < resources_.size(), "task graph: resource ",
        task.resource, ", must be one of the ", resources_.size(), " there are");
  check(task.resource != kNone || task.shared_s == 0,
        "task graph: shared_s without a resource, expected one to share");
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

Timeline simulate(const TaskGraph& graph) { return Simulation(graph).run(); }

std::vector<TaskId> critical_path(const Timeline& timeline, TaskId last) {
  std::vector<TaskId> path;
  for (TaskId task = last; task != kNone; task = timeline.cause[task]) {
    path.push_back(task);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace gradwire::planner
