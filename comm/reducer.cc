#include "gradwire/comm/reducer.h"

#include <algorithm>

#include "gradwire/comm/internal/reducer_state.h"

namespace gradwire {
namespace {

bool same_parameters(const Plan& a, const Plan& b) {
  return a.dtype == b.dtype &&
         std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                    b.parameters.end(), [](const ParamInfo& x, const ParamInfo& y) {
                      return x.name == y.name && x.shape == y.shape;
                    });
}

}  // namespace

Reducer::Reducer(Plan plan, Transport& transport, ReducerOptions options)
    : state_(std::make_unique<State>(std::move(plan), transport, options)) {}

Reducer::~Reducer() = default;

const Plan& Reducer::plan() const { return state_->plan; }

Gradient Reducer::gradient(ParamId p) {
  const Plan& plan = state_->plan;
  check(p < plan.places.size(), "gradient: parameter ", p, " is not in the plan of ",
        plan.places.size(), " parameters");
  const auto [bucket, offset] = plan.places[p];
  return state_->buckets[bucket].gradient().subview(offset, plan.parameters[p].numel());
}

void Reducer::grad_ready(ParamId p) {
  State& s = *state_;
  s.throw_if_finished();
  check(p < s.ready.size(), "grad_ready: parameter ", p, " is not in the plan of ", s.ready.size(),
        " parameters");
  check(s.ready[p] == 0, "grad_ready: parameter ", p, " ('", s.plan.parameters[p].name,
        "') is already ready in step ", s.step, ", expected once a step");
  s.ready[p] = 1;
  const BucketId bucket = s.plan.places[p].bucket;
  --s.progress[bucket].missing;
  s.note_ready(bucket, s.now_us());
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
  check(gradient.numel == own.numel && gradient.dtype == own.dtype && gradient.device == own.device,
        "bucket_ready: bucket ", bucket, "'s gradient has ", gradient.numel, " elements of ",
        to_string(gradient.dtype), ", expected ", own.numel, " of ", to_string(own.dtype),
        " in CPU memory");
  p.gradient = gradient;
  p.missing = 0;
  for (size_t i = 0; i < s.ready.size(); ++i) {
    if (s.plan.places[i].bucket == bucket) {
      s.ready[i] = 1;
    }
  }
  s.note_ready(bucket, s.now_us());
  return {.bucket = bucket, .step = s.step};
}

StepOutcome Reducer::wait() {
  State& s = *state_;
  s.throw_if_finished();
  s.check_all_ready();
  StepTrace times;
  times.step = s.step;
  times.first_ready_us = s.first_ready_us;
  times.wait_begin_us = s.now_us();
  s.drain();
  times.wait_end_us = s.now_us();
  if (s.failure) {
    s.launched = 0;  // nothing is on its way any more
    s.finished = s.failure;
    throw *s.finished;
  }
  const Bucket* bad = s.first_nonfinite();
  times.committed = bad == nullptr;
  s.record(times);
  const bool skip = s.options.on_nonfinite == OnNonFinite::kSkip;
  if (bad == nullptr) {
    s.commit();
  } else {
    ++s.skipped;
    if (skip) {
      s.zero_means();
    }
  }
  const uint64_t step = s.step++;
  s.begin_step();
  if (bad != nullptr && !skip) {
    throw NonFiniteGradient(concat(bad->label(), ", step ", step, ": rank ",
                                   bad->report().nonfinite_rank,
                                   "'s gradient holds NaN or infinity, expected finite values; no "
                                   "rank committed anything"));
  }
  return bad == nullptr ? StepOutcome::kCommitted : StepOutcome::kSkipped;
}

ConstResidual Reducer::residual(ParamId p) const {
  const State& s = *state_;
  check(p < s.plan.places.size(), "residual: parameter ", p, " is not in the plan of ",
        s.plan.places.size(), " parameters");
  const auto [bucket, offset] = s.plan.places[p];
  return s.buckets[bucket].residual(offset, s.plan.parameters[p].numel(), s.parity);
}

uint64_t Reducer::committed_steps() const { return state_->committed; }
uint64_t Reducer::skipped_steps() const { return state_->skipped; }
const Trace& Reducer::trace() const { return state_->trace; }

void Reducer::set_plan(Plan plan) {
  State& s = *state_;
  s.throw_if_finished();
  check(!s.any_ready, "set_plan: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  check(
      same_parameters(s.plan, plan),
      "set_plan: the new plan's parameters or dtype differ from the old one's, expected the same");
  s.check_everywhere(plan);
  std::deque<Bucket> buckets = s.make_buckets(plan);
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const size_t numel = plan.parameters[p].numel();
    const auto [old_bucket, old_offset] = s.plan.places[p];
    const auto [bucket, offset] = plan.places[p];
    const Bucket& from = s.buckets[old_bucket];
    buckets[bucket].carry_over(offset, from.residual(old_offset, numel, s.parity), s.parity);
    buckets[bucket].carry_over(offset, from.carried(old_offset, numel), s.parity);
  }
  s.plan = std::move(plan);
  s.buckets = std::move(buckets);
  s.begin_step();
}

}  // namespace gradwire
