// The event simulator on graphs small enough to work out by hand.

#include "gradwire/planner/task_graph.h"

#include <gtest/gtest.h>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

Task on(uint32_t resource, double seconds, double priority = 0) {
  return {
      .kind = TaskKind::kBackward, .resource = resource, .seconds = seconds, .priority = priority};
}

TEST(TaskGraph, AResourceRunsOneAfterAnother) {
  TaskGraph graph;
  const uint32_t line = graph.add_resource({.name = "line"});
  graph.add(on(line, 2));
  graph.add(on(line, 3));
  const Timeline timeline = simulate(graph);
  EXPECT_EQ(timeline.begin_s, (std::vector<double>{0, 2}));
  EXPECT_EQ(timeline.end_s, (std::vector<double>{2, 5}));
  EXPECT_EQ(timeline.end(), 5);
  EXPECT_EQ(timeline.cause, (std::vector<TaskId>{kNone, 0}));
}

TEST(TaskGraph, ATaskBeginsWhenAllBeforeItHaveEnded) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"});
  const uint32_t b = graph.add_resource({.name = "b"});
  const TaskId first = graph.add(on(a, 2));
  const TaskId second = graph.add(on(b, 7));
  const TaskId both = graph.add(on(a, 1));
  graph.order(first, both);
  graph.order(second, both);
  const Timeline timeline = simulate(graph);
  EXPECT_EQ(timeline.begin_s[both], 7);
  EXPECT_EQ(timeline.cause[both], second);
  EXPECT_EQ(critical_path(timeline, both), (std::vector<TaskId>{second, both}));
}

TEST(TaskGraph, OfThoseThatWaitTheLeastPriorityGoesFirst) {
  TaskGraph graph;
  const uint32_t line = graph.add_resource({.name = "line"});
  const TaskId running = graph.add(on(line, 4, 0));
  const TaskId later = graph.add(on(line, 1, 9));
  const TaskId sooner = graph.add(on(line, 1, 1));
  const Timeline timeline = simulate(graph);
  EXPECT_EQ(timeline.begin_s[running], 0);
  EXPECT_EQ(timeline.begin_s[sooner], 4);
  EXPECT_EQ(timeline.begin_s[later], 5);
}

TEST(TaskGraph, PrioritiesDecideAmongThoseThatBecomeReadyAtTheSameTime) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"});
  const uint32_t b = graph.add_resource({.name = "b"});
  const uint32_t line = graph.add_resource({.name = "line"});
  const TaskId first = graph.add(on(a, 2));
  const TaskId second = graph.add(on(b, 2));
  const TaskId low = graph.add(on(line, 1, 5));
  const TaskId high = graph.add(on(line, 1, 1));
  graph.order(first, low);  // known to the simulator first
  graph.order(second, high);
  const Timeline timeline = simulate(graph);
  EXPECT_EQ(timeline.begin_s[high], 2);
  EXPECT_EQ(timeline.begin_s[low], 3);
}

TEST(TaskGraph, SlotsShareTheCommonRate) {
  TaskGraph graph;
  const uint32_t network = graph.add_resource({.name = "network", .slots = 2, .most_share = 1});
  // Alone 1 s of latency and 4 s of transfer each. From 1 s on both have half the rate: the shorter
  // one has moved 2 by 5 s; the longer one then has the rest, 2, to itself.
  const Task task{.kind = TaskKind::kExchange, .resource = network, .seconds = 1, .shared_s = 2};
  Task longer = task;
  longer.shared_s = 4;
  const TaskId a = graph.add(task);
  const TaskId b = graph.add(longer);
  const TaskId c = graph.add(task);  // waits for a slot: latency until 6, then half the rate
  const Timeline timeline = simulate(graph);
  EXPECT_DOUBLE_EQ(timeline.end_s[a], 5);
  EXPECT_DOUBLE_EQ(timeline.begin_s[c], 5);
  // 5 to 6 s: b alone moves 1, 1 is left. From 6 s on half each: b ends at 8, c has 1 left: 9.
  EXPECT_DOUBLE_EQ(timeline.end_s[b], 8);
  EXPECT_DOUBLE_EQ(timeline.end_s[c], 9);
}

TEST(TaskGraph, OneStreamGetsNoMoreThanItsShare) {
  TaskGraph graph;
  const uint32_t network = graph.add_resource({.name = "network", .slots = 4, .most_share = 0.25});
  const Task task{.kind = TaskKind::kExchange, .resource = network, .shared_s = 1};
  graph.add(task);
  EXPECT_DOUBLE_EQ(simulate(graph).end(), 4);
  graph.add(task);
  graph.add(task);
  graph.add(task);
  EXPECT_DOUBLE_EQ(simulate(graph).end(), 4);  // four quarters fill it
  graph.add(task);
  EXPECT_DOUBLE_EQ(simulate(graph).end(), 8);  // the fifth waits for a slot
}

TEST(TaskGraph, ACycleIsNamed) {
  TaskGraph graph;
  const uint32_t line = graph.add_resource({.name = "line"});
  const TaskId a = graph.add(on(line, 1));
  const TaskId b = graph.add(on(line, 1));
  const TaskId c = graph.add(on(line, 1));
  graph.order(a, b);
  graph.order(b, c);
  graph.order(c, b);
  try {
    simulate(graph);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "task graph: a cycle, backward of step 0 (task 1) before backward of step 0 (task "
                 "2) before backward of step 0 (task 1), expected an order without one");
  }
}

TEST(TaskGraph, TimesThatAreNoneAreRefused) {
  TaskGraph graph;
  const uint32_t line = graph.add_resource({.name = "line"});
  EXPECT_THROW(graph.add(on(line, -1)), InvalidArgument);
  EXPECT_THROW(graph.add(on(line, std::numeric_limits<double>::quiet_NaN())), InvalidArgument);
  EXPECT_THROW(graph.add(on(7, 1)), InvalidArgument);
  EXPECT_THROW(graph.order(0, 1), InvalidArgument);
  EXPECT_THROW(graph.add_resource({.name = "none", .slots = 0}), InvalidArgument);
  EXPECT_THROW(graph.add_resource({.name = "none", .slots = 1, .most_share = 0}), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
