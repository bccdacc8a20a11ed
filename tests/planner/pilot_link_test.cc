// What a pilot sees of a link that changes, and what it does not take for one.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

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

TEST(PilotLink, StepsTellOfTheLinkWhereExchangesAreNotTimed) {
  Pilot pilot(pilot_model(), 4, at_any_age({.device = DeviceType::kCuda, .tuning_turns = 0}));
  Job job = test::link_of(30e6);
  job.knows_exchange = false;
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "choose"), 1u);
  job.run(pilot, 3);
  EXPECT_EQ(job.costs_given, 1);
  job.step_s = {{"none", 4.0}, {"bf16", 3.0}, {"int8", 2.0}, {"int4", 0.4}, {kFastest, 0.9}};
  job.run(pilot, 1);
  EXPECT_EQ(job.costs_given, 2) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "link"), 1u);
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
}

TEST(PilotLink, SeesTheLinkWhateverTheLossIs) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.step_s["none"] = 0.1029;
  job.run(pilot, 6);
  ASSERT_TRUE(pilot.plan().off());
  job.loss = 5;  // without compression: other data, say
  job.run(pilot, 2);
  job.step_s = slow_link().step_s;
  job.run(pilot, 1);
  EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
}

TEST(PilotLink, SeesALinkThatChangedSinceThePlanWasTimed) {
  for (const double dense_s : {1.0, 0.1029}) {  // compressed, and off without any trial
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    Job job = slow_link();
    job.step_s["none"] = dense_s;
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().off(), dense_s < 1);
    job.step_s["none"] = 1;
    job.slow_the_link(6);
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().spec, kFastest) << pilot.log_json_lines();
  }
}

TEST(PilotLink, SeesALinkThatChangedWhileStreamsWereTuned) {
  // The first window of cruising and all that follow are alike: what was timed before is not. Nor
  // may it be what more streams, which are better here, had all their turns on.
  for (const auto& [knows_exchange, turns, times, streams_s] :
       {std::tuple{true, 1, 10, 0.0}, {false, 1, 10, 0.0}, {true, 0, 40, 4.0},
        {false, 0, 40, 4.0}}) {
    Pilot pilot(pilot_model(), 4, at_any_age());
    Job job = slow_link();
    job.knows_exchange = knows_exchange;
    for (int i = 0; pilot.phase() != Phase::kTune; ++i) {
      ASSERT_LT(i, 100) << to_string(pilot.phase());
      job.run_window(pilot);
    }
    job.run(pilot, turns);  // of it on the link as it was
    ASSERT_EQ(pilot.phase(), Phase::kTune);
    job.streams_s = streams_s;
    job.slow_down(times);
    job.run_to_cruise(pilot);
    ASSERT_EQ(count(pilot, "tune"), 1u);
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
    EXPECT_EQ(count(pilot, "retry"), 0u) << pilot.log_json_lines();
    EXPECT_EQ(job.costs_given, 2);
  }
}

TEST(PilotLink, SeesALinkThatChangedWhileCandidatesWereTimed) {
  // Of each one's turns the last are of the new link: the plan is not off for being slower than
  // "none" was on the old one.
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.step_s = {{"none", 0.32}, {"bf16", 0.3}, {"int8", 0.28}, {"int4", 0.25}, {kFastest, 0.245}};
  job.bytes_per_s = 1e8;
  std::map<std::string, int> turns;
  while (pilot.phase() != Phase::kCruise) {
    if (pilot.phase() == Phase::kTime && ++turns[pilot.plan().spec] == 2 && job.step_s["none"] < 1) {
      job.slow_down(8);
    }
    job.run_window(pilot);
    ASSERT_LT(pilot.steps(), 200u) << pilot.log_json_lines();
  }
  ASSERT_FALSE(pilot.plan().off()) << pilot.log_json_lines();
  job.run(pilot, 1);
  EXPECT_EQ(count(pilot, "off"), 0u) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
  EXPECT_EQ(job.costs_given, 2);
}

