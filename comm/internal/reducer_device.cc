// A reducer whose gradients lie in GPU memory: what its calls enqueue, and how failures surface.

#include <algorithm>

#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/kernels/core/device_name.h"

namespace gradwire {

// The streams' owner is told apart by the transport: it says where memory lies.
void Reducer::State::check_device_options() const {
  const Stream* const stream = options.stream;
  const bool on_gpu = device.type == DeviceType::kCuda;
  check(on_gpu == (stream != nullptr) && (!on_gpu || stream->device() == device),
        "reducer: stream is ", stream == nullptr ? "null" : "of " + name_of(stream->device()),
        ", expected ", on_gpu ? "one of " + name_of(device) : "null",
        ", because the transport carries memory of ", name_of(device));
  check(!on_gpu || options.unused == UnusedParameters::kError,
        "reducer: unused is kZero, expected kError: unused parameters are not there on a GPU yet");
  check(!on_gpu || options.launch_order == LaunchOrder::kPlan,
        "reducer: launch_order is agreed, expected plan: on a GPU nobody waits for what other ranks "
        "say");
}

void Reducer::State::refuse_on_gpu(std::string_view call) const {
  check(device.type == DeviceType::kCpu, call, ": gradients are on ", name_of(device),
        ", expected CPU memory: this call is not there on a GPU yet");
}

Reducer::State::Counts Reducer::State::counts() const {
  const cuda::StepWords words = gpu == nullptr ? *commits->words() : gpu->read();
  return {words.step, words.skipped};
}

StepOutcome Reducer::State::end_step_on_device() {
  guarded(buckets.size() - 1, [this] {
    // The others have no bucket, and are no part of a step that is captured.
    for (size_t l = 0; l < std::min(lanes.size(), buckets.size()); ++l) {
      gpu->join(l, *lanes[l].worker->stream);
    }
    std::vector<Gradient> means;
    for (const Progress& p : progress) {
      means.push_back(p.gradient);
    }
    gpu->conclude(means, options.on_nonfinite, left_out_value());
  });
  if (failure) {
    launched = 0;
    finished = failure;
    throw *finished;
  }
  times.wait_end_us = now_us();
  times.committed = false;  // nobody knows yet
  record();
  ++step;
  begin_step();
  throw_if_transport_failed();
  if (const auto words = gpu->newest()) {
    if (!cuda::is_capturing(gpu->caller())) {
      for (Bucket& bucket : buckets) {
        bucket.memory().forget_waiting(words->step);
      }
    }
    throw_faults(*words, "; nothing has been committed since, and no mean came: call synchronize() "
                         "after the same step on every rank to go on");
  }
  return StepOutcome::kEnqueued;
}

void Reducer::State::throw_if_transport_failed() {
  try {
    transport->throw_if_failed();
  } catch (const TransportError& error) {
    finished = error;
    failed = true;
    throw;
  }
}

// Payloads that do not decode end the group, as they do on the CPU; values that are not finite do not.
void Reducer::State::throw_faults(const cuda::StepWords& words, std::string_view advice) {
  try {
    DeviceState::check(words);
  } catch (const InvalidArgument& error) {
    if ((words.status & cuda::kStatusMalformed) == 0) {
      const std::string_view bucket =
          words.overflowed == 0 ? std::string_view{} : buckets[words.overflowed - 1].label();
      throw NonFiniteGradient(concat("rank ", transport->rank(), ": ", bucket,
                                     bucket.empty() ? "" : ": ", error.what(), advice));
    }
    finished.emplace(concat("rank ", transport->rank(), ", behind step ", words.step, ": ",
                            error.what(), " (parts are numbered by the ranks that sent them)"));
    failed = true;
    transport->abort(finished->what());
    throw *finished;
  }
}

bool Reducer::copy_residual(ParamId p, std::span<float> to) const {
  State& s = *state_;
  check(s.gpu != nullptr,
        "copy_residual: gradients are in CPU memory, expected a GPU: residual() is "
        "there at once");
  check(p < s.plan.places.size(), "copy_residual: parameter ", p, " is not in the plan of ",
        s.plan.places.size(), " parameters");
  check(to.size() == s.plan.parameters[p].numel(), "copy_residual: to has ", to.size(),
        " elements, must have the ", s.plan.parameters[p].numel(), " of parameter ", p);
  const auto [bucket, offset] = s.plan.places[p];
  return s.buckets[bucket].memory().copy_residual(offset, to, s.gpu->caller());
}

void Reducer::synchronize() {
  State& s = *state_;
  s.throw_if_finished();
  if (s.gpu == nullptr) {
    return;
  }
  check(!s.begun, "synchronize: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  const cuda::StepWords words = s.gpu->read();
  s.throw_if_transport_failed();
  if (words.status == cuda::kStatusNonFinite) {
    s.gpu->forget_faults();
  }
  s.throw_faults(words, "");
}

}  // namespace gradwire
