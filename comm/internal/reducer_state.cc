#include "gradwire/comm/internal/reducer_state.h"

#include "gradwire/comm/internal/device_faults.h"
#include "gradwire/comm/internal/rebuild.h"
#include "gradwire/comm/internal/reducer_agreement.h"
#include "gradwire/comm/internal/reducer_checkpoint.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/core/device_name.h"

namespace gradwire {
Reducer::State::State(Plan plan, Transport& transport, ReducerOptions the_options)
    : options(checked(the_options, transport.traits().device)),
      trace(options.trace_steps),
      writer(options.stream),
      pipeline(transport, options) {
  agree_on(plan, options, transport, pipeline.context());
  pipeline.move_to(transport, pipeline.open(transport));
  adopt(make_epoch(plan, pipeline.lanes(), {.stream = options.stream}));
  make_reached_bits();
}

void Reducer::State::make_reached_bits() {
  reached.reset();
  if (options.unused == UnusedParameters::kZero) {
    reached.emplace(pipeline.transport(), epoch.plan.parameters.size());
  }
}

// Also of a step of which nothing is on its way yet: better they hear of it now than at their deadline.
Reducer::State::~State() {
  if (gradients.begun() && !pipeline.failure().is_reported()) {
    pipeline.transport().abort(reason_of_leaving());
  }
}

std::string Reducer::State::reason_of_leaving() const {
  std::string reason =
      concat("rank ", pipeline.transport().rank(), "'s reducer ended in the middle of step ", step,
             ", with ", gradients.how_many_ready(), " gradients ready");
  if (std::uncaught_exceptions() > exceptions_before) {
    return reason + ", while an exception left the code that was using it";
  }
  if (const std::exception_ptr caught = std::current_exception()) {
    try {
      std::rethrow_exception(caught);
    } catch (const std::exception& error) {
      return concat(reason, ", behind an exception: ", error.what());
    } catch (...) {
      return reason + ", behind an exception";
    }
  }
  return reason + ", before wait()";
}

void Reducer::State::throw_if_finished() const {
  process.check_here("reducer");
  pipeline.failure().throw_if_reported();
}

void Reducer::State::check_not_ready(std::string_view call, ParamId p) const {
  throw_if_finished();
  gradients.check_not_ready(call, p);
}

void Reducer::State::check_between_steps(std::string_view call) const {
  throw_if_finished();
  gradients.check_not_begun(call);
}

void Reducer::State::refuse_on_gpu(std::string_view call, std::string_view because) const {
  check(!on_gpu(), call, ": gradients are on ", name_of(pipeline.transport().traits().device),
        ", expected CPU memory: ", because);
}

Bucket& Reducer::State::bucket_of(std::string_view call, BucketId b) {
  throw_if_finished();
  check(b < epoch.buckets.size(), call, ": bucket ", b, " is not in the plan of ",
        epoch.buckets.size(), " buckets");
  return epoch.buckets[b];
}

void Reducer::State::set_ready(ParamId p) {
  if (!gradients.any_ready()) {
    begin_stage();
  }
  const int64_t now = pipeline.now_us();
  const BucketId b = epoch.plan.places[p].bucket;
  if (gradients.set_ready(p, now)) {
    pipeline.leave(b, epoch.buckets[b].gradient(), now);
  }
}

void Reducer::State::set_unused(ParamId p) {
  if (gradients.set_unused(p)) {
    writer.clear(epoch.gradient("mark_unused", p));
  }
  set_ready(p);
}

void Reducer::State::set_bucket_ready(BucketId b, Gradient gradient) {
  if (!gradients.any_ready()) {
    begin_stage();
  }
  const int64_t now = pipeline.now_us();
  gradients.set_bucket_ready(b, now);
  pipeline.leave(b, gradient, now);
}

// Every rank exchanges every bucket, so each decides alone which of its gradients are zero.
void Reducer::State::complete_gradients() {
  if (options.unused == UnusedParameters::kError) {
    gradients.check_all_ready();
    return;
  }
  check(!on_gpu() || !cuda::is_capturing(*options.stream), "reducer: step ", step,
        " is captured, but ranks tell each other of unused parameters through the host; expected "
        "UnusedParameters::kError");
  for (ParamId p = 0; p < epoch.plan.parameters.size(); ++p) {
    if (!gradients.is_ready(p)) {
      set_unused(p);
    }
  }
  pipeline.behind_buckets([this](Lane& lane) { reached->exchange(gradients.reached(), lane); });
}

StepOutcome Reducer::State::wait() {
  throw_if_finished();
  check(no_sync == 0, "wait: a NoSync lives in step ", step,
        ", expected a call after the pass that is exchanged");
  complete_gradients();
  times.step = step;
  times.first_ready_us = gradients.first_ready_us();
  times.wait_begin_us = pipeline.now_us();
  pipeline.end_step();
  if (reached) {
    reached->conclude();
  }
  times.wait_end_us = pipeline.now_us();
  const Bucket* const bad = on_gpu() ? nullptr : epoch.first_nonfinite();
  times.committed = bad == nullptr && !on_gpu();  // there nobody knows yet
  pipeline.record(times);
  trace.add(times);
  measured.add(gradients, epoch.plan, times);
  if (!on_gpu()) {
    conclude(bad);
  }
  const uint64_t ended = step++;
  begin_step();
  if (on_gpu()) {
    throw_known_faults(epoch, pipeline);
    return StepOutcome::kEnqueued;
  }
  if (bad != nullptr && options.on_nonfinite == OnNonFinite::kError) {
    throw NonFiniteGradient(concat(bad->label(), ", step ", ended, ": ", bad->what_is_not_finite(),
                                   ", expected finite values; no rank committed anything"));
  }
  return bad == nullptr ? StepOutcome::kCommitted : StepOutcome::kSkipped;
}

void Reducer::State::conclude(const Bucket* bad) {
  has_parameters = true;
  if (bad == nullptr) {
    epoch.commit();
    for (Bucket& bucket : epoch.buckets) {
      bucket.keep_payloads();
    }
    return;
  }
  ++epoch.state->words()->skipped;
  if (options.on_nonfinite == OnNonFinite::kSkip) {
    pipeline.fill_means();
  }
}

void Reducer::State::adopt(Epoch next) {
  epoch = std::move(next);
  begin_plan();
}

void Reducer::State::begin_plan() {
  measured.begin_plan(epoch.plan.parameters.size(), frames_sent(pipeline.lanes()));
  begin_step();
}

void Reducer::State::begin_step() {
  retired.clear();
  gradients.begin_step(epoch.plan, step);
  pipeline.begin_step(epoch, step);
}

void Reducer::State::begin_stage() {
  const uint64_t changes_at = epoch.changes_at;
  if (changes_at == kNeverChanges) {
    return;
  }
  check(!on_gpu() || !cuda::is_capturing(*options.stream), "reducer: step ", step,
        " is captured, but its plan has specs with start= or warmup=, which change behind ",
        changes_at,
        " committed steps; expected to capture a step when they have changed for the "
        "last time");
  if ((on_gpu() ? step : epoch.words().step) < changes_at) {
    return;
  }
  const cuda::StepWords now = epoch.words();
  if (now.step < changes_at) {
    return;
  }
  Epoch next = make_epoch(epoch.plan, pipeline.lanes(), {now.step, now.skipped, options.stream});
  carry_over(epoch, next);
  for (size_t b = 0; b < next.buckets.size(); ++b) {
    next.buckets[b].take_over(epoch.buckets[b]);
  }
  if (!on_gpu()) {
    retired = std::move(epoch.buckets);
  }
  epoch = std::move(next);
  measured.begin_stage(frames_sent(pipeline.lanes()));
  pipeline.begin_step(epoch, step);
}

void Reducer::State::synchronize() {
  throw_if_finished();
  if (on_gpu()) {
    gradients.check_not_begun("synchronize");
    throw_faults(epoch, pipeline);
  }
}

void Reducer::State::set_plan(Plan plan) {
  check_between_steps("set_plan");
  check_same_parameters(epoch.plan, plan);
  agree_on(plan, options, pipeline.transport(), pipeline.context());
  const cuda::StepWords now = epoch.words();
  synchronize();
  Epoch next = make_epoch(plan, pipeline.lanes(), {now.step, now.skipped, options.stream});
  for (const Bucket& old : epoch.buckets) {
    old.release_scratch();  // else the old plan's memory is all there beside the new one's
  }
  carry_over(epoch, next);
  adopt(std::move(next));
}

void Reducer::State::load(const OpenCheckpoint& open) {
  check_between_steps("load");
  Loaded loaded = load_checkpoint(open, epoch, pipeline);
  take_gradients(epoch, loaded.epoch);
  has_parameters = true;
  step = loaded.header.committed + loaded.header.skipped;
  adopt(std::move(loaded.epoch));
}

Reducer::Rebuilt Reducer::State::rebuild(Transport& survivors) {
  pipeline.abandon_step();
  const cuda::StepWords words = epoch.words();
  Recovery found = recover(epoch, pipeline, {words.step, words.skipped, has_parameters}, survivors);
  has_parameters = !found.rebuilt.behind;
  step = found.concluded;
  epoch = std::move(found.epoch);
  pipeline.move_to(survivors, std::move(found.links));
  begin_plan();
  make_reached_bits();
  return found.rebuilt;
}

}  // namespace gradwire
