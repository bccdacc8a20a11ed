#pragma once
// Pure functions from step to learning rate.

#include <cstdint>

namespace gradwire {

/// base * (step + 1) / warmup_steps while step < warmup_steps, then base.
double warmup(double base, uint64_t step, uint64_t warmup_steps);

/// Warm-up, then (1 - progress)^power from base to 0 at total_steps, as LARS and LAMB are run.
struct PolynomialSchedule {
  double base = 0.1;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double power = 1.0;
  double at(uint64_t step) const;
};

}  // namespace gradwire
