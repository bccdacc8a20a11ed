// Exchanges that take their processor time from those who compute: against closed forms, a naive
// loop over small stretches of time, and laws.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/fair_share.h"
#include "gradwire/planner/predict.h"
#include "tests/planner/made_up.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

constexpr uint64_t kSeeds = 100;
constexpr StepOptions::Exchange kMeasured = StepOptions::Exchange::kMeasured;

/// The level of max-min fairness by bisection.
std::vector<double> shares_by_bisection(double cores, const std::vector<Demand>& demands) {
  double low = 0, high = 1e6;
  const auto given = [&](double level) {
    double sum = 0;
    for (const Demand& demand : demands) {
      sum += std::min(demand.cores, demand.threads * level);
    }
    return sum;
  };
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (given(middle) <= cores ? low : high) = middle;
  }
  std::vector<double> shares;
  for (const Demand& demand : demands) {
    shares.push_back(std::min(demand.cores, demand.threads * low));
  }
  return shares;
}

TEST(FairShares, AreThoseOfOneLevel) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    std::vector<Demand> demands(1 + seed % 7);
    for (Demand& demand : demands) {
      demand = {drawn.between(0.01, 3), std::floor(drawn.between(1, 5))};
    }
    const double cores = drawn.between(0.1, 6);
    const std::vector<double> shares = fair_shares(cores, demands);
    const std::vector<double> expected = shares_by_bisection(cores, demands);
    ASSERT_EQ(shares.size(), demands.size());
    for (size_t i = 0; i < shares.size(); ++i) {
      EXPECT_NEAR(shares[i], expected[i], 1e-9) << "seed " << seed << ", " << i;
    }
  }
  EXPECT_EQ(fair_shares(2, std::vector<Demand>{{1, 1}, {0.25, 1}}),
            (std::vector<double>{1, 0.25}));  // enough: to the bit
}

Task on(uint32_t resource, double seconds, uint32_t processor, double cores) {
  return {.kind = TaskKind::kBackward,
          .resource = resource,
          .seconds = seconds,
          .processor = processor,
          .cores = cores};
}

TEST(SharedProcessors, ATaskGoesAsFastAsItsCores) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"}), b = graph.add_resource({.name = "b"});
  const uint32_t core = graph.add_processor({.cores = 1});
  const TaskId computing = graph.add(on(a, 4, core, 1));
  const TaskId sending = graph.add(on(b, 2, core, 0.25));
  const TaskId apart = graph.add(on(a, 1, kNone, 0));  // no processor: its own time
  const Timeline timeline = simulate(graph);
  EXPECT_DOUBLE_EQ(timeline.end_s[sending], 2);      // it wants less than half of the core
  EXPECT_DOUBLE_EQ(timeline.end_s[computing], 4.5);  // 1.5 s are done at 2 s
  EXPECT_DOUBLE_EQ(timeline.end_s[apart], 5.5);
}

TEST(SharedProcessors, WhatWantsMoreThanItsPartIsSlowedToo) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"}), b = graph.add_resource({.name = "b"});
  const uint32_t core = graph.add_processor({.cores = 1});
  const TaskId computing = graph.add(on(a, 4, core, 1));
  const TaskId sending = graph.add(on(b, 2, core, 0.8));
  const Timeline timeline = simulate(graph);
  EXPECT_DOUBLE_EQ(timeline.end_s[sending], 3.2);    // half a core, where it wanted 0.8 for 2 s
  EXPECT_DOUBLE_EQ(timeline.end_s[computing], 5.6);  // 4 s, and the 1.6 s that sending took
}

TEST(SharedProcessors, WhoNeedsAllWaitsForTheBusiest) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"}), b = graph.add_resource({.name = "b"});
  const uint32_t busy = graph.add_processor({.cores = 1});
  graph.add_processor({.cores = 1});
  graph.add(on(a, 4, busy, 1));
  const TaskId everywhere = graph.add(on(b, 2, kEvery, 1));
  EXPECT_DOUBLE_EQ(simulate(graph).end_s[everywhere], 4);
}

