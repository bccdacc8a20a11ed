// How many messages a pilot makes of a step: by prediction, then by what streams and buckets take.

#include <gtest/gtest.h>

#include <algorithm>

#include "gradwire/planner/internal/bandit.h"
#include "gradwire/planner/pilot.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;
using test::pilot_model;
using test::slow_link;
using Job = test::PilotJob;

size_t buckets_of(const Pilot& pilot) { return pilot.plan().plan.buckets.size(); }

TEST(PilotTune, SeveralBucketsMustBeWorthTheirMessages) {
  // 4.8 MB, of which 7.2 MB pass. At 18 MB/s they take 0.4 s behind 0.4 s of backward; the head's
  // 1.2 MB may leave after 0.1 s and the body's 2 MB after 0.3, which leaves 0.6 s in all. At 1.8
  // MB/s no more than 0.3 s of 4.4 can be gained, which counts where nothing else is tried.
  struct Case {
    double bytes_per_s;
    size_t tuning_turns;
    bool many;
  };
  for (const auto& [bytes_per_s, turns, many] :
       {Case{18e6, 6, true}, {1.8e6, 6, false}, {1.8e6, 0, true}}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.specs = {"int8"}, .tuning_turns = turns}));
    Job job{.step_s = {{"none", 0.4 + 7.2e6 / bytes_per_s}, {"bf16", 0.6}, {"int8", 0.5}},
            .bytes_per_s = bytes_per_s,
            .ready_s = {0.4, 0.3, 0.2, 0.1}};
    job.run(pilot, 1);
    ASSERT_EQ(pilot.log().back().what, "predict") << pilot.log_json_lines();
    const auto& numbers = pilot.log().back().numbers;
    EXPECT_EQ(numbers.count("predicted_s of none, 1 bucket"), many ? 0u : 1u)
        << pilot.log_json_lines();
  }
}

TEST(PilotTune, OneBucketLosesHardlyMoreThanSeveral) {
  // Coding takes as long as the link, so int4 pays for a part of the gradient only, and little: all
  // of it as int4 takes hardly longer, but loses three times as much.
  Pilot pilot(pilot_model(), 4, at_any_age());
  Job job = slow_link();
  job.bytes_per_s = job.codec_bytes_per_s = 50e6;
  job.run(pilot, 1);
  const auto& numbers = pilot.log().back().numbers;
  EXPECT_EQ(numbers.count("predicted_s of int4, 1 bucket"), 0u) << pilot.log_json_lines();
  EXPECT_TRUE(std::ranges::any_of(numbers, [](const auto& each) {
    return each.first.starts_with("predicted_s of int4 for 33% of the gradient, none for 67%");
  })) << pilot.log_json_lines();
}

TEST(PilotTune, TriesAllInOneBucketAlsoOfSingleParameters) {
  Pilot pilot({{"embedding", {1000, 400}}, {"head", {500, 1000}}}, 4,
              at_any_age({.specs = {"int8"}, .streams = {1}}));
  // The head's gradients are there after 0.1 s of 0.4; all as int8 take 0.22 s.
  Job job{.step_s = {{"none", 1.3}, {"bf16", 0.9}, {"int8", 0.62}},
          .bytes_per_s = 6e6,
          .message_s = 0.1,
          .ready_s = {0.4, 0.1}};
  job.run(pilot, 2);
  ASSERT_EQ(buckets_of(pilot), 2u) << pilot.log_json_lines();
  job.run_to_cruise(pilot);
  EXPECT_EQ(buckets_of(pilot), 1u) << pilot.log_json_lines();
}

TEST(PilotTune, WhatIsFarBehindHasOneTurnAndWhatGoesFurtherNone) {
  for (const double message_s : {0.1, 0.001}) {
    Pilot pilot(pilot_model(), 4, at_any_age({.streams = {1, 2, 4}}));
    Job job = slow_link();
    job.message_s = message_s;
    int turns = 0;
    size_t most = 0;
    while (pilot.phase() != Phase::kCruise) {
      if (pilot.phase() == Phase::kTune) {
        ++turns;
        most = std::max(most, buckets_of(pilot));
      }
      job.run_window(pilot);
      ASSERT_LT(pilot.steps(), 200u) << pilot.log_json_lines();
    }
    EXPECT_EQ(buckets_of(pilot), 1u) << pilot.log_json_lines();
    // One as it was, one with two streams, none with more, one with more buckets.
    EXPECT_EQ(turns, message_s == 0.1 ? 3 : 6) << pilot.log_json_lines();
    EXPECT_GE(most, 2u);
  }
}

