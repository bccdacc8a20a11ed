#include "gradwire/comm/reducer.h"

#include <algorithm>
#include <cstring>

#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire {
namespace {

void add_to(Gradient sum, ConstGradient values) {
  dispatch(sum.dtype, [&]<class T>() {
    const std::span<T> sums = sum.as<T>();
    const std::span<const T> addends = values.as<T>();
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = from_float<T>(to_float(sums[i]) + to_float(addends[i]));
    }
  });
}

}  // namespace

Reducer::Reducer(Plan plan, Transport& transport, ReducerOptions options)
    : state_(std::make_unique<State>(std::move(plan), transport, options)) {}

Reducer::~Reducer() {
  const OfProcess process = state_->process;
  process.let_go(state_);
}

const Plan& Reducer::plan() const { return state_->plan; }

Gradient Reducer::gradient(ParamId p) {
  const Plan& plan = state_->plan;
  check(p < plan.places.size(), "gradient: parameter ", p, " is not in the plan of ",
        plan.places.size(), " parameters");
  const auto [bucket, offset] = plan.places[p];
  return state_->buckets[bucket].gradient(offset, plan.parameters[p].numel());
}

void Reducer::grad_ready(ParamId p) {
  State& s = *state_;
  s.check_not_ready("grad_ready", p);
  if (s.no_sync > 0) {
    s.given[p] = Given::kAccumulated;
    s.begun = true;
    return;
  }
  s.set_ready(p);
}

void Reducer::accumulate(ParamId p, ConstGradient values) {
  State& s = *state_;
  s.refuse_on_gpu("accumulate");
  s.check_not_ready("accumulate", p);
  const Gradient sum = gradient(p);
  check(values.numel == sum.numel && values.dtype == sum.dtype && values.device == sum.device,
        "accumulate: ", values.numel, " values of ", to_string(values.dtype), " for parameter ", p,
        " on ", name_of(values.device), ", expected ", sum.numel, " of ", to_string(sum.dtype),
        " on ", name_of(sum.device));
  if (s.given[p] == Given::kNothing) {
    std::memcpy(sum.data, values.data, sum.size_bytes());
  } else {
    add_to(sum, values);
  }
  s.given[p] = Given::kAccumulated;
  s.begun = true;
}

Reducer::NoSync::NoSync(Reducer& reducer) : reducer_(reducer) {
  State& s = *reducer_.state_;
  s.throw_if_finished();
  check(!s.any_ready, "no_sync: gradients of step ", s.step,
        " are already ready, expected a scope before the last backward pass of a step");
  ++s.no_sync;
}
Reducer::NoSync::~NoSync() { --reducer_.state_->no_sync; }

void Reducer::mark_unused(ParamId p) {
  State& s = *state_;
  s.refuse_on_gpu("mark_unused");
  s.check_not_ready("mark_unused", p);
  if (s.no_sync == 0) {
    s.set_unused(p);
  }
}

bool Reducer::unused_everywhere(ParamId p) const {
  const State& s = *state_;
  check(s.options.unused == UnusedParameters::kZero,
        "unused_everywhere: unused parameters are an error here, expected UnusedParameters::kZero");
  check(p < s.plan.places.size(), "unused_everywhere: parameter ", p, " is not in the plan of ",
        s.plan.places.size(), " parameters");
  check(!s.unused_everywhere.empty(),
        "unused_everywhere: no step has been concluded yet, expected wait() before it");
  return s.unused_everywhere[p];
}

Ticket Reducer::bucket_ready(BucketId bucket, Gradient gradient) {
  State& s = *state_;
  s.throw_if_finished();
  check(bucket < s.buckets.size(), "bucket_ready: bucket ", bucket, " is not in the plan of ",
        s.buckets.size(), " buckets");
  Progress& p = s.progress[bucket];
  check(p.missing == p.members, "bucket_ready: ", p.members - p.missing, " of ", p.members,
        " parameters of bucket ", bucket, " are already ready in step ", s.step, ", expected none");
  const Gradient own = s.buckets[bucket].gradient();
  const size_t numel = s.plan.buckets[bucket].numel;
  check(gradient.numel == numel && gradient.dtype == own.dtype && gradient.device == own.device,
        "bucket_ready: bucket ", bucket, "'s gradient has ", gradient.numel, " elements of ",
        to_string(gradient.dtype), " on ", name_of(gradient.device), ", expected ", numel, " of ",
        to_string(own.dtype), " on ", name_of(own.device));
  if (s.no_sync > 0) {
    s.begun = true;
    return {.bucket = bucket, .step = s.step};
  }
  if (!s.any_ready) {
    s.begin_stage();
  }
  p.gradient = gradient;
  p.missing = 0;
  const int64_t now = s.now_us();
  for (size_t i = 0; i < s.given.size(); ++i) {
    if (s.plan.places[i].bucket == bucket) {
      s.given[i] = Given::kReady;
      s.ready_us[i] = now;
    }
  }
  s.note_ready(bucket, now);
  return {.bucket = bucket, .step = s.step};
}

