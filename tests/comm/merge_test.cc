// Merging against a search through all partitions, the published rule, and cases worked out by
// hand.

#include "gradwire/comm/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "gradwire/comm/probe.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

using Buckets = std::vector<std::vector<ParamId>>;

// Layer i of n becomes ready as the (n - i)-th: the last of the forward pass first.
std::vector<GradientTiming> layers(const std::vector<double>& ready_s,
                                   const std::vector<size_t>& bytes) {
  std::vector<GradientTiming> gradients;
  for (size_t i = 0; i < ready_s.size(); ++i) {
    gradients.push_back({static_cast<ParamId>(ready_s.size() - 1 - i), ready_s[i], bytes[i]});
  }
  return gradients;
}

// End of the last exchange when a bucket ends after each gradient whose bit is set.
double end_of(const std::vector<GradientTiming>& gradients, unsigned cuts, const BucketCost& cost) {
  double end = 0, bytes = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    bytes += static_cast<double>(gradients[i].bytes);
    if (i + 1 == gradients.size() || (cuts >> i & 1) != 0) {
      end = std::max(end, gradients[i].ready_s) + cost.startup_s + bytes * cost.seconds_per_byte;
      bytes = 0;
    }
  }
  return end;
}

// The rule of the paper: merge with the next one while it is ready before start + startup.
double end_by_published_rule(const std::vector<GradientTiming>& gradients, const BucketCost& cost) {
  double end = 0, bytes = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    bytes += static_cast<double>(gradients[i].bytes);
    const double start = std::max(end, gradients[i].ready_s);
    if (i + 1 < gradients.size() && gradients[i + 1].ready_s - start < cost.startup_s) {
      continue;
    }
    end = start + cost.startup_s + bytes * cost.seconds_per_byte;
    bytes = 0;
  }
  return end;
}

TEST(MergeGradients, EndsAsEarlyAsTheBestOfAllPartitionsAndNoLaterThanThePublishedRule) {
  std::mt19937 generator(5);
  int earlier_than_rule = 0;
  for (int round = 0; round < 400; ++round) {
    const size_t count = 1 + generator() % 10;
    std::uniform_real_distribution<double> gap(0.0, 2.0), startup(0.0, 3.0);
    std::vector<double> ready(count);
    std::vector<size_t> bytes(count);
    double now = 0;
    for (size_t i = 0; i < count; ++i) {
      ready[i] = now += gap(generator);
      bytes[i] = generator() % 1000;
    }
    const auto gradients = layers(ready, bytes);
    const BucketCost cost{startup(generator), gap(generator) / 500};
    double best = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 1u << (count - 1); ++cuts) {
      best = std::min(best, end_of(gradients, cuts, cost));
    }
    const Buckets buckets = merge_gradients(gradients, {.cost = cost});
    const double end = exchange_end_s(gradients, buckets, cost);
    ASSERT_NEAR(end, best, 1e-9) << round;
    const double by_rule = end_by_published_rule(gradients, cost);
    ASSERT_LE(end, by_rule + 1e-9) << round;
    earlier_than_rule += end < by_rule - 1e-9;
    std::vector<ParamId> order;
    for (const auto& bucket : buckets) {
      order.insert(order.end(), bucket.begin(), bucket.end());
    }
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(order[i], gradients[i].parameter) << "not in the order of readiness";
    }
  }
  EXPECT_GT(earlier_than_rule, 0);
}

TEST(MergeGradients, KeepsAllApartWithoutStartUpsAndPutsAllTogetherWhereTheyAreAllThatCounts) {
  const auto gradients = layers({1, 2, 3}, {10, 10, 10});
  EXPECT_EQ(merge_gradients(gradients, {.cost = {0, 0.01}}), (Buckets{{2}, {1}, {0}}));
  EXPECT_EQ(merge_gradients(gradients, {.cost = {100, 0.01}}), (Buckets{{2, 1, 0}}));
}

