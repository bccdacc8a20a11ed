#include "gradwire/optimizers/schedule.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

// The decay begins where the warm-up ends, so that the peak is reached.
double progress(uint64_t step, uint64_t warmup_steps, uint64_t total_steps) {
  return step >= total_steps ? 1.0
                             : static_cast<double>(step - warmup_steps) /
                                   static_cast<double>(total_steps - warmup_steps);
}

void check_size(std::string_view what, double value) {
  check(std::isfinite(value) && value >= 0.0, what, " is ", value, ", must be finite and >= 0");
}

double warmed(double base, uint64_t step, uint64_t warmup_steps) {
  return base * (static_cast<double>(step) + 1.0) / static_cast<double>(warmup_steps);
}

double times_as_large(double rate, uint64_t from_batch, uint64_t batch) {
  check_size("rate", rate);
  check(from_batch >= 1 && batch >= 1, "batches are ", from_batch, " and ", batch,
        ", must be at least 1");
  return static_cast<double>(batch) / static_cast<double>(from_batch);
}

}  // namespace

double warmup(double base, uint64_t step, uint64_t warmup_steps) {
  check_size("warmup: base", base);
  return step >= warmup_steps ? base : warmed(base, step, warmup_steps);
}

void PolynomialSchedule::check() const {
  check_size("schedule: base", base);
  check_size("schedule: power", power);
  check_size("schedule: end", end);
}

void CosineSchedule::check() const {
  check_size("schedule: base", base);
  check_size("schedule: end", end);
}

double PolynomialSchedule::at(uint64_t step) const {
  check();
  if (step < warmup_steps) {
    return warmed(base, step, warmup_steps);
  }
  return end + (base - end) * std::pow(1.0 - progress(step, warmup_steps, total_steps), power);
}

double CosineSchedule::at(uint64_t step) const {
  check();
  if (step < warmup_steps) {
    return warmed(base, step, warmup_steps);
  }
  const double angle = std::numbers::pi * progress(step, warmup_steps, total_steps);
  return end + (base - end) * (1.0 + std::cos(angle)) / 2.0;
}

double scale_linearly(double rate, uint64_t from_batch, uint64_t batch) {
  return rate * times_as_large(rate, from_batch, batch);
}

double scale_by_root(double rate, uint64_t from_batch, uint64_t batch) {
  return rate * std::sqrt(times_as_large(rate, from_batch, batch));
}

}  // namespace gradwire
