#include "gradwire/planner/straggler.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/normals.h"

namespace gradwire::planner {
namespace {

constexpr JobSpread kSpreads[] = {{"p25", 0.053}, {"p50", 0.087}, {"p75", 0.51}, {"p90", 0.99}};

void check_workers(int workers) {
  check(workers >= 1, "straggler factor: ", workers, " workers, expected at least 1");
}

void check_times(std::span<const double> times) {
  check(!times.empty(), "straggler factor: 0 times, expected at least 1");
  for (const double time : times) {
    check(std::isfinite(time) && time > 0, "straggler factor: a step took ", time,
          " s, must be positive and finite");
  }
}

}  // namespace

std::span<const JobSpread> job_spreads() { return kSpreads; }

JobSpread find_job_spread(std::string_view name) {
  std::vector<std::string_view> known;
  for (const JobSpread& spread : kSpreads) {
    if (spread.name == name) {
      return spread;
    }
    known.push_back(spread.name);
  }
  throw_unknown_name("job spread", name, known);
}

double sampled_straggler_factor(double variation, int workers, uint64_t seed, int draws) {
  check_workers(workers);
  check(std::isfinite(variation) && variation >= 0,
        "straggler factor: the coefficient of variation is ", variation,
        ", must be finite and at least 0");
  check(draws >= 1, "straggler factor: ", draws, " draws, expected at least 1");
  if (workers == 1 || variation == 0) {
    return 1;
  }
  // A log-normal of mean 1: variance exp(s^2) - 1, mean exp(m + s^2 / 2).
  const double variance = std::log1p(variation * variation);
  const double deviation = std::sqrt(variance);
  Normals normals{std::mt19937_64(seed)};
  double sum = 0;
  for (int draw = 0; draw < draws; ++draw) {
    double largest = normals.next();
    for (int worker = 1; worker < workers; ++worker) {
      largest = std::max(largest, normals.next());
    }
    sum += std::exp(deviation * largest - variance / 2);
  }
  return sum / draws;
}

double measured_straggler_factor(std::span<const double> step_times, int workers) {
  check_workers(workers);
  check_times(step_times);
  std::vector<double> sorted(step_times.begin(), step_times.end());
  std::ranges::sort(sorted);
  const auto n = static_cast<double>(sorted.size());
  double expected = 0, mean = 0, below = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double up_to = std::pow(static_cast<double>(i + 1) / n, workers);
    expected += sorted[i] * (up_to - below);
    mean += sorted[i] / n;
    below = up_to;
  }
  return expected / mean;
}

double observed_straggler_factor(std::span<const double> times, int workers) {
  check_workers(workers);
  check_times(times);
  const auto each = static_cast<size_t>(workers);
  check(times.size() % each == 0, "straggler factor: ", times.size(),
        " times, expected a multiple of ", workers, " workers");
  double sum = 0;
  for (size_t step = 0; step < times.size(); step += each) {
    const auto workers_of_step = times.subspan(step, each);
    double mean = 0;
    for (const double time : workers_of_step) {
      mean += time / workers;
    }
    sum += *std::ranges::max_element(workers_of_step) / mean;
  }
  return sum / (static_cast<double>(times.size()) / workers);
}

}  // namespace gradwire::planner