StepOutcome Reducer::wait() {
  State& s = *state_;
  s.throw_if_finished();
  check(s.no_sync == 0, "wait: a NoSync lives in step ", s.step,
        ", expected a call after the pass that is exchanged");
  s.complete_gradients();
  StepTrace& times = s.times;
  times.step = s.step;
  times.first_ready_us = s.first_ready_us;
  times.wait_begin_us = s.now_us();
  if (s.gpu != nullptr) {
    return s.end_step_on_device();
  }
  s.drain();
  times.wait_end_us = s.now_us();
  if (s.failure) {
    s.launched = 0;  // nothing is on its way any more
    s.finished = s.failure;
    throw *s.finished;
  }
  if (s.options.unused == UnusedParameters::kZero) {
    s.read_unused();
  }
  const Bucket* bad = s.first_nonfinite();
  times.committed = bad == nullptr;
  s.record();
  s.measure();
  const bool skip = s.options.on_nonfinite == OnNonFinite::kSkip;
  if (bad == nullptr) {
    s.commit();
    for (Bucket& bucket : s.buckets) {
      bucket.keep_payloads();
    }
  } else {
    ++s.commits->words()->skipped;
    s.has_parameters = true;
    if (skip) {
      s.fill_means();
    }
  }
  const uint64_t step = s.step++;
  s.begin_step();
  if (bad != nullptr && !skip) {
    throw NonFiniteGradient(concat(bad->label(), ", step ", step, ": ", bad->what_is_not_finite(),
                                   ", expected finite values; no rank committed anything"));
  }
  return bad == nullptr ? StepOutcome::kCommitted : StepOutcome::kSkipped;
}

void Reducer::deliver(BucketId bucket, Delivery delivery) {
  State& s = *state_;
  s.refuse_on_gpu("deliver");
  s.throw_if_finished();
  check(bucket < s.buckets.size(), "deliver: bucket ", bucket, " is not in the plan of ",
        s.buckets.size(), " buckets");
  check(!s.begun, "deliver: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  s.buckets[bucket].deliver(delivery, s.plan.buckets[bucket].groups);
}

std::span<const GroupPayloads> Reducer::take_payloads(BucketId bucket) {
  State& s = *state_;
  s.throw_if_finished();
  check(bucket < s.buckets.size(), "take_payloads: bucket ", bucket, " is not in the plan of ",
        s.buckets.size(), " buckets");
  check(!s.may_have_left(bucket), "take_payloads: bucket ", bucket, " has left in step ", s.step,
        ", expected a call between wait() and that");
  const std::span<const GroupPayloads> payloads = s.buckets[bucket].payloads();
  check(!payloads.empty(), "take_payloads: bucket ", bucket, " has no payloads, expected ",
        "deliver() before a step that was committed");
  return payloads;
}

ConstResidual Reducer::residual(ParamId p) const {
  State& s = *state_;
  check(p < s.plan.places.size(), "residual: parameter ", p, " is not in the plan of ",
        s.plan.places.size(), " parameters");
  const auto [bucket, offset] = s.plan.places[p];
  const TensorView kept =
      s.buckets[bucket].memory().stored_residual(offset, s.plan.parameters[p].numel());
  if (kept.dtype == DType::kFloat32) {
    return kept.as<float>();
  }
  s.widened = Buffer(kept.numel * sizeof(float), kept.device);
  const std::span<float> widened = s.widened.as<float>();
  if (kept.device.type == DeviceType::kCpu) {
    cpu::widen(kept, widened);
  } else {
    const TensorView to{widened.data(), widened.size(), DType::kFloat32, kept.device};
    cuda::cast(kept, to, s.gpu->caller());
    s.gpu->caller().wait();
  }
  return widened;
}

uint64_t Reducer::committed_steps() const { return state_->counts().committed; }
uint64_t Reducer::skipped_steps() const { return state_->counts().skipped; }
const Trace& Reducer::trace() const { return state_->trace; }

}  // namespace gradwire
