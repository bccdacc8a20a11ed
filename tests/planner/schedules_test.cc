// The simulated schedules against the closed forms, a naive merge, hand-worked steps, and laws.

#include <gtest/gtest.h>

#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/predict.h"
#include "tests/planner/made_up.h"
#include "tests/reference/step_time.h"

namespace gradwire::planner {
namespace {

constexpr uint64_t kSeeds = 200;
constexpr Schedule kAll[kSchedules] = {Schedule::kNaive,    Schedule::kOverlappedIo,
                                       Schedule::kWfbp,     Schedule::kMgWfbp,
                                       Schedule::kPriority, Schedule::kMultiStream};

double step(const Profile& profile, const Cluster& cluster, Schedule schedule) {
  return predict(profile, cluster, {.schedule = schedule}).step_s;
}

// Two steps are the same: the closed forms add in another order.
void expect_same(double got, double expected, uint64_t seed) {
  EXPECT_NEAR(got, expected, 1e-9 * expected) << "seed " << seed;
}

TEST(Schedules, AreKnownByName) {
  for (const Schedule schedule : kAll) {
    EXPECT_EQ(schedule_named(name_of(schedule)), schedule);
  }
  EXPECT_THROW(schedule_named("fast"), InvalidArgument);
}

TEST(Schedules, NaiveIsTheSumOfItsParts) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster cluster = drawn.cluster();
    expect_same(step(profile, cluster, Schedule::kNaive),
                reference::naive_step(times_of(profile, cluster)), seed);
  }
}

TEST(Schedules, OverlappedInputHidesTheShorterOfInputAndTheRest) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster cluster = drawn.cluster();
    expect_same(step(profile, cluster, Schedule::kOverlappedIo),
                reference::overlapped_io_step(times_of(profile, cluster)), seed);
  }
}

TEST(Schedules, WaitFreeBackpropagationIsItsRecursion) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster cluster = drawn.cluster();
    expect_same(step(profile, cluster, Schedule::kWfbp),
                reference::wfbp_step(times_of(profile, cluster)), seed);
  }
}

// The merge as the authors' program goes about it: all begins are computed anew after each merge.
struct Merged {
  std::vector<double> bytes, exchange;  // by layer in the order of backward; 0: went with the next
};
Merged merged_naively(const Profile& profile, const Cluster& cluster) {
  const reference::StepTimes times = times_of(profile, cluster);
  const size_t n = times.backward.size();
  const double startup = 2 * (static_cast<double>(cluster.workers) - 1) * cluster.inter.alpha_s;
  Merged merged{{}, times.exchange};
  for (size_t l = n; l-- > 0;) {
    merged.bytes.push_back(4.0 * static_cast<double>(profile.layers[l].numel));
  }
  std::vector<double> ready(n);
  std::partial_sum(times.backward.begin(), times.backward.end(), ready.begin());
  const auto begins = [&] {
    std::vector<double> begin(n);
    for (size_t i = 0; i < n; ++i) {
      begin[i] = i == 0 ? ready[0] : std::max(begin[i - 1] + merged.exchange[i - 1], ready[i]);
    }
    return begin;
  };
  for (size_t i = 0; i + 1 < n; ++i) {
    const std::vector<double> begin = begins();
    const double next = ready[i + 1];
    const bool before_it_ends = next < begin[i] + merged.exchange[i];
    const bool pays = begin[i] > next || next - begin[i] < startup;
    if (merged.bytes[i] < 4 * 8192 || (before_it_ends && pays)) {
      merged.bytes[i + 1] += merged.bytes[i];
      merged.bytes[i] = 0;
      merged.exchange[i] = 0;
      merged.exchange[i + 1] =
          reference::ring_seconds(static_cast<double>(cluster.workers), merged.bytes[i + 1],
                                  cluster.inter.alpha_s, cluster.inter.bytes_per_s);
    }
  }
  return merged;
}

