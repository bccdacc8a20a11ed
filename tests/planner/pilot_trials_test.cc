// What a pilot tries on steps of the job: nothing where nothing can be gained, and nothing that may
// lose, unless it is the choice by far.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/pilot.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;
using test::count;
using test::pilot_model;
using test::slow_link;
using Job = test::PilotJob;

constexpr const char* kSparse = "topk:1%,int4";

/// Of the specs that ran, how many windows each.
std::map<std::string, int> windows_of(const Job& job) {
  std::map<std::string, int> windows;
  for (const std::string& spec : job.ran) {
    ++windows[spec];
  }
  return windows;
}

/// Two workers of one machine train a transformer of 6.5 million parameters by AdamW: of 0.4 s the
/// exchange takes 0.07, half of which backward hides; compressors take the cores that compute. The
/// times are those of such a job, the model is smaller: its link is as much slower.
Job transformer() {
  return {
      .step_s = {{"none", 0.40}, {"bf16", 0.41}, {"int8", 0.44}, {"int4", 0.46}, {kSparse, 0.50}},
      .bytes_per_s = 70e6,
      .compute_s = 0.33,
      .hidden_s = 0.035};
}

TEST(PilotTrials, NothingIsTriedWhereTheExchangeHoldsUpLessThanATenthOfAStep) {
  Pilot pilot(pilot_model(), 2);
  Job job = transformer();
  while (pilot.steps() < 100) {
    job.run_window(pilot);
  }
  EXPECT_EQ(windows_of(job), (std::map<std::string, int>{{"none", 6}})) << pilot.log_json_lines();
  EXPECT_EQ(job.costs_given, 0);
  // One line says so, with the numbers.
  ASSERT_EQ(pilot.log().size(), 1u) << pilot.log_json_lines();
  const Decision& decision = pilot.log().front();
  EXPECT_EQ(decision.what, "choose");
  EXPECT_EQ(decision.step, 5u);
  EXPECT_EQ(decision.to, "none");
  EXPECT_NEAR(decision.numbers.at("step_s"), 0.40, 1e-9);
  EXPECT_NEAR(decision.numbers.at("exposed_s"), 0.035, 1e-9);
  EXPECT_EQ(decision.numbers.at("least_gain"), 0.1);
}

TEST(PilotTrials, ATenthOfAStepIsEnoughToTryWhatLosesNothing) {
  for (const auto& [hidden_s, tries] : {std::pair{0.0299, true}, {0.0301, false}}) {
    Pilot pilot(pilot_model(), 2);
    Job job = transformer();
    job.hidden_s = hidden_s;
    while (pilot.steps() < 100) {
      job.run_window(pilot);
    }
    EXPECT_EQ(job.costs_given, tries ? 1 : 0) << pilot.log_json_lines();
    const auto windows = windows_of(job);
    EXPECT_EQ(windows.contains("bf16"), tries) << pilot.log_json_lines();
    // By the link 4 bits save at most the 0.04 s that steps wait, and less than that.
    EXPECT_EQ(windows.size(), tries ? 2u : 1u) << pilot.log_json_lines();
    EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  }
}

TEST(PilotTrials, WhereExchangesAreNotTimedPredictionsSaySo) {
  Pilot pilot(pilot_model(), 2, {.device = DeviceType::kCuda});
  Job job = transformer();
  job.bytes_per_s = 200e6;  // 0.024 s of 0.4
  job.knows_exchange = false;
  while (pilot.steps() < 100) {
    job.run_window(pilot);
  }
  EXPECT_EQ(windows_of(job), (std::map<std::string, int>{{"none", 6}})) << pilot.log_json_lines();
  ASSERT_EQ(pilot.log().size(), 1u) << pilot.log_json_lines();
  EXPECT_EQ(pilot.log().front().reason,
            "no plan that loses nothing is predicted to save 10% of a step: off");
}

