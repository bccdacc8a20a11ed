#pragma once
// What one step cost, and the mean over steps.

#include <cstdint>
#include <optional>

#include "bench/trainer/events.h"
#include "bench/trainer/step_timeline.h"
#include "gradwire/comm/trace.h"

namespace trainer {

struct StepMetrics {
  double step_ms = 0;              ///< wall clock
  double compute_ms = 0;           ///< forward, backward and optimizer on the caller's thread
  double backward_ms = 0;          ///< of compute_ms
  double exposed_exchange_ms = 0;  ///< inside Reducer::wait()
  double compression_ms = 0;       ///< codec time, hidden or not
  double transfer_ms = 0;          ///< inside the transport, hidden or not
  double cpu_ms = 0;               ///< of all threads of the process
  double bytes_sent = 0;
  double bytes_received = 0;
  double predicted_bytes_sent = 0;
  std::optional<double> interface_bytes_sent;  ///< empty without an interface of the rank's own

  /// Takes the times of the caller's thread.
  void add_times(const StepMoments& at);
  /// Of a step on a GPU, of which the host knows no more: what it was made of becomes NaN.
  void keep_only_step_time(double milliseconds);
  /// Takes codec and transport times and bytes from the reducer's trace of the step.
  void add_trace(const gradwire::StepTrace& trace);
  StepMetrics& operator+=(const StepMetrics& other);
};

/// Means per step. The first step is left out (it allocates), unless it is the only one.
class MetricsMean {
 public:
  void add(const StepMetrics& step);
  StepMetrics mean() const;

 private:
  uint64_t steps_ = 0;
  StepMetrics first_;
  StepMetrics rest_;
};

/// The fields of a "step" event.
void add_step_fields(const StepMetrics& step, JsonLine& line);
/// The fields of a "done" event: the same times, bytes "per step".
void add_mean_fields(const StepMetrics& mean, JsonLine& line);

}  // namespace trainer
