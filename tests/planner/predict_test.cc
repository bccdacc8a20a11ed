// What is said about a prediction: scaling, sensitivities, the trace.

#include "gradwire/planner/predict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "tests/planner/made_up.h"

namespace gradwire::planner {
namespace {

std::map<std::string, Sensitivity> by_name(const std::vector<Sensitivity>& all) {
  std::map<std::string, Sensitivity> found;
  for (const Sensitivity& one : all) {
    found[one.input] = one;
  }
  return found;
}

// A step is a sum of times, so twice of each time is twice the step: the elasticities of all times,
// and of all rates with the other sign, add up to 1 (Euler).
TEST(Sensitivities, OfAllTimesAndRatesAddUpToOne) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Drawn drawn(seed);
    Profile profile = drawn.profile();
    profile.host_to_device_s = 0;  // it would take turns with the copies of buckets
    Cluster cluster = drawn.cluster();
    cluster.gpus_per_node = 2;
    cluster.workers *= 2;
    const StepOptions options{.codec = {.compression = 4, .cost = {1e-5, 1e9, 1e-5, 2e9}},
                              .copy_bytes_per_s = 5e9};
    const auto found = by_name(sensitivities(profile, cluster, options));
    double sum = 0;
    for (const char* time :
         {"io", "forward", "backward", "update", "inter.alpha", "intra.alpha", "codec start"}) {
      sum += found.at(time).elasticity;
    }
    for (const char* rate : {"inter.bandwidth", "intra.bandwidth", "compress rate",
                             "decompress rate", "copy bandwidth"}) {
      sum -= found.at(rate).elasticity;
    }
    EXPECT_NEAR(sum, 1, 1e-2) << seed;  // where 1% changes what overlaps, not exactly
  }
}

TEST(Sensitivities, WhatHasNoEffectSaysWhy) {
  Profile profile;
  profile.model = "slow input";
  profile.io_s = 1;
  profile.layers = {{.name = "a", .numel = 1000, .forward_s = 0.1, .backward_s = 0.1}};
  Cluster cluster;
  cluster.workers = 4;
  auto found = by_name(sensitivities(profile, cluster, {.schedule = Schedule::kWfbp}));
  EXPECT_NEAR(found.at("io").elasticity, 1, 1e-9);
  EXPECT_EQ(found.at("io").no_effect, "");
  EXPECT_EQ(found.at("backward").no_effect, "hidden: 1% more or less of it changes no step");
  EXPECT_EQ(found.at("update").no_effect, "it is 0");
  EXPECT_EQ(found.at("intra.bandwidth").no_effect, "each machine has one worker");
  EXPECT_EQ(found.at("measured exchanges").no_effect, "exchange times are modelled");
  cluster.gpus_per_node = 4;
  found = by_name(sensitivities(profile, cluster, {.schedule = Schedule::kWfbp}));
  EXPECT_EQ(found.at("inter.bandwidth").no_effect, "all workers are in one machine");
}

TEST(Scaling, FollowsTheFormula) {
  Profile profile;
  profile.model = "one";
  profile.batch = 10;
  profile.layers = {{.name = "a", .numel = 1000000, .forward_s = 1, .backward_s = 1}};
  Cluster cluster;
  cluster.workers = 8;
  cluster.inter = {"inter", 0.125, 4e6};  // 2 (P-1) / 8 + 2 (P-1) / P seconds
  const auto curve = scaling_curve(profile, cluster, {}, doubling_workers(cluster));
  ASSERT_EQ(curve.size(), 4u);
  EXPECT_DOUBLE_EQ(curve[0].step_s, 2);
  EXPECT_DOUBLE_EQ(curve[0].speedup, 1);
  EXPECT_DOUBLE_EQ(curve[1].step_s, 2 + 0.25 + 1);
  EXPECT_DOUBLE_EQ(curve[3].step_s, 2 + 1.75 + 1.75);
  EXPECT_DOUBLE_EQ(curve[3].exposed_s, 3.5);
  EXPECT_DOUBLE_EQ(curve[3].speedup, 8 * 2 / 5.5);
  EXPECT_DOUBLE_EQ(curve[3].efficiency, 2 / 5.5);
  EXPECT_DOUBLE_EQ(curve[3].samples_per_s, 80 / 5.5);
}

