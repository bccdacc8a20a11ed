#pragma once
// A synchronous step waits for its slowest worker: E[max over workers] as a factor of the mean.

#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire::planner {

/// The slowest of ten workers over their mean, in the three jobs of Alibaba's gpu-v2020 trace whose
/// times per worker are public (alibaba/clusterdata at 7a6c496).
inline constexpr double kDefaultStragglerFactor = 1.11;

/// How far workers of a job are apart: standard deviation over mean of their step times.
struct JobSpread {
  std::string_view name;
  double variation = 0;  ///< the coefficient of variation
};

/// Quartiles and the ninth decile of the medians of 100 jobs with ten workers each, gpu-v2020.
std::span<const JobSpread> job_spreads();  ///< "p25", "p50", "p75", "p90"
/// @throws InvalidArgument listing the known names.
JobSpread find_job_spread(std::string_view name);

/// E[max of `workers`] / mean of independent log-normal times with this coefficient of variation,
/// from `draws` steps with seeded numbers: the same on every machine up to the last
/// bits of libm. One worker, or no variation: exactly 1.
/// @throws InvalidArgument for a variation that is negative or not finite, fewer than one worker or
/// draw.
double sampled_straggler_factor(double variation, int workers, uint64_t seed, int draws = 4096);

/// E[max of `workers`] / mean of times drawn with equal chances from those that were measured, all
/// workers alike: the exact expectation sum x_(i) ((i / n)^P - ((i-1) / n)^P), nothing is sampled.
/// @throws InvalidArgument for no times, one that is not positive and finite, fewer than one
/// worker.
double measured_straggler_factor(std::span<const double> step_times, int workers);

/// Mean over steps of (slowest / mean) of `workers` measured side by side: `times` holds the
/// workers of the first step, then those of the second. @throws InvalidArgument for times that are
/// not a multiple of workers, or one that is not positive and finite.
double observed_straggler_factor(std::span<const double> times, int workers);

}  // namespace gradwire::planner
