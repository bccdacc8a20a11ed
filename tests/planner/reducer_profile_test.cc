// Profiles from a Reducer's trace: of records made by hand every time is known; a live one
// predicts.

#include "gradwire/planner/reducer_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/predict.h"
#include "tests/comm/reducer_case.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

Plan two_buckets() {
  const std::vector<ParamInfo> parameters = {{"a", {30}}, {"b", {10, 2}}, {"c", {50}}};
  PlanOptions options;
  options.spec = parse_spec("none");
  options.buckets = {{2, 1}, {0}};
  return make_plan(parameters, options);
}

// A step that begins at `start`, with the transport taking `transfer` of each exchange.
StepTrace step_at(int64_t start, int64_t transfer) {
  StepTrace step;
  step.step = 1;
  step.first_ready_us = start;
  step.wait_begin_us = start + 9'000;
  step.wait_end_us = start + 30'000;
  step.committed = true;
  BucketTrace first;
  first.bucket = 0;
  first.ready_us = start + 4'000;
  first.begin_us = start + 4'100;
  first.compressed_us = start + 4'600;
  first.exchange_us = start + 4'700;
  first.end_us = start + 8'700;
  first.transfer_us = transfer;
  BucketTrace second = first;
  second.bucket = 1;
  second.ready_us = start + 8'000;
  second.begin_us = start + 8'000;
  second.compressed_us = start + 8'200;
  second.exchange_us = start + 9'000;
  second.end_us = start + 20'000;
  second.transfer_us = 2 * transfer;
  step.buckets = {second, first};  // in the order in which they ended, whichever that is
  return step;
}

constexpr double kClose = 1e-12;

TEST(ReducerProfile, HasEveryTimeOfRecordsMadeByHand) {
  // Medians: of transfers 1 ms, 2 ms, 3 ms the second.
  const std::vector<StepTrace> steps = {step_at(1'000, 1'000), step_at(50'000, 3'000),
                                        step_at(90'000, 2'000)};
  const TrainerTimes times = {
      .model = "made up",
      .batch = 8,
      .ranks = 3,
      .io_s = 0.5,
      .forward_s = 0.25,
      .backward_s = 0.011,  // 2 ms more than from the first gradient to wait()
      .update_s = 0.1,
      .measured_step_s = 2.0};
  const Profile profile = reducer_profile(two_buckets(), steps, times);
  EXPECT_EQ(profile.model, "made up");
  EXPECT_EQ(profile.batch, 8u);
  EXPECT_EQ(profile.ranks, 3u);
  EXPECT_EQ(profile.io_s, 0.5);
  EXPECT_EQ(profile.other_s, 0.25);
  EXPECT_EQ(profile.measured_step_s, 2.0);
  ASSERT_EQ(profile.layers.size(), 3u);
  const LayerProfile &a = profile.layers[0], &b = profile.layers[1], &c = profile.layers[2];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.numel, 20u);
  EXPECT_NEAR(*a.ready_s, 0.002 + 0.008, kClose);
  EXPECT_NEAR(*b.ready_s, 0.002 + 0.004, kClose);
  EXPECT_NEAR(*c.ready_s, 0.002 + 0.004, kClose);
  // c comes first of the two that are ready together, b carries what the bucket took.
  EXPECT_NEAR(c.backward_s, 0.006, kClose);
  EXPECT_NEAR(b.backward_s, 0.0, kClose);
  EXPECT_NEAR(a.backward_s, 0.004, kClose);
  EXPECT_FALSE(c.exchange_s.has_value());
  EXPECT_NEAR(*b.compress_s, 0.0005, kClose);
  EXPECT_NEAR(*b.exchange_s, 0.002, kClose);
  EXPECT_NEAR(*b.decompress_s, 0.002, kClose);  // 4 ms less the transport's 2
  EXPECT_NEAR(*a.compress_s, 0.0002, kClose);
  EXPECT_NEAR(*a.exchange_s, 0.004, kClose);
  EXPECT_NEAR(*a.decompress_s, 0.007, kClose);
  EXPECT_NEAR(*a.update_s, 0.03, kClose);
  EXPECT_NEAR(*b.update_s, 0.02, kClose);
  EXPECT_EQ(buckets_as_measured(profile), (Buckets{{2, 1}, {0}}));
}

