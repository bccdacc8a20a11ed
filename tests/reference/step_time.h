#pragma once
// Closed forms of a synchronous step (Shi et al., arXiv:1805.03812), as they stand on paper. Layers
// count in the order of backward.

#include <algorithm>
#include <numeric>
#include <vector>

namespace gradwire::reference {

struct StepTimes {
  double io = 0, host_to_device = 0, forward = 0;
  std::vector<double> backward, exchange;  // by layer
  double update = 0;
};

inline double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Everything one after another.
inline double naive_step(const StepTimes& t) {
  return t.io + t.host_to_device + t.forward + sum(t.backward) + sum(t.exchange) + t.update;
}

/// The next batch is loaded and copied meanwhile.
inline double overlapped_io_step(const StepTimes& t) {
  return std::max(t.io + t.host_to_device,
                  t.forward + sum(t.backward) + sum(t.exchange) + t.update);
}

/// When the last exchange ends, from the beginning of backward: each begins when its gradient is
/// there and the one before it has ended.
inline double last_exchange_end(const StepTimes& t) {
  double ready = 0, end = 0;
  for (size_t l = 0; l < t.backward.size(); ++l) {
    ready += t.backward[l];
    end = std::max(end, ready) + t.exchange[l];
  }
  return std::max(end, ready);
}

inline double wfbp_step(const StepTimes& t) {
  return std::max(t.io + t.host_to_device, t.forward + last_exchange_end(t) + t.update);
}

/// An all-reduce around a ring.
inline double ring_seconds(double workers, double bytes, double alpha, double bytes_per_s) {
  return 2 * (workers - 1) * alpha + 2 * (workers - 1) / workers * bytes / bytes_per_s;
}

}  // namespace gradwire::reference