TEST(Trace, HoldsTheStepsTasks) {
  Profile profile;
  profile.model = "two";
  profile.layers = {{.name = "first", .numel = 1, .forward_s = 1, .backward_s = 2},
                    {.name = "second \"q\"", .numel = 1, .forward_s = 3, .backward_s = 1}};
  profile.layers[0].exchange_s = 4;
  profile.layers[1].exchange_s = 6;
  const std::string json =
      predicted_chrome_json(profile, {}, {.exchange = StepOptions::Exchange::kMeasured});
  const std::regex event(R"re("name":"([^"\\]*)[^}]*"ts":([0-9.e+-]+),"dur":([0-9.e+-]+))re");
  std::map<std::string, std::pair<double, double>> spans;
  for (std::sregex_iterator i(json.begin(), json.end(), event), none; i != none; ++i) {
    spans[(*i)[1]] = {std::stod((*i)[2]), std::stod((*i)[3])};
  }
  EXPECT_NEAR(spans["forward first"].first, 0, 1e-3);
  EXPECT_NEAR(spans["backward first"].first, 5e6, 1e-3);
  EXPECT_NEAR(spans["exchange bucket 0"].first, 5e6, 1e-3);
  EXPECT_NEAR(spans["exchange bucket 0"].second, 6e6, 1e-3);
  EXPECT_NEAR(spans["exchange bucket 1"].first, 11e6, 1e-3);
  EXPECT_NE(json.find("second \\\"q\\\""), std::string::npos);
}

TEST(Predict, AllSchedulesOfBertLargeOnFourThousandWorkers) {
  std::ifstream in(std::string(GRADWIRE_SOURCE_DIR) +
                   "/tests/planner/data/layers/bert_large_pretrain.csv");
  std::ostringstream text;
  text << in.rdbuf();
  const Profile bert = import_layers(
      text.str(), {.flops_per_s = 1e14, .batch = 8, .flops_per_element = 2 * 512.0}, "bert-large");
  ASSERT_EQ(bert.layers.size(), 398u);
  ASSERT_EQ(bert.numel(), 336226108u);
  Cluster cluster;
  cluster.workers = 4096;
  cluster.gpus_per_node = 8;
  cluster.inter = {"inter", 1e-5, 25e9 / 8};
  cluster.intra = {"intra", 2e-6, 1e11};
  cluster.jitter = 0.05;
  cluster.draws = 4;
  const double naive = predict(bert, cluster, {.schedule = Schedule::kNaive}).step_s;
  // More than the bytes that must cross a machine's link, and the arithmetic, one after another.
  EXPECT_GT(naive, 2 * 511.0 / 512 * bert.gradient_bytes() / (25e9 / 8));
  for (size_t s = 0; s < kSchedules; ++s) {
    const Prediction prediction = predict(bert, cluster, {.schedule = static_cast<Schedule>(s)});
    EXPECT_LE(prediction.step_s, naive * (1 + 1e-9)) << name_of(prediction.schedule);
    EXPECT_GT(prediction.step_s, bert.forward_s() + bert.backward_s());
  }
}

TEST(Predict, CompressionTradesBytesForWork) {
  Profile profile;
  profile.model = "one";
  profile.layers = {{.name = "a", .numel = 1000000, .forward_s = 1, .backward_s = 1}};
  Cluster cluster;
  cluster.workers = 2;
  cluster.inter = {"inter", 0, 1e6};
  StepOptions options{.codec = {.compression = 8, .cost = {0.125, 8e6, 0.125, 16e6}},
                      .copy_bytes_per_s = 4e6};
  // 2 s of computing; 0.625 to compress, 0.125 to copy, 0.5 to exchange half a megabyte, 0.125
  // back, 0.375 to decompress.
  EXPECT_DOUBLE_EQ(predict(profile, cluster, options).step_s, 3.75);
  // Gathered: one message of half a megabyte, two payloads to decompress.
  cluster.pattern = Pattern::kGather;
  EXPECT_DOUBLE_EQ(predict(profile, cluster, options).step_s, 4.125);
  options.codec.compression = 0;
  EXPECT_THROW(predict(profile, cluster, options), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