TEST(PilotTrials, AYoungJobOfAnAdaptiveOptimizerNeverTriesWhatMakesGradientsWait) {
  // At 0.2 MB/s 4 bits take 4.6 s a step, top-k 0.4.
  for (const auto& [updates, age, tries] : {std::tuple{Updates::kScaled, uint64_t{0}, false},
                                            {Updates::kLinear, 0, true},
                                            {Updates::kScaled, 99, true}}) {
    for (const bool begins : {false, true}) {
      Pilot pilot(pilot_model(), 4, {.updates = updates, .age = age, .tuning_turns = 0});
      Job job{
          .step_s = {{"none", 36.1}, {"bf16", 18.1}, {"int8", 9.2}, {"int4", 4.7}, {kSparse, 0.4}},
          .bytes_per_s = 0.2e6};
      if (begins) {
        pilot.begin(job.costs(pilot));
      }
      while (pilot.steps() < 95) {
        job.run_window(pilot);
      }
      EXPECT_EQ(windows_of(job).contains(kSparse), tries) << pilot.log_json_lines();
      EXPECT_EQ(pilot.plan().spec, tries ? kSparse : "int4") << pilot.log_json_lines();
    }
  }
}

TEST(PilotTrials, WhatMayLoseIsTriedOnlyWhereItIsPredictedToBeFarAhead) {
  // Steps of 0.1 s beside exchanges; 4 bits take 0.009 or 0.09 s of the link, top-k a tenth of
  // that.
  for (const auto& [bytes_per_s, dense_s, tries] :
       {std::tuple{100e6, 0.172, false}, {10e6, 0.82, true}}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    const double sparse_s = 0.0001;  // whatever it would take
    Job job{.step_s = {{"none", dense_s},
                       {"bf16", dense_s - 0.01},
                       {"int8", dense_s - 0.02},
                       {"int4", dense_s - 0.03},
                       {kSparse, 0.1 + sparse_s}},
            .bytes_per_s = bytes_per_s};
    job.run_to_cruise(pilot);
    EXPECT_EQ(windows_of(job).contains(kSparse), tries) << pilot.log_json_lines();
    EXPECT_EQ(pilot.plan().spec, tries ? kSparse : "int4") << pilot.log_json_lines();
  }
}

TEST(PilotTrials, OfSeveralThatMayLoseTheFirstByPredictionIsTried) {
  Pilot pilot(pilot_model(), 4,
              at_any_age({.specs = {"int4", "topk:1%,int4", "topk:2%,int4", "powersgd:4"},
                          .tuning_turns = 0}));
  Job job = slow_link();
  job.step_s["topk:2%,int4"] = job.step_s["powersgd:4"] = 0.11;
  job.run_to_cruise(pilot);
  const auto windows = windows_of(job);
  EXPECT_TRUE(windows.contains(kSparse)) << pilot.log_json_lines();
  EXPECT_FALSE(windows.contains("topk:2%,int4") || windows.contains("powersgd:4"))
      << pilot.log_json_lines();
}

TEST(PilotTrials, ItLooksAgainWhenTheExchangeHoldsUpMoreOfAStep) {
  Pilot pilot(pilot_model(), 2, at_any_age({.tuning_turns = 0}));
  Job job = transformer();
  job.run(pilot, 3);
  ASSERT_EQ(pilot.log().size(), 1u) << pilot.log_json_lines();
  const auto compute_less = [&](double times) {  // shorter batches: the exchange takes what it did
    for (auto& [spec, seconds] : job.step_s) {
      seconds -= (1 - times) * job.compute_s;
    }
    job.compute_s *= times;
  };
  compute_less(0.4);  // 0.035 s of 0.2
  job.run(pilot, 3);
  EXPECT_EQ(job.costs_given, 0) << pilot.log_json_lines();  // 100 steps behind the choice
  job.run(pilot, 1);                                        // the second window that says so
  ASSERT_EQ(job.costs_given, 1) << pilot.log_json_lines();
  const Decision& retry = pilot.log()[1];
  EXPECT_EQ(retry.what, "retry");
  EXPECT_NEAR(retry.numbers.at("exposed_s"), 0.035, 1e-9);
  EXPECT_EQ(count(pilot, "predict"), 1u) << pilot.log_json_lines();
}