TEST(Schedules, MergedGradientsFollowTheAuthorsProcedure) {
  size_t merges = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster cluster = drawn.cluster();
    const Merged merged = merged_naively(profile, cluster);
    std::vector<size_t> expected;
    for (const double bytes : merged.bytes) {
      if (bytes > 0) {
        expected.push_back(static_cast<size_t>(bytes / 4));
      }
    }
    const StepOptions options{.schedule = Schedule::kMgWfbp};
    EXPECT_EQ(numels(profile, buckets_of(profile, cluster, options)), expected) << seed;
    merges += profile.layers.size() - expected.size();
    reference::StepTimes times = times_of(profile, cluster);
    times.exchange = merged.exchange;
    expect_same(step(profile, cluster, Schedule::kMgWfbp), reference::wfbp_step(times), seed);
  }
  EXPECT_GT(merges, kSeeds);  // the rule was at work
}

TEST(Schedules, NoOverlapMakesAStepLonger) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    Cluster cluster = drawn.cluster();
    cluster.inter.stream_bytes_per_s = cluster.inter.bytes_per_s * drawn.between(0.1, 1);
    cluster.streams = static_cast<size_t>(drawn.between(1, 8));
    Cluster one_stream = cluster;
    one_stream.streams = 1;
    const double naive = step(profile, cluster, Schedule::kNaive);
    for (const Schedule schedule : kAll) {
      EXPECT_LE(step(profile, cluster, schedule), naive * (1 + 1e-9))
          << name_of(schedule) << ", seed " << seed;
    }
    EXPECT_LE(step(profile, cluster, Schedule::kMultiStream),
              step(profile, one_stream, Schedule::kMultiStream) * (1 + 1e-9))
        << seed;
    EXPECT_LE(step(profile, cluster, Schedule::kPriority),
              step(profile, cluster, Schedule::kWfbp) * (1 + 1e-9))
        << seed;
  }
}

TEST(Schedules, MoreBandwidthNeverSlows) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    Cluster cluster = drawn.cluster();
    Cluster faster = cluster;
    faster.inter.bytes_per_s *= drawn.between(1, 3);
    for (const Schedule schedule : kAll) {
      if (schedule == Schedule::kPriority) {
        continue;  // nothing is interrupted: a large exchange that begins earlier can hold up
                   // others
      }
      EXPECT_LE(step(profile, faster, schedule), step(profile, cluster, schedule) * (1 + 1e-9))
          << name_of(schedule) << ", seed " << seed;
    }
  }
}

// Two layers, exchanges of 4 s (the first layer's) and 6 s (the second's).
Profile two_layers() {
  Profile profile;
  profile.model = "two";
  profile.layers = {{.name = "first", .numel = 1, .forward_s = 1, .backward_s = 2},
                    {.name = "second", .numel = 1, .forward_s = 3, .backward_s = 1}};
  profile.layers[0].exchange_s = 4;
  profile.layers[1].exchange_s = 6;
  return profile;
}

TEST(Schedules, APriorityLetsTheNextForwardBeginEarly) {
  const StepOptions wfbp{.schedule = Schedule::kWfbp, .exchange = StepOptions::Exchange::kMeasured};
  StepOptions priority = wfbp;
  priority.schedule = Schedule::kPriority;
  // wfbp: forward until 4, second's gradient at 5, exchanged 5 to 11, first's at 7, exchanged 11
  // to 15.
  EXPECT_DOUBLE_EQ(predict(two_layers(), {}, wfbp).step_s, 15);
  // Second's exchange has begun and is not interrupted: the same 15 s, one after another.
  EXPECT_DOUBLE_EQ(predict(two_layers(), {}, priority).step_s, 15);
  // Three layers: the first one's exchange passes the second one's, which waits for the third's.
  // From backward's beginning: gradients at 1, 2 and 3 s; the third's exchange from 1 to 7, the
  // first's from 7 to 8, the second's from 8 to 12. The next forward's first layer runs from 8 to
  // 11, beside the second's exchange, its second from 12 to 13, its third until 14, where backward
  // begins again.
  Profile three = two_layers();
  three.layers = {{.name = "first", .numel = 1, .forward_s = 3, .backward_s = 1},
                  {.name = "second", .numel = 1, .forward_s = 1, .backward_s = 1},
                  {.name = "third", .numel = 1, .forward_s = 1, .backward_s = 1}};
  three.layers[0].exchange_s = 1;
  three.layers[1].exchange_s = 4;
  three.layers[2].exchange_s = 6;
  EXPECT_DOUBLE_EQ(predict(three, {}, priority).step_s, 14);
  // wfbp: forward 5, exchanges from 6 to 12, 16 and 17.
  EXPECT_DOUBLE_EQ(predict(three, {}, wfbp).step_s, 17);
}

