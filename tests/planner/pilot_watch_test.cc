// What a pilot must not be misled by: pauses between steps, busy machines, a job that changes, harm
// that was done before.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gradwire/planner/pilot.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;
using test::count;
using test::kFastest;
using test::pilot_model;
using test::slow_link;
using Job = test::PilotJob;

TEST(PilotWatch, PausesBetweenStepsDecideNothing) {
  // A job that evaluates for 2 s behind every sixth step: a turn of three meets it every other
  // time, so that where four plans take turns it is always the same two that do.
  for (uint64_t k = 0; k < 6; ++k) {
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    Job job = slow_link();
    job.pause = [k](uint64_t step) { return step % 6 == k ? 2.0 : 0.0; };
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().spec, kFastest) << k << "\n" << pilot.log_json_lines();
    job.run(pilot, 5);
    EXPECT_EQ(pilot.plan().spec, kFastest) << k << "\n" << pilot.log_json_lines();
  }
}

TEST(PilotWatch, ComparesWithStepsWithoutCompressionOfTheSameMinutes) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 1e9;  // nothing is predicted to be hopeless
  job.step_s = {{"none", 0.3}, {"bf16", 0.26}, {"int8", 0.29}, {"int4", 0.3}, {kFastest, 0.3}};
  job.run(pilot, 1);
  job.more_s = 0.1;  // the machine is busier from now on, for all alike
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "bf16") << pilot.log_json_lines();
}

TEST(PilotWatch, PlansOfAGpuHaveTheExchangesThatAreThere) {
  for (const std::string spec : {"int8", "topk:1%", "chunktopk:64/4096", "powersgd:2"}) {
    Pilot pilot(pilot_model(), 8,
                at_any_age({.specs = {spec}, .device = DeviceType::kCuda, .tuning_turns = 0}));
    Job job{.step_s = {{"none", 1.0}, {"bf16", 0.6}, {to_string(parse_spec(spec)), 0.1}}};
    job.run_to_cruise(pilot);
    const Plan plan = make_plan(pilot_model(), pilot.plan().plan);
    for (const PlanBucket& bucket : plan.buckets) {
      for (const PlanGroup& group : bucket.groups) {
        const auto compressor =
            make_compressor(group.spec, {.numel = group.numel, .segments = group.segments});
        EXPECT_TRUE(carries(find_exchange(bucket.exchange), *compressor, DeviceType::kCuda))
            << spec << ": " << bucket.exchange << " of " << to_string(group.spec);
      }
    }
  }
}