TEST(SharedProcessors, StreamsShareTheirLineAtTheirPace) {
  TaskGraph graph;
  const uint32_t a = graph.add_resource({.name = "a"});
  const uint32_t network = graph.add_resource({.name = "network", .slots = 2});
  const uint32_t core = graph.add_processor({.cores = 1});
  graph.add(on(a, 100, core, 1));
  Task stream = on(network, 1, core, 1);
  stream.shared_s = 1;
  const TaskId first = graph.add(stream), second = graph.add(stream);
  // A third of the core each: 1 s by itself takes 3. Then each has half of the line and wants half
  // of the core for that, of which it gets two thirds: another 3 s.
  const Timeline timeline = simulate(graph);
  EXPECT_NEAR(timeline.end_s[first], 6, 1e-12);
  EXPECT_NEAR(timeline.end_s[second], 6, 1e-12);
}

TEST(SharedProcessors, WhatCannotBeIsRefused) {
  TaskGraph graph;
  const uint32_t line = graph.add_resource({.name = "line"});
  EXPECT_EQ(message_of([&] { graph.add_processor({.cores = 0}); }),
            "task graph: a processor of 0 cores, must be above 0 and finite");
  EXPECT_EQ(message_of([&] { graph.add(on(line, 1, kEvery, 1)); }),
            concat("task graph: processor ", kEvery, ", must be one of the 0 there are"));
  const uint32_t core = graph.add_processor({.cores = 1});
  EXPECT_EQ(message_of([&] { graph.add(on(line, 1, core, 0)); }),
            "task graph: 0 cores of a processor, must be above 0 and finite");
  Task task = on(line, 1, core, 1);
  task.threads = 0.5;
  EXPECT_EQ(message_of([&] { graph.add(task); }), "task graph: 0.5 threads, must be at least 1");
}

/// Backward of 4 s behind the only gradient, which travels meanwhile, 2 s with `cpu_s` of
/// processor.
Profile hidden_exchange(double cpu_s) {
  Profile profile;
  profile.model = "hidden";
  profile.layers = {{.name = "rest", .forward_s = 1, .backward_s = 4},
                    {.name = "sent", .numel = 1, .forward_s = 0.5, .backward_s = 1}};
  profile.layers[1].exchange_s = 2;
  profile.layers[1].exchange_cpu_s = cpu_s;
  return profile;
}

double step(const Profile& profile, double cores_per_worker, double threads = 1) {
  Cluster cluster;
  cluster.workers = 4;
  cluster.cores_per_worker = cores_per_worker;
  cluster.threads = threads;
  return predict(profile, cluster, {.exchange = kMeasured}).step_s;
}

// r ranks on c cores: computing takes longer by what the exchanges take of the processors, r u / c.
TEST(SharedProcessors, AHiddenExchangeCostsItsProcessorTime) {
  for (const double u : {0.01, 0.1, 0.25, 0.4}) {
    EXPECT_NEAR(step(hidden_exchange(u), 2.0 / 4), 6.5 + 4 * u / 2, 1e-12) << u;
    EXPECT_NEAR(step(hidden_exchange(u), 2.0 / 3), 6.5 + 3 * u / 2, 1e-12) << u;
    EXPECT_NEAR(step(hidden_exchange(u), 2.0 / 2), 6.5 + 2 * u / 2, 1e-12) << u;
    // One rank has a core to spare; of 1.1 cores a rank only the rest of what it wants, u / 2.
    EXPECT_EQ(step(hidden_exchange(u), 2.0 / 1), 6.5) << u;
    EXPECT_NEAR(step(hidden_exchange(u), 1.1), 6.5 + std::max(0.0, u - 0.2), 1e-12) << u;
    EXPECT_EQ(step(hidden_exchange(u), 2.0, 2), step(hidden_exchange(u / 2), 1.0)) << u;
  }
}

TEST(SharedProcessors, AnExchangeThatNothingHidesTakesWhatItTookAlone) {
  Profile profile = hidden_exchange(0.9);
  std::swap(profile.layers[0], profile.layers[1]);
  EXPECT_NEAR(step(profile, 0.5), 8.5, 1e-12);
  // More processor time than there was while it was measured: all there is, and no more.
  profile.layers[0].exchange_cpu_s = 50;
  EXPECT_NEAR(step(profile, 0.5), 8.5, 1e-12);
}

TEST(SharedProcessors, WhatIsNotCountedChangesNothing) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster before = drawn.cluster();
    Cluster free = before;  // processor time, but enough cores
    free.inter.message_cpu_s = 1e-5;
    free.inter.cpu_bytes_per_s = 1e9;
    Cluster idle = before;  // few cores, but others move the bytes
    idle.cores_per_worker = 0.5;
    for (size_t s = 0; s < kSchedules; ++s) {
      const StepOptions options{.schedule = static_cast<Schedule>(s)};
      const double expected = predict(profile, before, options).step_s;
      EXPECT_EQ(predict(profile, free, options).step_s, expected) << seed;
      EXPECT_NEAR(predict(profile, idle, options).step_s, expected, 1e-9 * expected) << seed;
    }
  }
}

