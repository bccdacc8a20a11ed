#pragma once
// What a job waits for, from runs that differ in one thing; and what it would wait for elsewhere.
// After Sharma et al., "Stash" (arXiv:2208.14344), and its code, aakash-sharma/DS-Analyzer.

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradwire::planner {

/// Seconds of the same work (an epoch, a number of steps) in differential runs. A run that was not
/// made has no value, and the stalls that need it have none.
struct StallRuns {
  std::optional<double> one_gpu = {};      ///< T0: one GPU, synthetic data
  std::optional<double> all_gpus = {};     ///< T1: all GPUs of the host, synthetic data
  std::optional<double> cold_data = {};    ///< T2: all GPUs, real data, nothing cached
  std::optional<double> cached_data = {};  ///< T3: all GPUs, real data, cached
  std::optional<double> two_hosts = {};    ///< T4: as T1, its GPUs on two hosts
};

struct Stall {
  double seconds = 0;  ///< the difference; below 0 where noise is larger than the stall
  double share = 0;    ///< of the run it is in, not below 0
};

/// interconnect  T1 - T0, of T1     gradients within a host
/// network       T4 - T1, of T1     gradients between hosts; can be more than 1
/// preparation   T3 - T1, of T3     decoding and augmenting data
/// fetch         T2 - T3, of T2     reading data
struct Stalls {
  std::optional<Stall> interconnect = {};
  std::optional<Stall> network = {};
  std::optional<Stall> preparation = {};
  std::optional<Stall> fetch = {};
};

/// @throws InvalidArgument for a run whose time is not positive and finite, and where no stall
/// follows from the runs that were made.
Stalls find_stalls(const StallRuns& runs);

/// A stall that was measured, and the model it was measured with.
struct StallSample {
  std::string model;
  double layers = 0;
  double gradient_bytes = 0;
  double stall_s = 0;
};

/// stall = a0 + a1 layers + a2 bytes: a start-up for each layer, and the line's time per byte.
struct StallFit {
  double constant_s = 0;
  double per_layer_s = 0;
  double per_byte_s = 0;
  double r_squared = 0;                  ///< 1: every sample is on the plane
  std::vector<double> residuals_s = {};  ///< measured - fitted, in the order of the samples

  /// Not below 0. @throws InvalidArgument for layers or bytes that are negative or not finite.
  double predict_s(double layers, double gradient_bytes) const;
};

/// Least squares. A stall below 0 is noise and counts as it is. @throws InvalidArgument for fewer
/// than three samples, layers or bytes that are negative, values that are not finite, and samples
/// whose layers and bytes grow together, so that nothing tells them apart.
StallFit fit_stalls(std::span<const StallSample> samples);

/// The stall with `to` workers of one with `from`, where an exchange sends 2 (N-1) / N of the bytes
/// per worker, as rings do: stall * ((to - 1) / to) / ((from - 1) / from). Not of parameter
/// servers.
/// @throws InvalidArgument for from < 2, to < 1, or a stall that is negative or not finite.
double extrapolate_ring_stall(double stall_s, int from, int to);

}  // namespace gradwire::planner
