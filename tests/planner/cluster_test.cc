// Uneven, jittering and nested machines, against formulas and naive loops written here.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/predict.h"
#include "tests/planner/made_up.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

TEST(Cluster, AnExchangeCostsWhatItsMessagesDo) {
  Cluster cluster;
  cluster.workers = 4;
  cluster.inter = {"inter", 1e-3, 1e6};
  // 6 messages of a quarter each: 6 ms, and 1.5 times the bytes.
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 6e-3 + 1.5);
  // 3 whole messages.
  cluster.pattern = Pattern::kGather;
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 3e-3 + 3.0);
  cluster.pattern = Pattern::kRing;
  // Two machines of two: inside 2 messages of a half, between machines 2 messages, in which the two
  // workers of a machine together send half of all bytes twice.
  cluster.gpus_per_node = 2;
  cluster.intra = {"intra", 1e-4, 1e8};
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 2e-4 + 0.01 + 2e-3 + 1.0);
  // One message inside; each of two workers sends two over the machine's link.
  cluster.pattern = Pattern::kGather;
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 1e-4 + 0.01 + 2e-3 + 4.0);
  cluster.pattern = Pattern::kRing;
  cluster.workers = 2;  // one machine: the link between machines is not there
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 2e-4 + 0.01);
  cluster.workers = 1;
  EXPECT_EQ(exchange_seconds(cluster, 1e6), 0);
}

// Starts and bytes counted on paper: what passes over the busiest line, one after another.
TEST(Cluster, EachPatternCostsItsClosedForm) {
  struct Row {
    Pattern pattern;
    size_t workers, per_node;
    double starts, bytes;                // between machines; in messages, and in payloads of 1 MB
    double starts_inside, bytes_inside;  // the same
  };
  const Row rows[] = {
      {Pattern::kRing, 6, 1, 10, 10.0 / 6, 0, 0},
      {Pattern::kTree, 8, 1, 6, 6, 0, 0},                    // three levels up, three down
      {Pattern::kTree, 5, 1, 6, 6, 0, 0},                    // the same, not all full
      {Pattern::kRabenseifner, 8, 1, 6, 2 * 7.0 / 8, 0, 0},  // halves, quarters, eighths, and back
      {Pattern::kRabenseifner, 6, 1, 6, 2 * 3.0 / 4 + 2, 0, 0},  // two of six are folded into four
      {Pattern::kRabenseifner, 2, 1, 2, 1, 0, 0},
      {Pattern::kTwoShot, 6, 1, 10, 10.0 / 6, 0, 0},
      {Pattern::kGather, 6, 1, 5, 5, 0, 0},
      {Pattern::kParameterServer, 6, 1, 12, 12, 0, 0},
      {Pattern::kRing, 8, 4, 2, 1, 6, 1.5},
      {Pattern::kTree, 12, 4, 4, 4, 6, 1.5},  // three machines: two levels
      {Pattern::kRabenseifner, 16, 4, 4, 1.5, 6, 1.5},
      {Pattern::kTwoShot, 8, 4, 8, 4, 6, 0.75},  // four workers: an eighth to each of four, twice
      {Pattern::kGather, 8, 4, 4, 16, 3, 3},
      {Pattern::kParameterServer, 8, 4, 16, 16, 0, 0},
      {Pattern::kTree, 4, 4, 0, 0, 6, 1.5},  // one machine
      {Pattern::kRabenseifner, 4, 4, 0, 0, 6, 1.5},
  };
  for (const Row& row : rows) {
    Cluster cluster;
    cluster.workers = row.workers;
    cluster.gpus_per_node = row.per_node;
    cluster.pattern = row.pattern;
    cluster.inter = {"inter", 1e-3, 1e6};
    cluster.intra = {"intra", 1e-4, 1e8};
    EXPECT_DOUBLE_EQ(
        exchange_seconds(cluster, 1e6),
        row.starts * 1e-3 + row.bytes + row.starts_inside * 1e-4 + row.bytes_inside * 1e-2)
        << name_of(row.pattern) << ", " << row.workers << " workers, " << row.per_node;
  }
}

TEST(Cluster, ServersShareTheBytesUntilTheWorkersLinesAreFull) {
  Cluster cluster;
  cluster.pattern = Pattern::kParameterServer;
  cluster.workers = 8;
  cluster.inter = {"inter", 0, 1e6};
  const std::pair<size_t, double> seconds[] = {{1, 16}, {4, 4}, {8, 2}, {64, 2}};
  for (const auto& [servers, expected] : seconds) {
    cluster.servers = servers;
    EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), expected) << servers;
  }
  cluster.gpus_per_node = 4;  // four workers push over one line
  cluster.servers = 4;
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 8);
  cluster.servers = 0;
  EXPECT_EQ(message_of([&] { validate(cluster); }), "cluster: servers: 0, must be at least 1");
  EXPECT_EQ(message_of([] { pattern_named("star"); }),
            "exchange: unknown name 'star', known: ring, tree, rabenseifner, two_shot, gather, "
            "parameter_server");
}

TEST(Cluster, AStreamCarriesItsShare) {
  Cluster cluster;
  cluster.workers = 2;
  cluster.inter = {"inter", 0, 1e6};
  cluster.inter.efficiency = 0.8;
  cluster.inter.stream_bytes_per_s = 2e5;
  EXPECT_DOUBLE_EQ(stream_share(cluster), 0.25);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 5);  // at the stream's rate
  EXPECT_DOUBLE_EQ(exchange_cost(cluster, 1e6).shared_s, 1.25);
  cluster.measured = [](double bytes) { return 1 + bytes / 1e5; };
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 1e6), 11);
  EXPECT_DOUBLE_EQ(exchange_cost(cluster, 1e6).fixed_s, 1);
}

