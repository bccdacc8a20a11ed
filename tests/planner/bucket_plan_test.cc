// Bucket plans against brute force over every partition and option.

#include "gradwire/planner/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/bucket_options.h"

namespace gradwire::planner {
namespace {

BucketOption linear(std::string compressor, double encode, double decode, double start,
                    double per_element) {
  BucketOption option;
  option.name = option.compressor = std::move(compressor);
  option.loss = option.compressor == "none" ? 0 : 1;
  option.encode_s = [=](size_t m) { return encode * static_cast<double>(m); };
  option.decode_s = [=](size_t m) { return decode * static_cast<double>(m); };
  option.exchange_s = [=](size_t m) { return start + per_element * static_cast<double>(m); };
  return option;
}

struct Case {
  std::vector<ReadyGradient> gradients;
  std::vector<BucketOption> options;
};

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  Case of;
  double ready = 0;
  const size_t n = 1 + random() % 8;
  for (size_t i = 0; i < n; ++i) {
    ready += random() % 3 == 0 ? 0 : unit(random);
    of.gradients.push_back({"g" + std::to_string(i), 1 + random() % 100, ready});
  }
  of.options.push_back(linear("none", 0, 0, unit(random), 0.05 * unit(random)));
  of.options.push_back(linear("bf16", 0.001 * unit(random), 0.001 * unit(random), unit(random),
                              0.025 * unit(random)));
  of.options.push_back(linear("topk:1%", 0.02 * unit(random), 0.01 * unit(random), unit(random),
                              0.005 * unit(random)));
  return of;
}

/// The model's end, every partition (a bit per gap) and every choice of options in turn.
double brute_force(const Case& of) {
  const size_t n = of.gradients.size(), kinds = of.options.size();
  double least = std::numeric_limits<double>::infinity();
  for (unsigned cuts = 0; cuts < 1u << (n - 1); ++cuts) {
    std::vector<std::pair<size_t, double>> buckets{{0, 0}};  // elements, ready
    for (size_t i = 0; i < n; ++i) {
      buckets.back().first += of.gradients[i].numel;
      buckets.back().second = of.gradients[i].ready_s;
      if (i + 1 < n && (cuts >> i & 1u) != 0) {
        buckets.emplace_back(0, 0);
      }
    }
    const auto choices = static_cast<size_t>(std::pow(kinds, buckets.size()) + 0.5);
    for (size_t choice = 0; choice < choices; ++choice) {
      double shift = 0, end = 0;
      size_t rest = choice;
      for (const auto& [numel, ready] : buckets) {
        const BucketOption& option = of.options[rest % kinds];
        rest /= kinds;
        shift += option.encode_s(numel);
        end = std::max(end, ready + shift) + option.decode_s(numel) + option.exchange_s(numel);
      }
      least = std::min(least, end);
    }
  }
  return least;
}

TEST(BucketPlans, EndWhenTheBestOfAllPartitionsDoes) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Case of = random_case(seed);
    const BucketPlan plan = plan_buckets(of.gradients, of.options, {.beam = 0});
    ASSERT_TRUE(plan.exact) << "seed " << seed;
    ASSERT_NEAR(plan.end_s, brute_force(of), 1e-12) << "seed " << seed;
  }
}

TEST(BucketPlans, ANarrowBeamIsNeverWorseThanTheSweepAndSaysSo) {
  size_t narrowed = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Case of = random_case(seed);
    const double best = brute_force(of);
    const BucketPlan plan = plan_buckets(of.gradients, of.options, {.beam = 1});
    ASSERT_GE(plan.end_s, best - 1e-12) << "seed " << seed;
    if (plan.exact) {
      ASSERT_NEAR(plan.end_s, best, 1e-12) << "seed " << seed;
    }
    narrowed += plan.exact ? 0 : 1;
    for (const PlanCandidate& candidate : plan.candidates) {
      ASSERT_GE(candidate.end_s, plan.end_s) << candidate.name << ", seed " << seed;
    }
  }
  EXPECT_GT(narrowed, 0u);
}

