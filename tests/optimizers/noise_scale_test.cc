// The noise scale against gradients whose true one is known.

#include "gradwire/optimizers/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/optimizers/schedule.h"
#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

constexpr unsigned kSeed = 20261122;

// Gradients of single examples are G + noise of a known variance per element; S is the variances'
// sum.
TEST(NoiseScale, IsThatOfTheGradientsItSees) {
  constexpr size_t kElements = 50;
  constexpr uint64_t kBatch = 8, kRanks = 4;
  std::mt19937 random(kSeed);
  std::normal_distribution<double> normal;
  std::vector<double> truth(kElements), deviation(kElements);
  double square = 0.0, variance = 0.0;
  for (size_t i = 0; i < kElements; ++i) {
    truth[i] = 0.1 * normal(random);
    deviation[i] = 0.5 + 0.01 * static_cast<double>(i);
    square += truth[i] * truth[i];
    variance += deviation[i] * deviation[i];
  }
  NoiseScale scale(kBatch, kRanks, 0.9999);
  for (int step = 0; step < 20000; ++step) {
    double mean_of_squares = 0.0;
    std::vector<double> mean(kElements);
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        const double g = truth[i] + deviation[i] * normal(random) / std::sqrt(double{kBatch});
        mean_of_squares += g * g / double{kRanks};
        mean[i] += g / double{kRanks};
      }
    }
    double square_of_mean = 0.0;
    for (double x : mean) {
      square_of_mean += x * x;
    }
    scale.add(mean_of_squares, square_of_mean);
  }
  ASSERT_TRUE(scale.value());
  EXPECT_NEAR(*scale.gradient_square(), square, 0.1 * square);
  EXPECT_NEAR(*scale.noise(), variance, 0.02 * variance);
  EXPECT_NEAR(*scale.value(), variance / square, 0.12 * variance / square);
  EXPECT_EQ(scale.steps(), 20000u);
}

// By hand: b 1, B 2; |g_B|^2 3, mean |g_b|^2 5: |G|^2 = (6 - 5) / 1 = 1, S = 2 / (1 - 1/2) = 4.
TEST(NoiseScale, ByHand) {
  NoiseScale scale(1, 2, 0.5);
  EXPECT_FALSE(scale.value());
  EXPECT_FALSE(scale.noise());
  EXPECT_FALSE(scale.rate_for(0.1, 1, 2));
  scale.add(5, 3);
  EXPECT_DOUBLE_EQ(*scale.gradient_square(), 1);
  EXPECT_DOUBLE_EQ(*scale.noise(), 4);
  EXPECT_DOUBLE_EQ(*scale.value(), 4);
  EXPECT_DOUBLE_EQ(*scale.rate_for(0.1, 4, 4), 0.1);
  EXPECT_DOUBLE_EQ(*scale.rate_for(0.1, 4, 12), 0.15);  // (1 + 1) / (1 + 1/3)
  EXPECT_DOUBLE_EQ(*scale.steps_for(300, 4, 12), 200);
  scale.add(3, 3);  // no noise: |G|^2 3, S 0; averages (0.5 * 1 + 3) / 1.5 and (0.5 * 4 + 0) / 1.5
  EXPECT_DOUBLE_EQ(*scale.gradient_square(), 3.5 / 1.5);
  EXPECT_DOUBLE_EQ(*scale.value(), 2.0 / 3.5);
}

TEST(NoiseScale, IsNothingWhileTheEstimateOfTheGradientIsNotPositive) {
  NoiseScale scale(2, 2);
  scale.add(10, 4);  // |G|^2 = (16 - 20) / 2
  EXPECT_LT(*scale.gradient_square(), 0);
  EXPECT_FALSE(scale.value());
  EXPECT_FALSE(scale.steps_for(1, 1, 1));
}