/// A step of one worker, tensors one after another, in small stretches of time.
double naive_step(const Profile& profile, const Cluster& cluster, double stretch_s) {
  const double k = cluster.cores_per_worker, computing = std::min(1.0, k);
  std::vector<double> backward, alone, wants;
  for (size_t l = profile.layers.size(); l-- > 0;) {
    const ExchangeCost cost = exchange_cost(cluster, profile.layers[l].bytes());
    backward.push_back(profile.layers[l].backward_s);
    alone.push_back(cost.fixed_s + cost.shared_s);
    wants.push_back(std::min(k, cost.cpu_s / alone.back()));
  }
  double seconds = profile.forward_s() + profile.update_s();
  size_t computed = 0, sent = 0;
  while (sent < alone.size()) {
    const bool computes = computed < backward.size(), sends = sent < computed;
    double core = computing, line = sends ? wants[sent] : 0;
    if (computes && sends && core + line > k) {
      const double half = k / 2;  // each has half unless it wants less
      line = std::min(line, std::max(half, k - core));
      core = std::min(core, k - line);
    }
    if (computes && (backward[computed] -= stretch_s * core / computing) <= 0) {
      ++computed;
    }
    if (sends && (alone[sent] -= stretch_s * line / wants[sent]) <= 0) {
      ++sent;
    }
    seconds += stretch_s;
  }
  return seconds;
}

TEST(SharedProcessors, AStepIsThatOfANaiveLoop) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Drawn drawn(seed);
    Profile profile = drawn.profile();
    profile.io_s = profile.host_to_device_s = 0;
    Cluster cluster = drawn.cluster();
    cluster.inter.message_cpu_s = drawn.between(0, 1) * cluster.inter.alpha_s + 1e-9;
    cluster.inter.cpu_bytes_per_s = cluster.inter.bytes_per_s / drawn.between(0.1, 1);
    cluster.cores_per_worker = drawn.between(0.3, 1.5);
    const double got = predict(profile, cluster, {.schedule = Schedule::kWfbp}).step_s;
    const double stretch_s = got / 100000;
    const double most_off = 3 * static_cast<double>(profile.layers.size()) * stretch_s;
    EXPECT_NEAR(got, naive_step(profile, cluster, stretch_s), most_off) << "seed " << seed;
  }
}

TEST(SharedProcessors, LessProcessorTimeAndMoreCoresNeverSlow) {
  size_t slowed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    Cluster cluster = drawn.cluster();
    cluster.cores_per_worker = drawn.between(0.2, 1.5);
    cluster.inter.message_cpu_s = cluster.inter.alpha_s;
    cluster.inter.cpu_bytes_per_s = cluster.inter.bytes_per_s * drawn.between(1, 5);
    Cluster free = cluster, lighter = cluster, wider = cluster;
    free.cores_per_worker = 0;
    lighter.inter.message_cpu_s *= drawn.between(0, 1);
    lighter.inter.cpu_bytes_per_s *= drawn.between(1, 3);
    wider.cores_per_worker *= drawn.between(1, 3);
    const auto step_of = [&](const Cluster& c, Schedule schedule = Schedule::kWfbp) {
      return predict(profile, c, {.schedule = schedule}).step_s * (1 - 1e-9);
    };
    const double slow = predict(profile, cluster, {.schedule = Schedule::kWfbp}).step_s;
    EXPECT_LE(step_of(free), slow) << seed;
    EXPECT_LE(step_of(lighter), slow) << seed;
    EXPECT_LE(step_of(wider), slow) << seed;
    slowed += slow > 1.001 * step_of(free);
    // What shares a processor is never slower than one after another, where nothing is shared.
    const double in_turn = predict(profile, cluster, {.schedule = Schedule::kNaive}).step_s;
    for (const Schedule schedule : {Schedule::kWfbp, Schedule::kMgWfbp, Schedule::kMultiStream}) {
      EXPECT_LE(step_of(cluster, schedule), in_turn) << name_of(schedule) << ", seed " << seed;
    }
  }
  EXPECT_GT(slowed, kSeeds / 4);  // the law was not empty
}

