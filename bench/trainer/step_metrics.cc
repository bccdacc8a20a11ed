#include "bench/trainer/step_metrics.h"

#include <limits>

namespace trainer {
namespace {

double milliseconds(StepMoments::Time::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

void add_times(const StepMetrics& m, JsonLine& line) {
  line.add("step_ms", m.step_ms)
      .add("compute_ms", m.compute_ms)
      .add("exposed_exchange_ms", m.exposed_exchange_ms)
      .add("compression_ms", m.compression_ms)
      .add("transfer_ms", m.transfer_ms)
      .add("backward_ms", m.backward_ms)
      .add("cpu_ms", m.cpu_ms);
}

std::optional<uint64_t> whole(const std::optional<double>& bytes) {
  return bytes.has_value() ? std::optional(static_cast<uint64_t>(*bytes)) : std::nullopt;
}

}  // namespace

void StepMetrics::add_times(const StepMoments& at) {
  step_ms = milliseconds(at.end - at.begin);
  backward_ms = milliseconds(at.backward - at.forward);
  compute_ms = milliseconds((at.prepared - at.begin) + (at.updated - at.exchanged));
  exposed_exchange_ms = milliseconds((at.exchanged - at.prepared) + (at.end - at.updated));
}

void StepMetrics::keep_only_step_time(double milliseconds) {
  step_ms = milliseconds;
  compute_ms = backward_ms = exposed_exchange_ms = compression_ms = transfer_ms =
      std::numeric_limits<double>::quiet_NaN();
}

void StepMetrics::add_trace(const gradwire::StepTrace& trace) {
  compression_ms = static_cast<double>(trace.codec_us()) / 1000;
  transfer_ms = static_cast<double>(trace.transfer_us()) / 1000;
  bytes_sent = static_cast<double>(trace.bytes_sent());
  bytes_received = static_cast<double>(trace.bytes_received());
  for (const gradwire::BucketTrace& bucket : trace.buckets) {
    predicted_bytes_sent += static_cast<double>(bucket.predicted_bytes_sent);
  }
}

StepMetrics& StepMetrics::operator+=(const StepMetrics& other) {
  step_ms += other.step_ms;
  compute_ms += other.compute_ms;
  backward_ms += other.backward_ms;
  exposed_exchange_ms += other.exposed_exchange_ms;
  compression_ms += other.compression_ms;
  transfer_ms += other.transfer_ms;
  cpu_ms += other.cpu_ms;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  predicted_bytes_sent += other.predicted_bytes_sent;
  if (other.interface_bytes_sent.has_value()) {
    interface_bytes_sent = interface_bytes_sent.value_or(0) + *other.interface_bytes_sent;
  }
  return *this;
}

void MetricsMean::add(const StepMetrics& step) {
  if (steps_++ == 0) {
    first_ = step;
  } else {
    rest_ += step;
  }
}

StepMetrics MetricsMean::mean() const {
  if (steps_ <= 1) {
    return first_;
  }
  const auto count = static_cast<double>(steps_ - 1);
  StepMetrics mean = rest_;
  for (double* value :
       {&mean.step_ms, &mean.compute_ms, &mean.backward_ms, &mean.exposed_exchange_ms,
        &mean.compression_ms, &mean.transfer_ms, &mean.cpu_ms, &mean.bytes_sent,
        &mean.bytes_received, &mean.predicted_bytes_sent}) {
    *value /= count;
  }
  if (mean.interface_bytes_sent.has_value()) {
    *mean.interface_bytes_sent /= count;
  }
  return mean;
}

void add_step_fields(const StepMetrics& step, JsonLine& line) {
  add_times(step, line);
  line.add("bytes_sent", static_cast<uint64_t>(step.bytes_sent))
      .add("bytes_received", static_cast<uint64_t>(step.bytes_received))
      .add("predicted_bytes_sent", static_cast<uint64_t>(step.predicted_bytes_sent))
      .add("interface_bytes_sent", whole(step.interface_bytes_sent));
}

void add_mean_fields(const StepMetrics& mean, JsonLine& line) {
  add_times(mean, line);
  line.add("bytes_sent_per_step", mean.bytes_sent)
      .add("predicted_bytes_per_step", mean.predicted_bytes_sent)
      .add("interface_bytes_per_step", mean.interface_bytes_sent);
}

}  // namespace trainer
