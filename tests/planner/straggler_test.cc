// The factor of the slowest worker, against known expectations and enumeration.

#include "gradwire/planner/straggler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

TEST(Stragglers, OneWorkerWaitsForNobody) {
  EXPECT_EQ(sampled_straggler_factor(0.5, 1, 1), 1);
  EXPECT_EQ(sampled_straggler_factor(0, 64, 1), 1);
  EXPECT_DOUBLE_EQ(measured_straggler_factor(std::vector<double>{1, 2, 3}, 1), 1);
  EXPECT_DOUBLE_EQ(observed_straggler_factor(std::vector<double>{1, 2, 3}, 1), 1);
}

TEST(Stragglers, SamplesComeCloseToTheExpectationOfTwo) {
  // Of two log-normal times of mean 1 the larger has mean 2 Phi(s / sqrt 2), s^2 = ln(1 + c^2).
  for (const double variation : {0.053, 0.087, 0.51, 0.99}) {
    const double s = std::sqrt(std::log1p(variation * variation));
    const double expected = 1 + std::erf(s / 2);
    for (const uint64_t seed : {1, 2, 3}) {
      EXPECT_NEAR(sampled_straggler_factor(variation, 2, seed, 200'000), expected, 0.01)
          << variation << ", seed " << seed;
    }
  }
}

TEST(Stragglers, MoreWorkersWaitLongerAndTheSameSeedIsTheSame) {
  double before = 1;
  for (const int workers : {2, 4, 10, 100, 1000}) {
    const double factor = sampled_straggler_factor(0.087, workers, 7);
    EXPECT_GT(factor, before) << workers;
    EXPECT_EQ(factor, sampled_straggler_factor(0.087, workers, 7));
    EXPECT_NE(factor, sampled_straggler_factor(0.087, workers, 8));
    before = factor;
  }
  // Ten workers as far apart as the median job's: not far from the default.
  EXPECT_NEAR(sampled_straggler_factor(find_job_spread("p50").variation, 10, 7),
              kDefaultStragglerFactor, 0.05);
}

TEST(Stragglers, MeasuredTimesAreEnumerated) {
  const std::vector<double> times{3, 1, 7, 2, 2};
  double sum = 0;
  for (const double a : times) {
    for (const double b : times) {
      for (const double c : times) {
        sum += std::max({a, b, c});
      }
    }
  }
  EXPECT_NEAR(measured_straggler_factor(times, 3), sum / 125 / 3, 1e-12);
  EXPECT_NEAR(measured_straggler_factor(times, 100'000), 7.0 / 3, 1e-12);
}

TEST(Stragglers, ObservedSideBySide) {
  // max / mean of {1, 3} is 1.5, of {2, 2} it is 1.
  EXPECT_DOUBLE_EQ(observed_straggler_factor(std::vector<double>{1, 3, 2, 2}, 2), 1.25);
  EXPECT_THROW(observed_straggler_factor(std::vector<double>{1, 3, 2}, 2), InvalidArgument);
}

TEST(Stragglers, NonsenseIsRefused) {
  EXPECT_THROW(sampled_straggler_factor(-0.1, 2, 1), InvalidArgument);
  EXPECT_THROW(sampled_straggler_factor(NAN, 2, 1), InvalidArgument);
  EXPECT_THROW(sampled_straggler_factor(0.1, 0, 1), InvalidArgument);
  EXPECT_THROW(sampled_straggler_factor(0.1, 2, 1, 0), InvalidArgument);
  EXPECT_THROW(measured_straggler_factor({}, 2), InvalidArgument);
  EXPECT_THROW(measured_straggler_factor(std::vector<double>{1, 0}, 2), InvalidArgument);
  EXPECT_THROW(find_job_spread("p99"), InvalidArgument);
  EXPECT_EQ(job_spreads().size(), 4u);
}

}  // namespace
}  // namespace gradwire::planner
