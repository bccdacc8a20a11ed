// The event simulator against one that looks at every task at every moment, and on long models.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/planner/predict.h"
#include "gradwire/planner/task_graph.h"
#include "tests/planner/made_up.h"

namespace gradwire::planner {
namespace {

// No queue and no events: at each moment all that can end ends, then all that can begin begins.
class NaiveSimulation {
 public:
  explicit NaiveSimulation(const TaskGraph& graph) : graph_(graph), of_(graph.tasks().size()) {
    for (const Resource& resource : graph.resources()) {
      free_.push_back(resource.slots);
    }
  }

  Timeline run() {
    Timeline timeline{std::vector<double>(of_.size()), std::vector<double>(of_.size()), {}};
    for (double now = 0; now < kNever;) {
      while (end_tasks(now) || begin_tasks_without_resource(now)) {
      }
      begin_tasks(now);
      now = next_end();
    }
    for (TaskId t = 0; t < of_.size(); ++t) {
      timeline.begin_s[t] = of_[t].begin_s;
      timeline.end_s[t] = of_[t].end_s;
    }
    return timeline;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct State {
    double ready_s = kNever, begin_s = kNever, end_s = kNever;
    bool ended = false;
  };

  bool may_begin(TaskId task) const {
    return of_[task].begin_s == kNever &&
           std::ranges::all_of(graph_.edges(), [&](const TaskGraph::Edge& edge) {
             return edge.then != task || of_[edge.first].ended;
           });
  }

  bool end_tasks(double now) {
    bool any = false;
    for (TaskId t = 0; t < of_.size(); ++t) {
      if (!of_[t].ended && of_[t].end_s <= now) {
        of_[t].ended = any = true;
        if (graph_.tasks()[t].resource != kNone) {
          ++free_[graph_.tasks()[t].resource];
        }
      }
    }
    return any;
  }

  bool begin_tasks_without_resource(double now) {
    bool any = false;
    for (TaskId t = 0; t < of_.size(); ++t) {
      if (may_begin(t)) {
        of_[t].ready_s = std::min(of_[t].ready_s, now);
        if (graph_.tasks()[t].resource == kNone) {
          begin(t, now);
          any = true;
        }
      }
    }
    return any;
  }

  void begin_tasks(double now) {
    for (uint32_t r = 0; r < free_.size(); ++r) {
      for (; free_[r] > 0; --free_[r]) {
        TaskId chosen = kNone;
        for (TaskId t = 0; t < of_.size(); ++t) {
          if (graph_.tasks()[t].resource == r && may_begin(t) &&
              (chosen == kNone || goes_before(t, chosen))) {
            chosen = t;
          }
        }
        if (chosen == kNone) {
          break;
        }
        begin(chosen, now);
      }
    }
  }

  bool goes_before(TaskId a, TaskId b) const {
    const double first = graph_.tasks()[a].priority, second = graph_.tasks()[b].priority;
    return first != second ? first < second : of_[a].ready_s < of_[b].ready_s;
  }

  void begin(TaskId task, double now) {
    of_[task].begin_s = now;
    of_[task].end_s = now + graph_.tasks()[task].seconds;
  }

  double next_end() const {
    double next = kNever;
    for (const State& state : of_) {
      next = std::min(next, state.ended ? kNever : state.end_s);
    }
    return next;
  }

  const TaskGraph& graph_;
  std::vector<State> of_;
  std::vector<size_t> free_;
};

TEST(Simulation, SaysOfRandomGraphsWhatANaiveOneSays) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    TaskGraph graph;
    const size_t resources = 1 + below(4), tasks = 2 + below(40);
    for (size_t r = 0; r < resources; ++r) {
      graph.add_resource({.name = "r", .slots = 1 + below(3)});
    }
    for (size_t t = 0; t < tasks; ++t) {
      const bool held = t == 0 || below(6) > 0;  // the first holds a resource, as in every step
      // Whole seconds, so that much happens at the same moment.
      const TaskId task =
          graph.add({.resource = held ? static_cast<uint32_t>(below(resources)) : kNone,
                     .seconds = static_cast<double>(below(5)),
                     .priority = static_cast<double>(below(3))});
      if (!held) {
        graph.order(0, task);
      }
    }
    for (size_t e = below(3 * tasks); e > 0; --e) {
      const auto then = static_cast<TaskId>(1 + below(tasks - 1));
      graph.order(static_cast<TaskId>(below(then)), then);
    }
    const Timeline found = simulate(graph), naive = NaiveSimulation(graph).run();
    EXPECT_EQ(found.begin_s, naive.begin_s) << "seed " << seed;
    EXPECT_EQ(found.end_s, naive.end_s) << "seed " << seed;
  }
}

// What grew with the square of the layers took minutes here.
TEST(Simulation, PredictsAStepOfTwoHundredThousandLayers) {
  Profile profile;
  profile.model = "long";
  for (size_t l = 0; l < 200000; ++l) {
    profile.layers.push_back({.name = std::to_string(l),
                              .numel = 100 + l % 7,
                              .forward_s = 1e-6,
                              .backward_s = 2e-6,
                              .update_s = 0.0});
  }
  Cluster cluster;
  cluster.workers = 4;
  cluster.inter = {"made up", 1e-6, 1e9};
  const Profile read = parse_profile(to_json(profile), "long.json");
  const Prediction prediction = predict(read, cluster, {.schedule = Schedule::kWfbp});
  const double expected = reference::wfbp_step(times_of(profile, cluster));
  EXPECT_NEAR(prediction.step_s, expected, 1e-9 * expected);
  EXPECT_EQ(prediction.exchanges, 200000u);
}

}  // namespace
}  // namespace gradwire::planner
