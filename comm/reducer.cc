#include "gradwire/comm/reducer.h"

#include "gradwire/comm/internal/reducer_checkpoint.h"
#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire {
namespace {

// `what` stands in front of the sizes, `has` is expected to be like `should`.
void check_like(std::string_view what, ConstGradient has, ConstGradient should) {
  check(has.numel == should.numel && has.dtype == should.dtype && has.device == should.device, what,
        has.numel, " elements of ", to_string(has.dtype), " on ", name_of(has.device),
        ", expected ", should.numel, " of ", to_string(should.dtype), " on ",
        name_of(should.device));
}

}  // namespace

Reducer::Reducer(Plan plan, Transport& transport, ReducerOptions options)
    : state_(std::make_unique<State>(std::move(plan), transport, options)) {}

Reducer::~Reducer() {
  const OfProcess process = state_->process;
  process.let_go(state_);
}

const Plan& Reducer::plan() const { return state_->epoch.plan; }
Gradient Reducer::gradient(ParamId p) { return state_->epoch.gradient("gradient", p); }

void Reducer::grad_ready(ParamId p) {
  State& s = *state_;
  s.check_not_ready("grad_ready", p);
  s.no_sync > 0 ? void(s.gradients.add(p)) : s.set_ready(p);
}

void Reducer::accumulate(ParamId p, ConstGradient values) {
  State& s = *state_;
  s.check_not_ready("accumulate", p);
  const Gradient sum = gradient(p);
  check_like(concat("accumulate: parameter ", p, " is given "), values, sum);
  s.gradients.add(p) ? s.writer.add(sum, values) : s.writer.assign(sum, values);
}

Reducer::NoSync::NoSync(Reducer& reducer) : reducer_(reducer) {
  State& s = *reducer_.state_;
  s.throw_if_finished();
  check(!s.gradients.any_ready(), "no_sync: gradients of step ", s.step,
        " are already ready, expected a scope before the last backward pass of a step");
  ++s.no_sync;
}
Reducer::NoSync::~NoSync() { --reducer_.state_->no_sync; }

void Reducer::mark_unused(ParamId p) {
  State& s = *state_;
  s.check_not_ready("mark_unused", p);
  if (s.no_sync == 0) {
    s.set_unused(p);
  }
}

bool Reducer::unused_everywhere(ParamId p) const {
  State& s = *state_;
  check(s.options.unused == UnusedParameters::kZero,
        "unused_everywhere: unused parameters are an error here, expected UnusedParameters::kZero");
  (void)s.epoch.place("unused_everywhere", p);
  check(s.reached->is_concluded(),
        "unused_everywhere: no step has been concluded yet, expected wait() before it");
  return !s.reached->by_any(p, s.options.stream);
}

Ticket Reducer::bucket_ready(BucketId bucket, Gradient gradient) {
  State& s = *state_;
  Gradient own = s.bucket_of("bucket_ready", bucket).gradient();
  s.gradients.check_none_ready("bucket_ready", bucket);
  own.numel = plan().buckets[bucket].numel;
  check_like(concat("bucket_ready: bucket ", bucket, "'s gradient has "), gradient, own);
  s.no_sync > 0 ? s.gradients.begin() : s.set_bucket_ready(bucket, gradient);
  return {.bucket = bucket, .step = s.step};
}

StepOutcome Reducer::wait() { return state_->wait(); }
void Reducer::synchronize() { state_->synchronize(); }

void Reducer::deliver(BucketId bucket, Delivery delivery) {
  State& s = *state_;
  s.refuse_on_gpu("deliver", "messages there are wiped behind their use");
  Bucket& of = s.bucket_of("deliver", bucket);
  s.gradients.check_not_begun("deliver");
  of.deliver(delivery, plan().buckets[bucket].groups);
}

std::span<const GroupPayloads> Reducer::take_payloads(BucketId bucket) {
  State& s = *state_;
  Bucket& of = s.bucket_of("take_payloads", bucket);
  check(!s.pipeline.may_have_left(bucket), "take_payloads: bucket ", bucket, " has left in step ",
        s.step, ", expected a call between wait() and that");
  const std::span<const GroupPayloads> payloads = of.payloads();
  check(!payloads.empty(), "take_payloads: bucket ", bucket, " has no payloads, expected ",
        "deliver() before a step that was committed");
  return payloads;
}

ConstResidual Reducer::residual(ParamId p) const {
  State& s = *state_;
  const Epoch::Place at = s.epoch.place("residual", p);
  const TensorView kept = at.feedback.stored(at.region);
  if (kept.dtype == DType::kFloat32) {
    return kept.as<float>();
  }
  s.widened = Buffer(kept.numel * sizeof(float), kept.device);
  const std::span<float> widened = s.widened.as<float>();
  if (kept.device.type == DeviceType::kCpu) {
    cpu::widen(kept, widened);
  } else {
    const TensorView to{widened.data(), widened.size(), DType::kFloat32, kept.device};
    cuda::cast(kept, to, *s.options.stream);
    s.options.stream->wait();
  }
  return widened;
}

bool Reducer::copy_residual(ParamId p, std::span<float> to) const {
  State& s = *state_;
  check(s.on_gpu(), "copy_residual: gradients are in CPU memory, expected a GPU: residual() is "
                    "there at once");
  const Epoch::Place at = s.epoch.place("copy_residual", p);
  check(to.size() == at.numel, "copy_residual: to has ", to.size(), " elements, must have the ",
        at.numel, " of parameter ", p);
  return at.feedback.copy_residual(at.region, to, *s.options.stream);
}

uint64_t Reducer::committed_steps() const { return state_->epoch.words().step; }
uint64_t Reducer::skipped_steps() const { return state_->epoch.words().skipped; }
const Trace& Reducer::trace() const { return state_->trace; }

std::vector<GradientTiming> Reducer::gradient_timings() const {
  return state_->measured.timings(plan());
}

void Reducer::replan(ReplanOptions options) {
  State& s = *state_;
  s.check_between_steps("replan");
  check(s.measured.any(),
        "replan: 0 steps since the last plan, expected at least one to measure");
  set_plan(replanned(s.epoch, s.measured, std::move(options), s.pipeline));
}

void Reducer::set_plan(Plan plan) { state_->set_plan(std::move(plan)); }

void Reducer::save(std::ostream& out) const {
  State& s = *state_;
  if (!s.pipeline.failure().is_reported()) {
    s.gradients.check_not_begun("save");
  }
  if (!s.gradients.begun()) {
    s.begin_stage();  // what is learned is of the specs of the next step, as in load()
  }
  save_checkpoint(out, s.epoch, s.pipeline.transport());
}

void Reducer::load(const OpenCheckpoint& open) { state_->load(open); }

Reducer::Rebuilt Reducer::rebuild(Transport& survivors) {
  state_->process.check_here("reducer");
  state_->refuse_on_gpu("rebuild", "no transport of GPU memory goes on without a rank");
  return state_->rebuild(survivors);
}

}  // namespace gradwire