TEST(PilotTrials, AWindowInWhichTheExchangeHoldsUpMoreMayBeChance) {
  Pilot pilot(pilot_model(), 2, at_any_age({.tuning_turns = 0}));
  Job job = transformer();
  job.run(pilot, 6);
  for (int window = 0; window < 20; ++window) {
    job.hidden_s = window % 2 == 0 ? 0.0 : 0.035;
    job.run(pilot, 1);
  }
  EXPECT_EQ(job.costs_given, 0) << pilot.log_json_lines();
}

TEST(PilotTrials, AnotherLinkOnWhichNothingCanBeGainedIsNotMeasured) {
  Pilot pilot(pilot_model(), 2, at_any_age({.tuning_turns = 0}));
  Job job = transformer();
  job.hidden_s = 0.2;
  job.run(pilot, 3);
  for (auto& [spec, seconds] : job.step_s) {  // three times as long, and hidden as before
    seconds += 2 * (seconds - job.compute_s);
  }
  job.run(pilot, 5);
  EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
  EXPECT_NE(pilot.log().back().reason.find("too small a part of the step"), std::string::npos);
  EXPECT_EQ(job.costs_given, 0);
  EXPECT_EQ(windows_of(job).size(), 1u);
}

TEST(PilotTrials, WhatWasAboutAsFastIsNotTimedAgainWhereNothingCanBeGained) {
  for (const double hidden_s : {0.0, 0.2}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    Job job{.step_s = {{"none", 0.3}, {"bf16", 0.301}}, .bytes_per_s = 1e9};
    job.run_to_cruise(pilot);
    ASSERT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
    job.hidden_s = hidden_s;
    job.run(pilot, 12);
    EXPECT_EQ(count(pilot, "retry"), hidden_s == 0 ? 1u : 0u) << pilot.log_json_lines();
  }
}

TEST(PilotTrials, WhatIsNotWhatItWasPredictedToBeGoesAgain) {
  // By the link top-k is twice as fast as int4; it was not tried, and takes as long.
  for (const double sparse_s : {0.12, 0.21}) {
    Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
    Job job{
        .step_s = {
            {"none", 0.82}, {"bf16", 0.46}, {"int8", 0.28}, {"int4", 0.2}, {kSparse, sparse_s}}};
    job.run(pilot, 60);
    EXPECT_EQ(count(pilot, "loosen"), 1u) << pilot.log_json_lines();
    const bool stays = sparse_s < 0.2;
    EXPECT_EQ(count(pilot, "tighten"), stays ? 0u : 1u) << pilot.log_json_lines();
    EXPECT_EQ(windows_of(job)[kSparse] > 1, stays) << pilot.log_json_lines();
    EXPECT_EQ(pilot.plan().spec, stays ? kSparse : "int4") << pilot.log_json_lines();
  }
}

TEST(PilotTrials, WhatMayLoseIsSaidByTheTraitsOfACompressor) {
  std::map<std::string, bool> found;
  for (const CompressorRow& row : compressor_registry()) {
    found[std::string(row.name)] = may_lose(std::string(row.example));
  }
  const std::map<std::string, bool> expected = {
      {"none", false},     {"fp16", false},     {"bf16", false},      {"int8", false},
      {"int4", false},     {"e4m3", false},     {"e5m2", false},      {"2bit", true},
      {"1bit", true},      {"ternary", true},   {"natural", true},    {"qsgd", true},
      {"topk", true},      {"chunktopk", true}, {"tensortopk", true}, {"blocktopk", true},
      {"threshold", true}, {"randomk", true},   {"dgc", true},        {"powersgd", true}};
  EXPECT_EQ(found, expected);
  for (const std::string spec : {"int8,noef", "int4,decay=0.9", "int4,ef21", "int8,momentum=0.9"}) {
    EXPECT_TRUE(may_lose(spec)) << spec;
  }
  EXPECT_FALSE(may_lose("int4,stochastic"));
  EXPECT_FALSE(may_lose("natural,ef"));
}

}  // namespace
}  // namespace gradwire::planner