TEST(SharedProcessors, EachPatternTakesTheProcessorForItsOwnMessages) {
  struct Row {
    Pattern pattern;
    size_t workers, per_node;
    double messages, payloads;  // of one worker, between machines
    double inside, payloads_inside;
  };
  const Row rows[] = {
      {Pattern::kRing, 4, 1, 6, 1.5, 0, 0},
      {Pattern::kRing, 8, 4, 2, 0.25, 6, 1.5},
      {Pattern::kTree, 8, 1, 6, 6, 0, 0},
      {Pattern::kTree, 8, 4, 2, 0.5, 6, 1.5},
      {Pattern::kRabenseifner, 8, 1, 6, 1.75, 0, 0},
      {Pattern::kTwoShot, 8, 4, 8, 1, 6, 0.75},
      {Pattern::kGather, 8, 4, 4, 4, 3, 3},
      {Pattern::kParameterServer, 8, 1, 2, 2, 0, 0},
  };
  for (const Row& row : rows) {
    Cluster cluster;
    cluster.workers = row.workers;
    cluster.gpus_per_node = row.per_node;
    cluster.pattern = row.pattern;
    cluster.inter.message_cpu_s = 1e-3;
    cluster.inter.cpu_bytes_per_s = 1e6;
    cluster.intra.message_cpu_s = 1e-4;
    cluster.intra.cpu_bytes_per_s = 1e8;
    EXPECT_DOUBLE_EQ(
        exchange_cost(cluster, 1e6).cpu_s,
        row.messages * 1e-3 + row.payloads + row.inside * 1e-4 + row.payloads_inside * 1e-2)
        << name_of(row.pattern) << ", " << row.workers << " workers, " << row.per_node;
  }
  Cluster servers;  // more of them: more messages of fewer bytes
  servers.workers = 8;
  servers.pattern = Pattern::kParameterServer;
  servers.servers = 4;
  servers.inter.message_cpu_s = 1e-3;
  servers.inter.cpu_bytes_per_s = 1e6;
  EXPECT_DOUBLE_EQ(exchange_cost(servers, 1e6).cpu_s, 8e-3 + 2);
}

TEST(HandingOver, TakesItsTimeOfBackwardForEachBucket) {
  Profile profile;
  profile.model = "three";
  for (const char* name : {"a", "b", "c"}) {
    profile.layers.push_back({.name = name, .numel = 1, .forward_s = 1, .backward_s = 2});
    profile.layers.back().exchange_s = 0;
  }
  profile.hand_over_s = 0.5;
  const StepOptions options{.exchange = kMeasured};
  EXPECT_DOUBLE_EQ(predict(profile, {}, options).step_s, 9 + 3 * 0.5);
  // At once, before the next gradient: c is there at 5, leaves at 5.5 and is back at 15.5.
  profile.layers[2].exchange_s = 10;
  EXPECT_DOUBLE_EQ(predict(profile, {}, options).step_s, 15.5);
  profile.layers[2].exchange_s = 0;
  StepOptions together = options;
  together.buckets = {{2, 1, 0}};
  EXPECT_DOUBLE_EQ(predict(profile, {}, together).step_s, 9.5);
  EXPECT_DOUBLE_EQ(predict(profile, {}).step_s, 9);  // one worker hands nothing over
}

TEST(SharedProcessors, BadNumbersAreRefused) {
  const auto message = [](const Cluster& cluster) {
    return message_of([&] { validate(cluster); });
  };
  Cluster cluster;
  cluster.cores_per_worker = -1;
  EXPECT_EQ(message(cluster), "cluster: cores_per_worker: -1, must be above 0, or 0 for enough");
  cluster.cores_per_worker = NAN;
  EXPECT_NE(message(cluster), "nothing was thrown");
  cluster = {};
  cluster.threads = 0;
  EXPECT_EQ(message(cluster), "cluster: threads: 0, must be at least 1");
  cluster = {};
  cluster.inter.message_cpu_s = -1;
  EXPECT_EQ(message(cluster),
            "link 'inter': a message takes -1 s of a processor, must be finite and at least 0");
  cluster = {};
  cluster.intra.cpu_bytes_per_s = INFINITY;
  EXPECT_EQ(message(cluster),
            "link 'intra': a processor handles inf bytes/s, must be finite and at least 0");
}

}  // namespace
}  // namespace gradwire::planner
