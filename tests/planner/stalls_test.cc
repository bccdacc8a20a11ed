// Stalls out of synthetic runs whose parts are known.

#include "gradwire/planner/stalls.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

TEST(Stalls, AreWhatTheRunsWereMadeOf) {
  constexpr unsigned kSeed = 20263;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> unit(0.01, 10);
  for (int round = 0; round < 200; ++round) {
    const double compute = unit(random), interconnect = unit(random), network = unit(random),
                 preparation = unit(random), fetch = unit(random);
    const double all = compute + interconnect, cached = all + preparation;
    const Stalls stalls = find_stalls({.one_gpu = compute,
                                       .all_gpus = all,
                                       .cold_data = cached + fetch,
                                       .cached_data = cached,
                                       .two_hosts = all + network});
    ASSERT_NEAR(stalls.interconnect->seconds, interconnect, 1e-12) << kSeed << ", " << round;
    ASSERT_NEAR(stalls.network->seconds, network, 1e-12) << kSeed << ", " << round;
    ASSERT_NEAR(stalls.preparation->seconds, preparation, 1e-12) << kSeed << ", " << round;
    ASSERT_NEAR(stalls.fetch->seconds, fetch, 1e-12) << kSeed << ", " << round;
    ASSERT_NEAR(stalls.interconnect->share, interconnect / all, 1e-12);
    ASSERT_NEAR(stalls.network->share, network / all, 1e-12);
    ASSERT_NEAR(stalls.preparation->share, preparation / cached, 1e-12);
    ASSERT_NEAR(stalls.fetch->share, fetch / (cached + fetch), 1e-12);
  }
}

TEST(Stalls, OfRunsThatWereNotMadeAreNotThere) {
  const Stalls stalls = find_stalls({.one_gpu = 2.0, .all_gpus = 1.5});
  ASSERT_TRUE(stalls.interconnect);
  EXPECT_EQ(stalls.interconnect->seconds, -0.5);  // noise stays visible
  EXPECT_EQ(stalls.interconnect->share, 0);
  EXPECT_FALSE(stalls.network || stalls.preparation || stalls.fetch);
  EXPECT_THROW(find_stalls({}), InvalidArgument);
  EXPECT_THROW(find_stalls({.one_gpu = 1.0, .cold_data = 2.0}), InvalidArgument);
  EXPECT_THROW(find_stalls({.one_gpu = 0.0, .all_gpus = 1.0}), InvalidArgument);
  EXPECT_THROW(find_stalls({.one_gpu = 1.0, .all_gpus = NAN}), InvalidArgument);
}

std::vector<StallSample> plane(double a0, double a1, double a2, double noise, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> off(0, noise);
  std::vector<StallSample> samples;
  for (const double layers : {10, 18, 34, 50, 101, 152}) {
    for (const double bytes : {5e6, 4e7, 1e8, 5e8}) {
      samples.push_back({"m", layers, bytes, a0 + a1 * layers + a2 * bytes + off(random)});
    }
  }
  return samples;
}

TEST(StallFits, FindThePlane) {
  const StallFit fit = fit_stalls(plane(0.02, 1e-3, 2e-10, 0, 1));
  EXPECT_NEAR(fit.constant_s, 0.02, 1e-10);
  EXPECT_NEAR(fit.per_layer_s, 1e-3, 1e-12);
  EXPECT_NEAR(fit.per_byte_s, 2e-10, 1e-18);
  EXPECT_NEAR(fit.r_squared, 1, 1e-12);
  EXPECT_NEAR(fit.predict_s(100, 1e9), 0.32, 1e-9);
  EXPECT_EQ(fit_stalls(plane(0.01, -1e-3, 0, 0, 1)).predict_s(100, 0), 0);
}

TEST(StallFits, HaveTheLeastSquares) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<StallSample> samples = plane(0.02, 1e-3, 2e-10, 0.01, seed);
    const StallFit fit = fit_stalls(samples);
    const auto squares = [&](double a0, double a1, double a2) {
      double sum = 0;
      for (const StallSample& s : samples) {
        sum += std::pow(s.stall_s - a0 - a1 * s.layers - a2 * s.gradient_bytes, 2);
      }
      return sum;
    };
    const double least = squares(fit.constant_s, fit.per_layer_s, fit.per_byte_s);
    for (const double step : {-1e-3, 1e-3}) {
      EXPECT_GT(squares(fit.constant_s + step, fit.per_layer_s, fit.per_byte_s), least) << seed;
      EXPECT_GT(squares(fit.constant_s, fit.per_layer_s * (1 + step), fit.per_byte_s), least)
          << seed;
      EXPECT_GT(squares(fit.constant_s, fit.per_layer_s, fit.per_byte_s * (1 + step)), least)
          << seed;
    }
    EXPECT_NEAR(fit.per_layer_s, 1e-3, 3e-4) << seed;
  }
}

TEST(StallFits, RefuseWhatTellsNothingApart) {
  std::vector<StallSample> samples{{"a", 1, 10, 1}, {"b", 2, 20, 2}};
  EXPECT_THROW(fit_stalls(samples), InvalidArgument);  // too few
  samples.push_back({"c", 3, 30, 3});
  EXPECT_THROW(fit_stalls(samples), InvalidArgument);  // layers and bytes grow together
  samples.push_back({"d", 3, 10, 2});
  EXPECT_NO_THROW(fit_stalls(samples));
  samples.push_back({"e", -3, 10, 2});
  EXPECT_THROW(fit_stalls(samples), InvalidArgument);
  samples.back() = {"e", 3, 10, NAN};
  EXPECT_THROW(fit_stalls(samples), InvalidArgument);
}

TEST(StallExtrapolation, FollowsTheRing) {
  EXPECT_DOUBLE_EQ(extrapolate_ring_stall(1, 2, 4), 2 * 3.0 / 4);  // 2 (N-1) / N of two workers'
  EXPECT_DOUBLE_EQ(extrapolate_ring_stall(3, 8, 8), 3);
  EXPECT_EQ(extrapolate_ring_stall(3, 8, 1), 0);
  EXPECT_THROW(extrapolate_ring_stall(1, 1, 4), InvalidArgument);
  EXPECT_THROW(extrapolate_ring_stall(-1, 2, 4), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