// Start-up 1, 0.1 a byte. Alone: 1 to 3, 3 to 5 (ready at 2), 10 to 12. The second waits for the
// first anyway: together 2 to 5 ends as early with one bucket less, and hides before 10.
TEST(MergeGradients, LeavesTheLastGradientAloneWhereAllOthersAreHidden) {
  const auto gradients = layers({1, 2, 10}, {10, 10, 10});
  EXPECT_EQ(merge_gradients(gradients, {.cost = {1, 0.1}}), (Buckets{{2, 1}, {0}}));
  EXPECT_DOUBLE_EQ(exchange_end_s(gradients, Buckets{{2, 1}, {0}}, {1, 0.1}), 12);
}

// Here the rule merges the second with the first (0.9 - 0 < 1) and then the third (1.5 - 0.9 < 1):
// 1.5 + 1 + 0.7 = 3.2. The first alone (0 to 1.6), then the others (1.6 to 2.7), is the best.
TEST(MergeGradients, SeesFurtherThanThePublishedRule) {
  const auto gradients = layers({0, 0.9, 1.5}, {60, 5, 5});
  const BucketCost cost{1, 0.01};
  EXPECT_DOUBLE_EQ(end_by_published_rule(gradients, cost), 3.2);
  EXPECT_EQ(merge_gradients(gradients, {.cost = cost}), (Buckets{{2}, {1, 0}}));
  EXPECT_DOUBLE_EQ(exchange_end_s(gradients, Buckets{{2}, {1, 0}}, cost), 2.7);
}

TEST(MergeGradients, KeepsBucketsBelowTheirLargestSizeButForSingleGradients) {
  const auto gradients = layers({0, 0, 0, 0}, {30, 30, 500, 30});
  EXPECT_EQ(merge_gradients(gradients, {.cost = {1, 0}, .most_bytes = 60}),
            (Buckets{{3, 2}, {1}, {0}}));
}

// Four buckets of one layer; 1 and 2 wait while 3 travels, 0 comes too late for the line to rest.
TEST(MergeGradients, LetWhatTheNextForwardNeedsFirstLeaveFirstOfThoseThatWait) {
  const auto gradients = layers({0, 1, 2, 100}, {50, 50, 50, 50});
  const MergeOptions options{.cost = {0, 0.1}, .most_bytes = 50, .order = LeavingOrder::kNeeded};
  const Buckets buckets = merge_gradients(gradients, options);
  EXPECT_EQ(buckets, (Buckets{{3}, {1}, {2}, {0}}));
  EXPECT_DOUBLE_EQ(exchange_end_s(gradients, buckets, options.cost), 105);
}

TEST(MergeGradients, ByNeedEndNoLaterThanByReadiness) {
  std::mt19937 generator(6);
  std::uniform_real_distribution<double> value(0.0, 2.0);
  for (int round = 0; round < 200; ++round) {
    std::vector<GradientTiming> gradients;
    for (ParamId p = 0; p < 12; ++p) {
      gradients.push_back({p, value(generator), 1 + generator() % 300});
    }
    MergeOptions options{.cost = {value(generator) / 20, value(generator) / 500}};
    const double by_ready =
        exchange_end_s(gradients, merge_gradients(gradients, options), options.cost);
    options.order = LeavingOrder::kNeeded;
    const Buckets buckets = merge_gradients(gradients, options);
    ASSERT_NEAR(exchange_end_s(gradients, buckets, options.cost), by_ready, 1e-9) << round;
  }
}

TEST(MergeGradients, RefusesWhatCannotBe) {
  const auto refusal = [](std::vector<GradientTiming> gradients, BucketCost cost) {
    return message_of<InvalidArgument>([&] { merge_gradients(gradients, {.cost = cost}); });
  };
  EXPECT_EQ(refusal({}, {}), "merge: 0 gradients, expected at least one");
  EXPECT_EQ(refusal({{4, 0, 1}, {4, 1, 1}}, {}),
            "merge: parameter 4 is given twice, expected once");
  EXPECT_EQ(refusal({{4, -1, 1}}, {}), "merge: ready_s is -1, must be finite and not negative");
  EXPECT_EQ(refusal({{4, 0, 1}}, {NAN, 0}),
            "merge: startup_s is nan, must be finite and not negative");
}

