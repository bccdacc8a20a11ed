#include "gradwire/optimizers/schedule.h"

#include <cmath>

namespace gradwire {

double warmup(double base, uint64_t step, uint64_t warmup_steps) {
  if (step >= warmup_steps) {
    return base;
  }
  return base * (static_cast<double>(step) + 1.0) / static_cast<double>(warmup_steps);
}

double PolynomialSchedule::at(uint64_t step) const {
  if (step < warmup_steps) {
    return warmup(base, step, warmup_steps);
  }
  if (step >= total_steps) {
    return 0.0;
  }
  // The decay begins where the warm-up ends, so that the peak is reached.
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return base * std::pow(1.0 - progress, power);
}

}  // namespace gradwire