TEST(PilotWatch, WhatIsSlowerThanNoneHasOneTurn) {
  Pilot pilot(pilot_model(), 4, at_any_age({.least_gain = 0, .tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 1e9;  // nothing is predicted to be hopeless
  job.step_s = {{"none", 0.3}, {"bf16", 0.31}, {"int8", 0.31}, {"int4", 0.31}, {kFastest, 0.32}};
  job.run_to_cruise(pilot);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  EXPECT_EQ(job.ran.size(), 1u + 4u);  // the dense window, and a turn of each
}

TEST(PilotWatch, WhatIsSlowerThanOneThatSendsMoreHasOneTurn) {
  Pilot pilot(pilot_model(), 4, at_any_age({.least_gain = 0, .candidates = 5, .tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 1e9;
  job.step_s = {{"none", 0.5}, {"bf16", 0.5}, {"int8", 0.45}, {"int4", 0.48}};
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "int8") << pilot.log_json_lines();
  EXPECT_EQ(std::ranges::count(job.ran, "int4"), 1) << pilot.log_json_lines();
  EXPECT_GE(std::ranges::count(job.ran, "int8"), 3) << pilot.log_json_lines();
}

TEST(PilotWatch, TwoCandidatesAreEnough) {
  Pilot pilot(pilot_model(), 4, at_any_age({.candidates = 2}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
}

TEST(PilotWatch, ThousandsOfParametersArePlannedInPieces) {
  // Where messages cost nothing to start each of 600 would travel alone, which takes long to find.
  std::vector<ParamInfo> parameters;
  for (size_t p = 0; p < 600; ++p) {
    parameters.push_back({std::to_string(p), {100, 100}});
  }
  Pilot pilot(parameters, 4, at_any_age({.tuning_turns = 0}));
  const Job job = slow_link();
  pilot.end_window({.step_s = {1, 1, 1, 1, 1}});
  PilotCosts costs{.ready_s = std::vector<double>(600),
                   .alpha_s = 0,
                   .bytes_per_s = 4e7,
                   .codecs = job.costs(pilot).codecs};
  for (auto& [spec, cost] : costs.codecs) {
    cost.encode_floor_s = cost.decode_floor_s = 0;
  }
  for (size_t p = 0; p < 600; ++p) {
    costs.ready_s[p] = 1e-3 * static_cast<double>(600 - p);
  }
  pilot.set_costs(costs);
  std::vector<size_t> seen(600);
  for (const std::vector<ParamId>& bucket : pilot.plan().plan.buckets) {
    EXPECT_GE(bucket.size(), 5u);  // of 128 pieces of at least 600 / 128
    for (const ParamId p : bucket) {
      ++seen[p];
    }
  }
  EXPECT_EQ(seen, std::vector<size_t>(600, 1));
}

TEST(PilotWatch, ABusyWindowDoesNotEndCompressionForGood) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  job.more_s = 3;
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "off"), 1u);
  job.more_s = 0;
  job.run(pilot, 5 + 4);  // a wait of five windows, and two rounds of two
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "retry"), 1u);
}

TEST(PilotWatch, WhatWasAboutAsFastIsTimedAgain) {
  for (const double bf16_s : {0.295, 0.32}) {  // the second has lost clearly
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    Job job = slow_link();
    job.bytes_per_s = 1e9;
    job.step_s = {
        {"none", 0.3}, {"bf16", bf16_s}, {"int8", 0.32}, {"int4", 0.32}, {kFastest, 0.32}};
    job.run_to_cruise(pilot);
    ASSERT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
    job.step_s["none"] = 0.36;
    job.run(pilot, 5 + 4);
    EXPECT_EQ(count(pilot, "retry"), bf16_s < 0.3 ? 1u : 0u) << pilot.log_json_lines();
    EXPECT_EQ(pilot.plan().spec, bf16_s < 0.3 ? "bf16" : "none") << pilot.log_json_lines();
  }
}

TEST(PilotWatch, WhereAllStepsTakeLongerItComparesAnewAtOnce) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  job.more_s =
      0.9;  // heavier batches: 1.05 s where steps without compression took 1 s, and now 1.9
  job.run_window(pilot);
  EXPECT_EQ(count(pilot, "retry"), 1u) << pilot.log_json_lines();
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
  job.run(pilot, 20);
  EXPECT_EQ(pilot.plan().spec, kFastest);
  EXPECT_EQ(count(pilot, "retry"), 1u) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "off"), 0u);
}

TEST(PilotWatch, LooksAgainMoreAndMoreSeldom) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0, .link_band = 100}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  const uint64_t first = pilot.probing_steps();
  job.step_s[kFastest] = 1.5;
  job.run(pilot, 400);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  // Waits of 100, 200, 400, ... steps: six of them are over behind 6300.
  EXPECT_GE(count(pilot, "retry"), 5u) << pilot.log_json_lines();
  EXPECT_LE(count(pilot, "retry"), 7u) << pilot.log_json_lines();
  EXPECT_LE(pilot.probing_steps() - first, 7u * 12u);
}

TEST(PilotWatch, ALossScalerThatLooksForItsScaleIsNotACompressorsFault) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run(pilot, 1);
  job.skipped = 2;  // of three
  job.run(pilot, 2);
  job.skipped = 0;
  job.run_to_cruise(pilot);
  EXPECT_EQ(count(pilot, "drop"), 0u) << pilot.log_json_lines();
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
}

TEST(PilotWatch, ComplaintsLongAgoAreForgiven) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  for (int complaint = 0; complaint < 4; ++complaint) {  // each time the learning rate falls, say
    job.gain = 0.01;
    EXPECT_TRUE(job.run_window(pilot));
    EXPECT_NE(pilot.plan().spec, kFastest);
    job.gain = 0.5;
    job.run(pilot, 3 + 11);
    EXPECT_EQ(pilot.plan().spec, kFastest) << complaint << "\n" << pilot.log_json_lines();
  }
}

TEST(PilotWatch, HalfOfEachElementIsNotBlamed) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 1e9;
  job.step_s = {{"none", 1.0}, {"bf16", 0.5}, {"int8", 0.9}, {"int4", 0.9}, {kFastest, 0.9}};
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "bf16") << pilot.log_json_lines();
  EXPECT_FALSE(pilot.wants_norms());
  job.run(pilot, 3);
  job.loss = 1.5;  // 5 deviations: less is sent of nothing
  job.run(pilot, 1);
  EXPECT_EQ(pilot.plan().spec, "bf16") << pilot.log_json_lines();
  job.loss = std::nan("");
  job.run(pilot, 1);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
}

}  // namespace
}  // namespace gradwire::planner
