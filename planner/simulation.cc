// The event simulator.

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/fair_share.h"
#include "gradwire/planner/task_graph.h"

namespace gradwire::planner {
namespace {

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
        lines_(graph.resources().size() + 1),
        own_time_(static_cast<uint32_t>(graph.resources().size())),
        pace_(graph.processors().empty() ? 0 : graph.tasks().size(), 1.0) {
    const size_t n = graph.tasks().size();
    timeline_ = {std::vector<double>(n), std::vector<double>(n), std::vector<TaskId>(n, kNone)};
    for (const TaskGraph::Edge& edge : graph.edges()) {
      ++unfinished_before_[edge.then];
    }
    for (size_t r = 0; r < graph.resources().size(); ++r) {
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
  // A task on a processor; on_line: of its own seconds none are left.
  struct Sharer {
    TaskId task;
    bool on_line = false;
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
    if (other_sharers_) {
      share_processors();
    }
  }

  void begin(TaskId task) {
    timeline_.begin_s[task] = now_;
    const Task& what = graph_.tasks()[task];
    if (what.processor == kNone) {
      events_.push({now_ + what.seconds, events_made_++, task, kNone, 0});
      return;
    }
    sharers_.push_back({task});
    other_sharers_ = true;
    advance(own_time_);
    lines_[own_time_].flows.push_back({task, what.seconds});
  }

  // What each task on a processor gets of it, now that others are there: a task goes as fast as the
  // processor that gives it the least lets it. Of its line it may have a part alone, and then it
  // wants no more of its cores.
  void share_processors() {
    other_sharers_ = false;
    for (uint32_t line = 0; line < lines_.size(); ++line) {
      if (!lines_[line].flows.empty()) {
        advance(line);  // at the pace until now
      }
    }
    for (const Sharer& sharer : sharers_) {
      pace_[sharer.task] = 1;
    }
    std::vector<TaskId> there;
    std::vector<Demand> demands;
    for (uint32_t p = 0; p < graph_.processors().size(); ++p) {
      there.clear();
      demands.clear();
      for (const Sharer& sharer : sharers_) {
        const Task& what = graph_.tasks()[sharer.task];
        if (what.processor == p || what.processor == kEvery) {
          there.push_back(sharer.task);
          const double most = sharer.on_line ? graph_.resources()[what.resource].most_share : 1;
          const double part = sharer.on_line ? line_share(what.resource) / most : 1;
          demands.push_back({what.cores * part, what.threads});
        }
      }
      const std::vector<double> shares = fair_shares(graph_.processors()[p].cores, demands);
      for (size_t i = 0; i < there.size(); ++i) {
        pace_[there[i]] = std::min(pace_[there[i]], shares[i] / demands[i].cores);
      }
    }
    for (uint32_t line = 0; line < lines_.size(); ++line) {
      plan_next_flow(line);
    }
  }

  void happen(const Event& event) {
    if (event.task != kNone) {
      by_itself_done(event.task);
      return;
    }
    Line& line = lines_[event.line];
    if (event.version != line.version) {
      return;
    }
    advance(event.line);
    const auto least =
        std::min_element(line.flows.begin(), line.flows.end(), [&](const Flow& a, const Flow& b) {
          const double a_s = a.left_s / rate_of(event.line, a.task);
          const double b_s = b.left_s / rate_of(event.line, b.task);
          return std::tie(a_s, a.left_s) < std::tie(b_s, b.left_s);
        });
    const TaskId ended = least->task;
    line.flows.erase(least);
    plan_next_flow(event.line);
    if (event.line == own_time_) {
      by_itself_done(ended);
    } else {
      finish(ended);
    }
  }

  void by_itself_done(TaskId id) {
    const Task& task = graph_.tasks()[id];
    if (task.shared_s > 0 && task.resource != kNone) {
      advance(task.resource);
      lines_[task.resource].flows.push_back({id, task.shared_s});
      plan_next_flow(task.resource);
      if (const auto sharer = std::ranges::find(sharers_, id, &Sharer::task);
          sharer != sharers_.end()) {
        sharer->on_line = true;
      }
      other_sharers_ = !sharers_.empty();
    } else {
      finish(id);
    }
  }

  double rate_of(uint32_t line, TaskId task) const {
    const double pace = pace_.empty() ? 1.0 : pace_[task];
    if (line == own_time_) {
      return pace;
    }
    return pace * line_share(line);
  }

  double line_share(uint32_t line) const {
    return std::min(graph_.resources()[line].most_share,
                    1.0 / static_cast<double>(std::max<size_t>(1, lines_[line].flows.size())));
  }

  void advance(uint32_t index) {
    Line& line = lines_[index];
    for (Flow& flow : line.flows) {
      const double done = (now_ - line.since) * rate_of(index, flow.task);
      flow.left_s = std::max(0.0, flow.left_s - done);
    }
    line.since = now_;
  }

  void plan_next_flow(uint32_t index) {
    Line& line = lines_[index];
    ++line.version;
    if (!line.flows.empty()) {
      double least_s = std::numeric_limits<double>::infinity();
      for (const Flow& flow : line.flows) {
        least_s = std::min(least_s, flow.left_s / rate_of(index, flow.task));
      }
      events_.push({now_ + least_s, events_made_++, kNone, index, line.version});
    }
  }

  void finish(TaskId task) {
    timeline_.end_s[task] = now_;
    ++finished_;
    if (!sharers_.empty()) {
      std::erase_if(sharers_, [task](const Sharer& sharer) { return sharer.task == task; });
      other_sharers_ = true;
    }
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
  uint32_t own_time_;            // the line of what tasks on processors take by themselves
  std::vector<double> pace_;     // of each task, in (0, 1]; empty: there are no processors
  std::vector<Sharer> sharers_;  // those that have begun and not ended
  bool other_sharers_ = false;   // than share_processors() has seen
  std::vector<uint32_t> touched_;
  std::priority_queue<Event> events_;
  uint64_t events_made_ = 0;
  size_t finished_ = 0;
  double now_ = 0;
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const TaskGraph& graph) { return Simulation(graph).run(); }

}  // namespace gradwire::planner