TEST(Cluster, MeasuredMessagesAreTakenWhereThereAreSome) {
  Cluster cluster;
  cluster.workers = 4;
  cluster.inter.tables.insert({{"ring", 1}, SizeTable({{0, 1}, {1e6, 3}})});
  // 6 messages of half a megabyte, 2 s each; 1 s of each is its start.
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 2e6), 12);
  EXPECT_DOUBLE_EQ(exchange_cost(cluster, 2e6).fixed_s, 6);
}

TEST(Cluster, TheSlowestLinkDecides) {
  Cluster cluster;
  cluster.workers = 3;
  cluster.inter = {"inter", 1e-3, 1e6};
  const double even = exchange_seconds(cluster, 3e6);
  cluster.uneven = {{}, {.link = 2.5}, {.link = 0.5}};
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, 3e6), 2.5 * even);
}

// Of some thousand workers few decide; the step is the same as if all were looked at.
TEST(Cluster, AStepWaitsForItsSlowestWorkers) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    Cluster cluster = drawn.cluster();
    double slowest_round = 0, slowest = 0, slowest_input = 0;
    reference::StepTimes times = times_of(profile, cluster);
    const double computes = times.forward + reference::sum(times.backward) + times.update;
    for (size_t w = 0; w < cluster.workers; ++w) {
      const Worker worker{.compute = drawn.between(0.5, 2), .input = drawn.between(0.5, 2)};
      cluster.uneven.push_back(worker);
      slowest = std::max(slowest, worker.compute);
      slowest_input = std::max(slowest_input, worker.input);
      slowest_round = std::max(slowest_round, worker.compute * computes +
                                                  worker.input * (times.io + times.host_to_device));
    }
    const double exchange = reference::sum(times.exchange);
    EXPECT_NEAR(predict(profile, cluster, {.schedule = Schedule::kNaive}).step_s,
                slowest_round + exchange, 1e-9 * slowest_round)
        << seed;
    times.io *= slowest_input;
    times.host_to_device *= slowest_input;
    times.forward *= slowest;
    times.update *= slowest;
    for (double& backward : times.backward) {
      backward *= slowest;
    }
    const double expected = reference::wfbp_step(times);
    EXPECT_NEAR(predict(profile, cluster, {.schedule = Schedule::kWfbp}).step_s, expected,
                1e-9 * expected)
        << seed;
  }
}

TEST(Cluster, JitterMakesTheStepTheMaximumOverWorkers) {
  Profile profile;
  profile.model = "one";
  profile.layers = {{.name = "a", .numel = 1, .forward_s = 1, .backward_s = 1}};
  Cluster cluster;
  cluster.workers = 64;
  cluster.inter = {"inter", 0, 1e12};
  cluster.jitter = 0.2;
  cluster.draws = 2000;
  const Prediction prediction = predict(profile, cluster);
  // The mean of the largest of 64 log-normal numbers, drawn by the standard library.
  std::mt19937_64 random(7);
  const double variance = std::log(1 + 0.2 * 0.2);
  std::lognormal_distribution<double> draw(-variance / 2, std::sqrt(variance));
  double mean = 0;
  for (int step = 0; step < 4000; ++step) {
    double most = 0;
    for (int w = 0; w < 64; ++w) {
      most = std::max(most, draw(random));
    }
    mean += 2 * most / 4000;
  }
  EXPECT_NEAR(prediction.step_s, mean, 0.01 * mean);
  EXPECT_LT(prediction.least_s, prediction.step_s);
  EXPECT_GT(prediction.most_s, prediction.step_s);
  EXPECT_EQ(predict(profile, cluster).step_s, prediction.step_s);  // the same seed
  cluster.seed = 2;
  EXPECT_NE(predict(profile, cluster).step_s, prediction.step_s);
  cluster.jitter = 0;
  EXPECT_NEAR(predict(profile, cluster).step_s, 2, 1e-9);
}

TEST(Cluster, WhatCannotBeIsRefused) {
  const auto message = [](const Cluster& cluster) {
    return message_of([&] { validate(cluster); });
  };
  Cluster cluster;
  cluster.inter.bytes_per_s = 0;
  EXPECT_EQ(message(cluster), "link 'inter': bandwidth is 0 bytes/s, must be positive and finite");
  cluster = {};
  cluster.inter.alpha_s = 100;
  EXPECT_EQ(
      message(cluster),
      "link inter: a start-up of 100 s, must be at most 60 s; was it written in microseconds?");
  cluster = {};
  cluster.workers = 6;
  cluster.gpus_per_node = 4;
  EXPECT_EQ(message(cluster),
            "cluster: 6 workers, must be a multiple of gpus_per_node, 4, or at most as many");
  cluster = {};
  cluster.workers = 2;
  cluster.uneven = {{}};
  EXPECT_EQ(message(cluster), "cluster: uneven: 1 workers, must be none or all 2");
  cluster.uneven = {{}, {.compute = 0}};
  EXPECT_EQ(message(cluster), "cluster: uneven[1].compute: 0, must be above 0");
  cluster = {};
  cluster.jitter = -0.5;
  EXPECT_EQ(message(cluster), "cluster: jitter: -0.5, must be in [0, 10], a share of the mean");
}

}  // namespace
}  // namespace gradwire::planner