TEST(BucketPlans, HaveTheUniformPlansAmongTheirCandidates) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Case of = random_case(seed);
    const BucketPlan plan = plan_buckets(of.gradients, of.options);
    for (const char* compressor : {"none", "bf16"}) {
      // The best of this option alone with a bucket per gradient, or one bucket.
      const auto& option = *std::ranges::find(of.options, compressor, &BucketOption::compressor);
      double shift = 0, end = 0;
      size_t all = 0;
      for (const ReadyGradient& gradient : of.gradients) {
        shift += option.encode_s(gradient.numel);
        end = std::max(end, gradient.ready_s + shift) + option.decode_s(gradient.numel) +
              option.exchange_s(gradient.numel);
        all += gradient.numel;
      }
      const double one = of.gradients.back().ready_s + option.encode_s(all) + option.decode_s(all) +
                         option.exchange_s(all);
      const auto found = std::ranges::find_if(plan.candidates, [&](const PlanCandidate& c) {
        return c.name.starts_with(std::string(compressor) + " for all");
      });
      ASSERT_NE(found, plan.candidates.end()) << compressor;
      ASSERT_NEAR(found->end_s, std::min(end, one), 1e-12) << compressor << ", seed " << seed;
      ASSERT_NEAR(found->behind_s, found->end_s - plan.end_s, 1e-12);
    }
  }
}

TEST(BucketPlans, AreDenseWhereCompressionDoesNotPay) {
  std::vector<ReadyGradient> gradients{{"a", 1000, 0.1}, {"b", 1000, 0.2}};
  const std::vector<BucketOption> options{linear("topk:1%", 1e-5, 0, 1e-3, 1e-9),
                                          linear("none", 0, 0, 1e-3, 1e-8)};
  const BucketPlan plan = plan_buckets(gradients, options);
  for (const PlannedBucket& bucket : plan.buckets) {
    EXPECT_EQ(options[bucket.option].compressor, "none");
  }
  EXPECT_EQ(plan.encode_s, 0);
  EXPECT_EQ(plan.loss, 0);
  EXPECT_NE(plan.explain().find("chosen: none for all"), std::string::npos) << plan.explain();
  EXPECT_NE(plan.explain().find("topk:1% for all"), std::string::npos) << plan.explain();
}

TEST(BucketPlans, LoseLeastWithinTheTolerance) {
  const std::vector<ReadyGradient> gradients{{"a", 1000, 1}};
  const std::vector<BucketOption> options{linear("topk:1%", 0, 0, 1.00, 0),
                                          linear("none", 0, 0, 1.05, 0)};
  EXPECT_EQ(plan_buckets(gradients, options).loss, 1);
  EXPECT_EQ(plan_buckets(gradients, options, {.tolerance = 0.02}).loss, 1);
  const BucketPlan dense = plan_buckets(gradients, options, {.tolerance = 0.03});
  EXPECT_EQ(dense.loss, 0);
  EXPECT_EQ(dense.end_s, 2.05);
  EXPECT_NE(dense.explain().find("but it loses more"), std::string::npos) << dense.explain();
}

TEST(BucketPlans, SayWhenEachBucketIsOnTheLine) {
  const std::vector<ReadyGradient> gradients{{"a", 10, 1}, {"b", 10, 2}, {"c", 20, 8}};
  const std::vector<BucketOption> options{linear("none", 0, 0, 2, 0), linear("x", 0.1, 0, 1, 0)};
  std::vector<PlannedBucket> buckets{{.begin = 0, .end = 1, .option = 0},
                                     {.begin = 1, .end = 2, .option = 1},
                                     {.begin = 2, .end = 3, .option = 0}};
  EXPECT_EQ(price_buckets(gradients, options, buckets), 11);  // 8, a second late, and 2
  EXPECT_EQ(buckets[0].start_s, 1);
  EXPECT_EQ(buckets[0].end_s, 3);
  EXPECT_EQ(buckets[1].ready_s, 3);
  EXPECT_EQ(buckets[1].end_s, 4);
  EXPECT_EQ(buckets[2].ready_s, 9);
  EXPECT_EQ(buckets[2].numel, 20u);
  buckets.pop_back();
  EXPECT_THROW(price_buckets(gradients, options, buckets), InvalidArgument);
  buckets[1].begin = 0;
  EXPECT_THROW(price_buckets(gradients, options, buckets), InvalidArgument);
}

