// The timeline event, beside text worked out by hand.

#include "bench/trainer/step_timeline.h"

#include <gtest/gtest.h>

#include "bench/trainer/step_metrics.h"

namespace {

using std::chrono::microseconds;
using trainer::StepMoments;

StepMoments moments() {
  const StepMoments::Time zero{microseconds(5'000'000)};
  return {.begin = zero,
          .forward = zero + microseconds(300),
          .backward = zero + microseconds(1000),
          .prepared = zero + microseconds(1000),
          .exchanged = zero + microseconds(1600),
          .updated = zero + microseconds(1650),
          .end = zero + microseconds(1650),
          .waited = zero + microseconds(1600)};
}

TEST(Timeline, LaysTheReducersClockOnTheCallers) {
  // wait() ended at 9600 of the reducer's clock, 1600 after the step began: 8000 to take away.
  gradwire::StepTrace trace{.wait_begin_us = 9000, .wait_end_us = 9600};
  trace.buckets = {{.bucket = 0,
                    .begin_us = 8500,
                    .compressed_us = 8550,
                    .exchange_us = 8560,
                    .end_us = 9100,
                    .codec_us = 90},
                   {.bucket = 1,
                    .begin_us = 8990,
                    .compressed_us = 9000,
                    .exchange_us = 9100,
                    .end_us = 9590,
                    .codec_us = 40,
                    .stream = 1}};
  EXPECT_EQ(trainer::timeline(7, moments(), &trace).text(),
            R"({"event": "timeline", "step": 7, "caller_us": [["forward", 0, 300], )"
            R"(["backward", 300, 1000], ["wait", 1000, 1600], ["update", 1600, 1650]], )"
            R"("buckets_us": [[500, 550, 560, 1100, 90, 0], [990, 1000, 1100, 1590, 40, 1]]})");
}

TEST(Timeline, WithLocalStepsWaitEndsTheStep) {
  StepMoments at = moments();
  at.exchanged = at.prepared;
  at.end = at.waited = at.updated + microseconds(400);
  gradwire::StepTrace trace{.wait_begin_us = 100, .wait_end_us = 500};
  trace.buckets = {
      {.begin_us = 110, .compressed_us = 120, .exchange_us = 120, .end_us = 490, .codec_us = 10}};
  EXPECT_EQ(trainer::timeline(20, at, &trace).text(),
            R"({"event": "timeline", "step": 20, "caller_us": [["forward", 0, 300], )"
            R"(["backward", 300, 1000], ["update", 1000, 1650], ["outer step", 1650, 2050]], )"
            R"("buckets_us": [[1660, 1670, 1670, 2040, 10, 0]]})");
}

TEST(Timeline, LeavesOutWhatIsALookAtTheClock) {
  StepMoments at = moments();
  at.prepared += microseconds(1);
  at.end = at.updated + microseconds(1);
  const std::string text = trainer::timeline(1, at, nullptr).text();
  EXPECT_EQ(text.find("prepare"), std::string::npos) << text;
  EXPECT_EQ(text.find("outer step"), std::string::npos) << text;
}

TEST(Timeline, WithoutAnExchangeHasNoBuckets) {
  EXPECT_TRUE(trainer::timeline(1, moments(), nullptr).text().ends_with("\"buckets_us\": []}"));
}

TEST(StepMetrics, TakeTheirTimesFromTheMoments) {
  StepMoments at = moments();
  at.prepared += microseconds(50);
  at.end += microseconds(200);
  trainer::StepMetrics found;
  found.add_times(at);
  EXPECT_DOUBLE_EQ(found.step_ms, 1.85);
  EXPECT_DOUBLE_EQ(found.backward_ms, 0.7);
  EXPECT_DOUBLE_EQ(found.compute_ms, 1.1);  // 300 + 700 + 50 before the wait, 50 behind it
  EXPECT_DOUBLE_EQ(found.exposed_exchange_ms, 0.75);  // 550 in the wait, 200 in the outer step
}

}  // namespace