TEST(Schedules, AStepDividesIntoComputingExposedAndInput) {
  const StepOptions options{.schedule = Schedule::kWfbp,
                            .exchange = StepOptions::Exchange::kMeasured};
  Profile profile = two_layers();
  Prediction prediction = predict(profile, {}, options);
  EXPECT_DOUBLE_EQ(prediction.compute_s, 7);  // 1 + 3 + 1 + 2
  EXPECT_DOUBLE_EQ(prediction.exposed_s, 8);  // from 7 to 15
  EXPECT_NEAR(prediction.input_s, 0, 1e-12);
  EXPECT_DOUBLE_EQ(prediction.exchange_s, 10);
  EXPECT_EQ(prediction.exchanges, 2u);
  profile.io_s = 20;
  prediction = predict(profile, {}, options);
  EXPECT_DOUBLE_EQ(prediction.step_s, 20);
  EXPECT_DOUBLE_EQ(prediction.input_s, 5);
  // The last of the batch, then all that waits for it.
  ASSERT_EQ(prediction.critical_path.size(), 6u);
  EXPECT_EQ(prediction.critical_path[0].kind, TaskKind::kIo);
  EXPECT_DOUBLE_EQ(prediction.critical_path[0].seconds, 5);
  EXPECT_EQ(prediction.critical_path[5].what, "bucket 1");
  EXPECT_DOUBLE_EQ(prediction.critical_path[5].seconds, 4);
}

TEST(Schedules, TheCriticalPathAccountsForTheWholeStep) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const Profile profile = drawn.profile();
    const Cluster cluster = drawn.cluster();
    for (const Schedule schedule : {Schedule::kNaive, Schedule::kOverlappedIo, Schedule::kWfbp,
                                    Schedule::kMgWfbp, Schedule::kMultiStream}) {
      const Prediction prediction = predict(profile, cluster, {.schedule = schedule});
      double sum = 0;
      for (const CriticalTask& task : prediction.critical_path) {
        EXPECT_NEAR(task.begin_s, sum, 1e-9 * prediction.step_s) << seed;
        sum += task.seconds;
      }
      expect_same(sum, prediction.step_s, seed);
    }
  }
}

TEST(Schedules, DdpClosesABucketThatReachesItsCap) {
  Profile profile;
  profile.model = "caps";
  for (const size_t numel : {9u, 3u, 6u, 5u, 4u}) {
    profile.layers.push_back(
        {.name = std::to_string(numel), .numel = numel, .forward_s = 1, .backward_s = 1});
  }
  constexpr double kCaps[] = {20, 40};  // bytes: 5 and 10 elements
  EXPECT_EQ(numels(profile, buckets_by_cap(profile, kCaps)), (std::vector<size_t>{9, 18}));
  EXPECT_THROW(buckets_by_cap(profile, {}), InvalidArgument);
}

TEST(Schedules, BucketsHoldEachGradientOnce) {
  Profile profile = two_layers();
  validate(profile, Buckets{{1, 0}});
  EXPECT_THROW(validate(profile, Buckets{{1}}), InvalidArgument);
  EXPECT_THROW(validate(profile, Buckets{{1, 0}, {0}}), InvalidArgument);
  EXPECT_THROW(validate(profile, Buckets{{1, 0, 2}}), InvalidArgument);
  profile.layers[0].exchange_s.reset();
  EXPECT_THROW(buckets_as_measured(profile), InvalidArgument);
  profile.layers[0].exchange_s = 1;
  profile.layers[1].exchange_s.reset();
  EXPECT_EQ(buckets_as_measured(profile), (Buckets{{1, 0}}));
}

}  // namespace
}  // namespace gradwire::planner