TEST(Probe, FitsTheLineThroughItsMeasurements) {
  const LinkCosts line =
      fit_link(std::vector<MessageTime>{{1e5, 1e-4}, {100, 1e-3 + 1e-6}, {1e6, 11e-3}});
  EXPECT_NEAR(line.alpha_s, 1e-3, 1e-9);  // what passed in a burst says nothing
  EXPECT_NEAR(line.beta_s_per_byte, 1e-8, 1e-14);
  const LinkCosts no_start = fit_link(std::vector<MessageTime>{{100, 1e-6}, {1000, 2e-5}});
  EXPECT_EQ(no_start.alpha_s, 0);
  EXPECT_NEAR(no_start.beta_s_per_byte, 19e-6 / 900, 1e-15);
  const LinkCosts flat = fit_link(std::vector<MessageTime>{{100, 2e-5}, {1000, 1e-5}});
  EXPECT_EQ(flat.alpha_s, 2e-5);
  EXPECT_EQ(flat.beta_s_per_byte, 0);
  EXPECT_EQ(fit_link(std::vector<MessageTime>{{100, 3.0}}).alpha_s, 3.0);
  EXPECT_THROW(fit_link({}), InvalidArgument);
  EXPECT_THROW(fit_link(std::vector<MessageTime>{{1, 0}}), InvalidArgument);
}

// A paced line cannot be faster than its rate, however busy the machine: 80 ns a byte at 100
// Mbit/s, less what a burst lets through. What a busy machine adds to small messages makes the line
// flatter, and large ones no faster.
TEST(Probe, GivesAllRanksTheSameFiguresOfALineThatIsNotFasterThanItsRate) {
  TransportOptions options;
  options.pacing.bits_per_second = 1e8;
  constexpr size_t kMostBytes = size_t{1} << 15;
  std::vector<LinkCosts> costs(3);
  const auto ends = run_ranks(
      3,
      [&](Transport& transport) {
        const auto stream = make_inline_stream();
        Workspace workspace;
        Context context{*stream, workspace};
        costs[static_cast<size_t>(transport.rank())] = probe_link(
            transport, context,
            {.budget = std::chrono::microseconds(200000), .most_bytes = kMostBytes});
      },
      options);
  EXPECT_EQ(first_message(ends), "");
  EXPECT_GT(costs[0].alpha_s + costs[0].beta_s_per_byte * kMostBytes, 40e-9 * kMostBytes);
  EXPECT_GE(costs[0].alpha_s, 0);
  for (const LinkCosts& each : costs) {
    EXPECT_EQ(each.alpha_s, costs[0].alpha_s);
    EXPECT_EQ(each.beta_s_per_byte, costs[0].beta_s_per_byte);
  }
  const auto alone = run_ranks(1, [](Transport& transport) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    check(probe_link(transport, context).alpha_s == 0, "one rank has costs");
    const std::string small =
        message_of<InvalidArgument>([&] { probe_link(transport, context, {.most_bytes = 10}); });
    check(small == "probe: most_bytes is 10, must be at least 64", small);
  });
  EXPECT_EQ(first_message(alone), "");
}

TEST(Probe, SeesWhatBytesCostBehindAStartUpLongerThanItsBudget) {
  size_t largest = 0;  // message that rank 0 has got
  std::vector<LinkCosts> costs(2);
  const auto ends = run_ranks(2, [&](Transport& in_process) {
    WrappedTransport transport(in_process, [&](const Parts& all) {
      const size_t other = all.lengths[static_cast<size_t>(1 - in_process.rank())];
      std::this_thread::sleep_for(std::chrono::microseconds(2000 + 10 * other));
      if (in_process.rank() == 0) {
        largest = std::max(largest, other);
      }
    });
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    costs[static_cast<size_t>(transport.rank())] =
        probe_link(transport, context, {.budget = std::chrono::microseconds(1000)});
  });
  EXPECT_EQ(first_message(ends), "");
  EXPECT_GE(largest, 512u);
  EXPECT_GT(costs[0].beta_s_per_byte, 0);
  EXPECT_EQ(costs[0].beta_s_per_byte, costs[1].beta_s_per_byte);
}

}  // namespace
}  // namespace gradwire::test
