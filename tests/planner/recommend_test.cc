// Recommendations against brute force over all configurations.

#include "gradwire/planner/recommend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

struct Market {
  std::vector<Instance> instances;
  RecommendOptions options;
  std::vector<double> seconds;  ///< of each configuration; 0: it cannot run

  size_t place(const Instance& instance, int count, const std::string& plan) const {
    const auto find = [](const auto& list, const auto& value) {
      return static_cast<size_t>(std::ranges::find(list, value) - list.begin());
    };
    return (find(instances, instance) * options.counts.size() + find(options.counts, count)) *
               options.plans.size() +
           find(options.plans, plan);
  }
  EpochTime time() const {
    return [this](const Instance& instance, int count,
                  const std::string& plan) -> std::optional<double> {
      const double of = seconds[place(instance, count, plan)];
      return of > 0 ? std::optional(of) : std::nullopt;
    };
  }
};

Market random_market(unsigned seed) {
  std::mt19937 random(seed);
  Market market;
  for (size_t i = 0; i <= random() % 4; ++i) {
    market.instances.push_back({"i" + std::to_string(i), "gpu", 1 << random() % 4,
                                0.25 * static_cast<double>(random() % 20)});
  }
  market.options.counts = {1, 2, 4};
  market.options.plans = {"none", "topk:1%"};
  market.options.budget_s = 1 + static_cast<double>(random() % 1000);
  for (size_t c = 0; c < market.instances.size() * 6; ++c) {
    // Few values, so that ties are met.
    market.seconds.push_back(
        random() % 5 == 0 && c > 0 ? 0 : 10.0 * static_cast<double>(1 + random() % 100));
  }
  return market;
}

TEST(Recommend, ChoosesWhatBruteForceChooses) {
  size_t none = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Market market = random_market(seed);
    const Recommendation found = recommend(market.instances, market.options, market.time());
    // Cost and time of everything that can run; the least (cost, time) within the budget.
    std::pair<double, double> best{INFINITY, INFINITY};
    std::vector<std::pair<double, double>> all;
    for (const Instance& instance : market.instances) {
      for (const int count : market.options.counts) {
        for (const std::string& plan : market.options.plans) {
          const double seconds = market.seconds[market.place(instance, count, plan)];
          if (seconds > 0) {
            all.emplace_back(seconds * count * instance.usd_per_hour / 3600, seconds);
            if (seconds <= market.options.budget_s) {
              best = std::min(best, all.back());
            }
          }
        }
      }
    }
    ASSERT_EQ(found.configurations.size(), all.size()) << "seed " << seed;
    ASSERT_EQ(found.chosen.has_value(), best.first < INFINITY) << "seed " << seed;
    if (found.chosen) {
      const Configuration& chosen = found.configurations[*found.chosen];
      ASSERT_DOUBLE_EQ(chosen.cost_usd, best.first) << "seed " << seed;
      ASSERT_EQ(chosen.epoch_s, best.second) << "seed " << seed;
      ASSERT_TRUE(chosen.within_budget);
    } else {
      ++none;
      ASSERT_TRUE(found.explain().starts_with("no configuration meets the budget"));
    }
    // The front: what nothing else dominates, each of its points once.
    size_t front = 0;
    std::vector<std::pair<double, double>> points = all;
    std::ranges::sort(points);
    points.erase(std::unique(points.begin(), points.end()), points.end());
    for (const auto& point : points) {
      front += std::ranges::none_of(points, [&](const auto& other) {
        return other != point && other.first <= point.first && other.second <= point.second;
      });
    }
    ASSERT_EQ(static_cast<size_t>(
                  std::ranges::count(found.configurations, true, &Configuration::on_front)),
              front)
        << "seed " << seed;
    for (const Configuration& configuration : found.configurations) {
      if (configuration.on_front) {
        ASSERT_TRUE(std::ranges::none_of(all,
                                         [&](const auto& other) {
                                           return (other.first < configuration.cost_usd &&
                                                   other.second <= configuration.epoch_s) ||
                                                  (other.first <= configuration.cost_usd &&
                                                   other.second < configuration.epoch_s);
                                         }))
            << "seed " << seed;
      }
    }
  }
  EXPECT_GT(none, 0u);
}

TEST(Recommend, RefusesWhatCannotBeAsked) {
  const std::vector<Instance> one{{"a", "g", 1, 1}};
  const auto takes = [](double seconds) {
    return [seconds](const Instance&, int, const std::string&) { return std::optional(seconds); };
  };
  EXPECT_NO_THROW(recommend(one, {.budget_s = 1}, takes(1)));
  EXPECT_THROW(recommend({}, {.budget_s = 1}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.budget_s = 0}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.budget_s = NAN}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.counts = {}, .budget_s = 1}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.counts = {0}, .budget_s = 1}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.plans = {}, .budget_s = 1}, takes(1)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.budget_s = 1}, takes(0)), InvalidArgument);
  EXPECT_THROW(recommend(one, {.budget_s = 1}, takes(INFINITY)), InvalidArgument);
  EXPECT_THROW(recommend(std::vector<Instance>{{"a", "g", 1, -1}}, {.budget_s = 1}, takes(1)),
               InvalidArgument);
  EXPECT_THROW(
      recommend(one, {.budget_s = 1},
                [](const Instance&, int, const std::string&) { return std::optional<double>(); }),
      InvalidArgument);
}

TEST(PriceTables, AreReadAndReplaceable) {
  const std::vector<Instance> read = read_instances(
      "# ours\ninstance,gpu,gpus,usd_per_hour\n\nfast, H100 ,8,98.32\r\nslow,T4,1,0.526\n");
  const std::vector<Instance> expected{{"fast", "H100", 8, 98.32}, {"slow", "T4", 1, 0.526}};
  EXPECT_EQ(read, expected);
  EXPECT_EQ(default_instances().size(), 6u);
  const auto refused = [](const std::string& text, const std::string& says) {
    try {
      read_instances(text);
      FAIL() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  const std::string header = "instance,gpu,gpus,usd_per_hour\n";
  refused("", "0 instances");
  refused(header, "0 instances");
  refused("name,price\na,1\n", "line 1 is 'name,price'");
  refused(header + "a,b,1\n", "line 2 has 3 columns");
  refused(header + "a,b,one,1\n", "gpus is 'one'");
  refused(header + "a,b,1,x\n", "usd_per_hour is 'x'");
  refused(header + "a,b,0,1\n", "0 GPUs");
  refused(header + "a,b,1,-1\n", "-1 USD");
  refused(header + ",b,1,1\n", "no name");
  refused(header + "a,b,1,1\na,b,2,1\n", "given twice");
}

TEST(Epochs, AreWholeSteps) {
  EXPECT_EQ(epoch_seconds(1000, 32, 4, 0.5), 4);  // 7.8 steps
  EXPECT_EQ(epoch_seconds(1024, 32, 4, 0.5), 4);
  EXPECT_THROW(epoch_seconds(0, 32, 4, 0.5), InvalidArgument);
  EXPECT_THROW(epoch_seconds(10, 0, 4, 0.5), InvalidArgument);
  EXPECT_THROW(epoch_seconds(10, 1, 0, 0.5), InvalidArgument);
  EXPECT_THROW(epoch_seconds(10, 1, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