TEST(PilotLink, ShortExchangesVary) {
  // 0.01 s of a step of 0.11, and two and a half times that: a change of an eighth of the step,
  // which counts in two windows in a row. What became shorter by so little does not in ten.
  struct Case {
    double step_s, times;
    int windows;
    size_t changes;
  };
  for (const auto& [step_s, times, windows, changes] :
       {Case{0.11, 2.5, 1, 0}, {0.11, 2.5, 2, 1}, {0.12, 0.3, 10, 0}}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
    Job job = slow_link();
    job.step_s[kFastest] = step_s;
    job.run_to_cruise(pilot);
    job.run(pilot, 2);
    job.slow_the_link(times);
    job.run(pilot, windows);
    job.slow_the_link(1 / times);
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "link"), changes) << pilot.log_json_lines();
  }
}

TEST(PilotLink, WhatMayBeAnotherLinkDecidesNothingElse) {
  // The first window on the slower link is no slower than steps without compression were on the old
  // one; or a quiet one, behind which the plan could be loosened.
  for (const double dense_s : {0.14, 1.0}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.least_gain = 0, .tuning_turns = 0}));
    Job job = slow_link();
    job.step_s = {{"none", dense_s}, {"bf16", 0.135}, {"int8", 0.13}, {"int4", 0.12}};
    job.bytes_per_s = 1e9;  // nothing is predicted to be hopeless
    job.run_to_cruise(pilot);
    ASSERT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
    job.run(pilot, 2);
    job.slow_the_link(3.5);
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "off") + count(pilot, "retry") + count(pilot, "link"), 0u)
        << pilot.log_json_lines();
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
    EXPECT_EQ(job.costs_given, 2);
  }
}

TEST(PilotLink, AKnownOtherLinkIsNotComparedWithTheOldOne) {
  // It may be measured anew no more often for now; steps are slower than dense ones were before.
  Pilot pilot(pilot_model(), 4, at_any_age({.least_gain = 0, .hopeless = 10, .tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 100e6;  // all are timed, in all rounds
  job.run_to_cruise(pilot);
  for (const double times : {3.0, 1 / 3.0}) {
    job.run(pilot, 2);
    job.slow_the_link(times);
    job.run(pilot, 1);
    job.run_to_cruise(pilot);
  }
  ASSERT_EQ(job.costs_given, 3) << pilot.log_json_lines();
  job.run(pilot, 2);
  job.slow_the_link(40);
  for (int i = 0; i < 200 && job.costs_given == 3; ++i) {
    job.run(pilot, 1);
    EXPECT_EQ(count(pilot, "off") + count(pilot, "retry"), 0u) << pilot.log_json_lines();
  }
  EXPECT_EQ(job.costs_given, 4) << pilot.log_json_lines();
  EXPECT_GT(pilot.steps(), 300u);
}

TEST(PilotLink, WhatDidHarmIsNotTriedBehindAChangeOfTheLink) {
  Pilot pilot(pilot_model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, kFastest);
  job.run(pilot, 2);
  job.loss = 5;
  job.run_window(pilot);
  ASSERT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.loss = 1;
  job.run(pilot, 1);
  job.ran.clear();
  job.slow_the_link(3);
  job.run(pilot, 60);
  EXPECT_EQ(count(pilot, "link"), 1u) << pilot.log_json_lines();
  EXPECT_EQ(std::ranges::count(job.ran, kFastest), 0) << pilot.log_json_lines();
  EXPECT_FALSE(pilot.plan().off()) << pilot.log_json_lines();
}

TEST(PilotLink, WhatTheGuardSaidThenIsNotForgotten) {
  // An older job loosens to what was faster, also where that falls due in a window that differs.
  const auto windows_to_loosen = [](int differs) {
    Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
    Job job = slow_link();
    job.step_s = {{"none", 1.0}, {"bf16", 0.5}, {"int8", 0.16}, {"int4", 0.14}, {kFastest, 0.102}};
    int windows = 0;
    for (; count(pilot, "loosen") == 0 && windows < 200; ++windows) {
      job.slow_the_link(windows == differs ? 2.5 : 1);
      job.run_window(pilot);
      job.slow_the_link(windows == differs ? 1 / 2.5 : 1);
    }
    EXPECT_EQ(count(pilot, "loosen"), 1u) << pilot.log_json_lines();
    EXPECT_EQ(count(pilot, "link"), 0u) << pilot.log_json_lines();
    return windows;
  };
  const int undisturbed = windows_to_loosen(-1);
  EXPECT_EQ(windows_to_loosen(undisturbed - 1), undisturbed + 1);
}

}  // namespace
}  // namespace gradwire::planner