TEST(BucketPlans, RefuseWhatTheyCannotPrice) {
  const std::vector<ReadyGradient> good{{"a", 10, 1}, {"b", 10, 2}};
  const std::vector<BucketOption> none{linear("none", 0, 0, 1, 1)};
  const auto refused = [&](std::vector<ReadyGradient> gradients, std::vector<BucketOption> options,
                           BucketSearch search = {}) {
    EXPECT_THROW(plan_buckets(gradients, options, search), InvalidArgument);
  };
  refused({}, none);
  refused(good, {});
  refused(good, {linear("bf16", 0, 0, 1, 1)});
  refused({{"a", 0, 1}}, none);
  refused({{"a", 1, 2}, {"b", 1, 1}}, none);
  refused({{"a", 1, -1}}, none);
  refused({{"a", 1, NAN}}, none);
  refused(good, {linear("none", 0, 0, -1, 0)});
  refused(good, {linear("none", NAN, 0, 1, 0)});
  refused(good, {BucketOption{.name = "none", .compressor = "none", .exchange = ""}});
  refused(good, none, {.tolerance = -1});
  refused(good, none, {.caps = {0}});
}

TEST(BucketOptions, AreSpecsTimesExchangesTimesStreams) {
  Costs costs;
  costs.link = find_link("10gbe");
  costs.link.stream_bytes_per_s = 0.5e9;
  costs.codecs["bf16"] = {1e-5, 10e9, 1e-5, 10e9};
  costs.codecs["topk:1%"] = {1e-4, 1e9, 1e-4, 4e9};
  const std::vector<BucketOption> options = make_bucket_options(
      {.world_size = 4, .specs = {"topk:1%"}, .exchanges = {"dense", "gather"}, .streams = {1, 2}},
      costs);
  size_t dense = 0;
  for (const BucketOption& option : options) {
    ASSERT_GE(option.loss, 0) << option.name;
    if (option.compressor == "none") {
      EXPECT_EQ(option.loss, 0);
      EXPECT_EQ(option.encode_s(1000), 0);
    }
    if (option.compressor == "none" && option.exchange == "dense") {
      ++dense;
      // 4 MB at 4 ranks: six messages of 1 MB and a frame, over one stream or two.
      const double sent = 6 * (1e6 + 64) + 6.0 * 32 / 4;  // and the payload's header
      EXPECT_NEAR(option.exchange_s(1'000'000), 6 * 57e-6 + sent / (0.5e9 * option.streams), 1e-6)
          << option.name;
    }
    if (option.compressor == "topk:1%") {
      EXPECT_EQ(option.exchange, "gather");  // "dense" cannot carry it
      EXPECT_DOUBLE_EQ(option.encode_s(1'000'000), 1e-4 + 4e-3);
      EXPECT_DOUBLE_EQ(option.decode_s(1'000'000), 4 * (1e-4 + 1e-3));
      EXPECT_LT(option.exchange_s(1'000'000), 3 * (57e-6 + 0.1e6 / 0.5e9));
    }
  }
  EXPECT_EQ(dense, 2u);
}

TEST(BucketOptions, RefuseWhatHasNoPrice) {
  Costs costs;
  costs.link = find_link("10gbe");
  EXPECT_THROW(make_bucket_options({.world_size = 4}, costs), InvalidArgument);  // no bf16
  costs.codecs["bf16"] = {};
  EXPECT_NO_THROW(make_bucket_options({.world_size = 4}, costs));
  const auto refused = [&costs](const BucketOptionRequest& request) {
    EXPECT_THROW(make_bucket_options(request, costs), InvalidArgument);
  };
  refused({.world_size = 0});
  refused({.world_size = 4, .specs = {"topk:1%"}});
  refused({.world_size = 4, .specs = {"telepathy"}});
  refused({.world_size = 4, .specs = {"powersgd:4"}});
  refused({.world_size = 4, .exchanges = {"pigeon"}});
  refused({.world_size = 4, .exchanges = {"gtopk"}});  // its mean is not the rank-order sum
  refused({.world_size = 4, .streams = {}});
  refused({.world_size = 4, .streams = {0}});
  costs.link.bytes_per_s = 0;
  refused({.world_size = 4});
}

TEST(ReadyGradients, FollowBackwardFromTheLastLayer) {
  Profile profile;
  profile.model = "m";
  profile.layers = {{.name = "first", .numel = 10, .backward_s = 0.3},
                    {.name = "relu", .backward_s = 0.2},
                    {.name = "last", .numel = 20, .backward_s = 0.1}};
  const auto gradients = ready_gradients(profile);
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[0].name, "last");
  EXPECT_EQ(gradients[0].numel, 20u);
  EXPECT_DOUBLE_EQ(gradients[0].ready_s, 0.1);
  EXPECT_EQ(gradients[1].name, "first");
  EXPECT_DOUBLE_EQ(gradients[1].ready_s, 0.6);
  profile.layers = {{.name = "relu", .backward_s = 0.2}};
  EXPECT_THROW(ready_gradients(profile), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