TEST(NoiseScale, RefusesWhatItCannotUse) {
  const auto refusal = [](auto&& action) { return message_of<InvalidArgument>(action); };
  EXPECT_EQ(refusal([] { NoiseScale(0, 2); }), "noise scale: rank_batch is 0, must be at least 1");
  EXPECT_NE(refusal([] { NoiseScale(1, 1); }).find("must be at least 2"), std::string::npos);
  EXPECT_EQ(refusal([] { NoiseScale(1, 2, 1.0); }), "noise scale: decay is 1, must be in [0, 1)");
  NoiseScale scale(1, 2);
  scale.add(5, 3);
  EXPECT_EQ(refusal([&] { scale.add(std::nan(""), 1); }),
            "noise scale: mean_of_squares is nan, must be finite and >= 0");
  EXPECT_EQ(refusal([&] { scale.add(1, -1); }),
            "noise scale: square_of_mean is -1, must be finite and >= 0");
  EXPECT_EQ(scale.steps(), 1u);
  EXPECT_EQ(refusal([&] { scale.rate_for(0.1, 0, 1); }),
            "noise scale: batches are 0 and 1, must be at least 1");
}

TEST(Schedule, CosineFallsFromThePeakToTheEnd) {
  const CosineSchedule schedule{.base = 2.0, .warmup_steps = 2, .total_steps = 6, .end = 1.0};
  const double expected[] = {
      1.0, 2.0, 2.0, 1.5 + 0.5 * std::sqrt(0.5), 1.5, 1.5 - 0.5 * std::sqrt(0.5), 1.0, 1.0};
  for (uint64_t step = 0; step < std::size(expected); ++step) {
    EXPECT_NEAR(schedule.at(step), expected[step], 1e-15) << step;
  }
}

TEST(Schedule, PolynomialsEndWhereTheySay) {
  const PolynomialSchedule schedule{.base = 2.0, .total_steps = 4, .power = 1.0, .end = 1.0};
  EXPECT_DOUBLE_EQ(schedule.at(2), 1.5);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
}

TEST(Schedule, RefusesWhatIsNoRate) {
  const auto refusal = [](auto&& action) { return message_of<InvalidArgument>(action); };
  const double nan = std::nan(""), infinity = HUGE_VAL;
  for (const uint64_t step : {uint64_t{0}, uint64_t{5}, uint64_t{50}}) {
    const auto at = [&](auto schedule) { return refusal([&] { schedule.at(step); }); };
    using Polynomial = PolynomialSchedule;
    EXPECT_EQ(at(Polynomial{.base = nan, .warmup_steps = 2, .total_steps = 9}),
              "schedule: base is nan, must be finite and >= 0");
    EXPECT_EQ(at(Polynomial{.warmup_steps = 2, .total_steps = 9, .power = -1.0}),
              "schedule: power is -1, must be finite and >= 0");
    EXPECT_EQ(at(Polynomial{.warmup_steps = 2, .total_steps = 9, .power = nan}),
              "schedule: power is nan, must be finite and >= 0");
    EXPECT_EQ(at(Polynomial{.warmup_steps = 2, .total_steps = 9, .end = infinity}),
              "schedule: end is inf, must be finite and >= 0");
    EXPECT_EQ(at(CosineSchedule{.base = -0.1, .warmup_steps = 2, .total_steps = 9}),
              "schedule: base is -0.1, must be finite and >= 0");
    EXPECT_EQ(at(CosineSchedule{.warmup_steps = 2, .total_steps = 9, .end = -1.0}),
              "schedule: end is -1, must be finite and >= 0");
    EXPECT_EQ(refusal([&] { warmup(nan, step, 10); }),
              "warmup: base is nan, must be finite and >= 0");
  }
  // A power of 0 stays at the base until the end.
  EXPECT_EQ((PolynomialSchedule{.base = 2.0, .total_steps = 4, .power = 0.0}).at(3), 2.0);
}

TEST(Schedule, RatesFollowTheBatch) {
  EXPECT_DOUBLE_EQ(scale_linearly(0.1, 256, 1024), 0.4);
  EXPECT_DOUBLE_EQ(scale_by_root(0.1, 256, 1024), 0.2);
  EXPECT_DOUBLE_EQ(scale_by_root(0.1, 1024, 256), 0.05);
  EXPECT_EQ(message_of<InvalidArgument>([] { scale_linearly(0.1, 0, 1); }),
            "batches are 0 and 1, must be at least 1");
  EXPECT_EQ(message_of<InvalidArgument>([] { scale_by_root(-1, 1, 1); }),
            "rate is -1, must be finite and >= 0");
}

}  // namespace
}  // namespace gradwire