TEST(PilotTune, MoreStreamsThanWereTooManyHaveNoTurn) {
  Pilot pilot(pilot_model(), 4, at_any_age({.specs = {"int8"}, .streams = {1, 2, 3}}));
  Job job{.step_s = {{"none", 1.4}, {"bf16", 1.0}, {"int8", 0.5}},
          .bytes_per_s = 6e6,
          .streams_s = -0.3,
          .ready_s = {0.4, 0.3, 0.2, 0.1}};
  int most = 1;
  while (pilot.phase() != Phase::kCruise) {
    most = std::max(most, pilot.plan().streams);
    job.run_window(pilot);
    ASSERT_LT(pilot.steps(), 200u) << pilot.log_json_lines();
  }
  EXPECT_GE(buckets_of(pilot), 3u) << pilot.log_json_lines();
  EXPECT_EQ(most, 2) << pilot.log_json_lines();
}

TEST(PilotTune, WhereMoreBucketsWereBetterTheSearchHasTheLastWord) {
  Pilot pilot(pilot_model(), 4, at_any_age({.specs = {"int8"}, .streams = {1, 2}}));
  Job job{.step_s = {{"none", 18.4}, {"bf16", 9.4}, {"int8", 4.9}},
          .bytes_per_s = 0.4e6,
          .streams_s = 1.5,
          .ready_s = {0.4, 0.3, 0.2, 0.1}};
  job.run(pilot, 1);
  ASSERT_EQ(pilot.log().back().numbers.count("predicted_s of int8, 1 bucket"), 1u);
  job.run_to_cruise(pilot);
  ASSERT_GT(buckets_of(pilot), 1u) << pilot.log_json_lines();
  job.run(pilot, 2);
  job.slow_the_link(4);
  job.run(pilot, 1);
  ASSERT_EQ(pilot.log().back().what, "predict") << pilot.log_json_lines();
  EXPECT_EQ(pilot.log().back().numbers.count("predicted_s of none, 1 bucket"), 0u)
      << pilot.log_json_lines();
}

TEST(PilotTune, IsNotComparedWithAMinuteAgo) {
  // The machine was busy in the trials; what costs more than the plan as it is costs less than that.
  Pilot pilot(pilot_model(), 4, at_any_age({.streams = {1, 2}}));
  Job job = slow_link();
  job.message_s = 0.01;
  job.more_s = 0.05;
  while (pilot.phase() != Phase::kTune) {
    job.run_window(pilot);
    ASSERT_LT(pilot.steps(), 200u) << pilot.log_json_lines();
  }
  job.more_s = 0;
  job.run_to_cruise(pilot);
  EXPECT_EQ(buckets_of(pilot), 1u) << pilot.log_json_lines();
}

TEST(PilotTune, TheFastestStaysWhateverIsDropped) {
  // Two streams are faster by a quarter of the step: what falls behind is the plan as it was.
  Pilot pilot(pilot_model(), 4, at_any_age({.streams = {1, 2}}));
  Job job = slow_link();
  job.streams_s = 0.04;
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().streams, 2) << pilot.log_json_lines();
}

TEST(Bandit, WhatIsDroppedHasNoTurnAndIsNotTheBest) {
  Bandit bandit(3);
  bandit.add(0, 1.0);
  EXPECT_EQ(bandit.next(), 1u);
  bandit.drop(1);
  EXPECT_EQ(bandit.next(), 2u);
  bandit.add(2, 2.0);
  EXPECT_EQ(bandit.best(), 0u);
  bandit.drop(0);
  EXPECT_EQ(bandit.best(), 2u);
  EXPECT_EQ(bandit.left(), 1u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(bandit.next(), 2u);
    bandit.add(2, 3.0);
  }
}

}  // namespace
}  // namespace gradwire::planner