TEST(ReducerProfile, TakesReadyTimesByParameterWhereTheyAreKnown) {
  const std::vector<StepTrace> steps = {step_at(0, 1'000), step_at(50'000, 2'000)};
  const std::vector<GradientTiming> timings = {{2, 0.001, 200}, {1, 0.0, 80}, {0, 0.007, 120}};
  const Profile profile = reducer_profile(two_buckets(), steps, {}, timings);
  EXPECT_NEAR(*profile.layers[0].ready_s, 0.007, kClose);
  EXPECT_NEAR(*profile.layers[1].ready_s, 0.0, kClose);
  EXPECT_NEAR(*profile.layers[2].ready_s, 0.001, kClose);
  EXPECT_FALSE(profile.layers[1].exchange_s.has_value());
  // Now the last of its bucket; of two steps the mean of both is the median.
  EXPECT_NEAR(*profile.layers[2].exchange_s, 0.0015, kClose);
}

TEST(ReducerProfile, RefusesWhatCannotBe) {
  const Plan plan = two_buckets();
  const auto refused = [&](StepTrace step, std::vector<GradientTiming> timings = {}) {
    return message_of(
        [&] { (void)reducer_profile(plan, std::vector<StepTrace>{std::move(step)}, {}, timings); });
  };
  EXPECT_EQ(message_of([&] { (void)reducer_profile(plan, {}, {}); }),
            "trace: 0 steps, expected at least one");
  StepTrace step = step_at(0, 1'000);
  step.buckets.pop_back();
  EXPECT_EQ(refused(step), "trace: step 1 has no bucket 0, expected all of the plan's 2");
  step = step_at(0, 1'000);
  step.buckets[0].bucket = 2;
  EXPECT_EQ(refused(step), "trace: step 1 has bucket 2, must be below the plan's 2 buckets");
  step.buckets[0].bucket = 0;
  EXPECT_EQ(refused(step), "trace: step 1 has bucket 0 twice, expected once");
  step = step_at(0, 1'000);
  step.buckets[1].end_us = 0;
  EXPECT_NE(refused(step).find("bucket 0: its times run backwards"), std::string::npos);
  step = step_at(0, 1'000);
  step.wait_begin_us = -1;
  EXPECT_NE(refused(step).find("wait() began before the first gradient"), std::string::npos);
  EXPECT_NE(refused(step_at(0, 1'000), {{0, 0.5, 120}}).find("parameter 'b' is ready at -1 s"),
            std::string::npos);
  EXPECT_NE(refused(step_at(0, 1'000), {{7, 0.5, 120}}).find("parameter 7, must be below"),
            std::string::npos);
}

TEST(ReducerProfile, OfALiveReducerIsOneThatThePlannerPredictsWith) {
  const Plan plan = test::plan_of("int8");
  std::vector<Profile> made(2);
  const auto ends = test::run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan, transport);
    for (int step = 0; step < 5; ++step) {
      test::hand_over(reducer, test::gradients(transport.rank(), step));
      reducer.wait();
    }
    const TrainerTimes times = {.model = "live", .batch = 4, .ranks = 2, .forward_s = 0.001};
    made[static_cast<size_t>(transport.rank())] =
        reducer_profile(reducer.plan(), reducer.trace().steps(), times, reducer.gradient_timings());
  });
  for (const auto& end : ends) {
    ASSERT_EQ(end.message, "");
  }
  for (const Profile& profile : made) {
    ASSERT_EQ(profile.layers.size(), plan.parameters.size());
    EXPECT_EQ(profile.numel(), 18'956u);
    EXPECT_EQ(std::ranges::count_if(profile.layers,
                                    [](const auto& layer) { return layer.exchange_s.has_value(); }),
              std::ssize(plan.buckets));
    EXPECT_EQ(to_json(parse_profile(to_json(profile))), to_json(profile));
    Cluster cluster;
    cluster.workers = 2;
    StepOptions options;
    options.exchange = StepOptions::Exchange::kMeasured;
    const Prediction step = predict(profile, cluster, options);
    EXPECT_EQ(step.exchanges, plan.buckets.size());
    EXPECT_GE(step.step_s, profile.forward_s() + profile.backward_s());
  }
}

}  // namespace
}  // namespace gradwire::planner
