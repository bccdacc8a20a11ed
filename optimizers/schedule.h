#pragma once
// Pure functions from step to learning rate, and from one batch's learning rate to another's.

#include <cstdint>

namespace gradwire {

/// base * (step + 1) / warmup_steps while step < warmup_steps, then base.
/// @throws InvalidArgument unless base is finite and >= 0.
double warmup(double base, uint64_t step, uint64_t warmup_steps);

/// Warm-up, then end + (base - end) (1 - progress)^power from base to end at total_steps, as LARS
/// and LAMB are run.
struct PolynomialSchedule {
  double base = 0.1;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double power = 1.0;
  double end = 0.0;
  /// @throws InvalidArgument as check() does.
  double at(uint64_t step) const;
  /// @throws InvalidArgument unless base, power and end are finite and >= 0.
  void check() const;
};

/// Warm-up, then end + (base - end) (1 + cos(pi progress)) / 2. Loshchilov and Hutter (SGDR),
/// arXiv 1608.03983, without restarts.
struct CosineSchedule {
  double base = 0.1;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double end = 0.0;
  /// @throws InvalidArgument as check() does.
  double at(uint64_t step) const;
  /// @throws InvalidArgument unless base and end are finite and >= 0.
  void check() const;
};

/// rate * batch / from_batch: of SGD, with a warm-up. Goyal et al., arXiv 1706.02677.
/// @throws InvalidArgument unless the rate is finite and >= 0 and both batches are at least 1.
double scale_linearly(double rate, uint64_t from_batch, uint64_t batch);
/// rate * sqrt(batch / from_batch): of LAMB (You et al., arXiv 1904.00962) and other optimizers
/// whose steps do not grow with their gradients (Krizhevsky, arXiv 1404.5997, of the noise). Throws
/// as scale_linearly().
double scale_by_root(double rate, uint64_t from_batch, uint64_t batch);

}  // namespace gradwire
