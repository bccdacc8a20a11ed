#include "gradwire/comm/internal/reducer_state.h"

#include <algorithm>
#include <cstring>

#include "gradwire/comm/internal/agree.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNamedParameters = 5;  // in a message about missing ones

void check_plan(const Plan& plan) {
  check(!plan.buckets.empty(), "reducer: the plan has 0 buckets, expected at least one");
  check(plan.places.size() == plan.parameters.size(), "reducer: the plan places ",
        plan.places.size(), " of ", plan.parameters.size(), " parameters, expected all");
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const auto [bucket, offset] = plan.places[p];
    const size_t numel = plan.parameters[p].numel();
    check(bucket < plan.buckets.size() && offset <= plan.buckets[bucket].numel &&
              numel <= plan.buckets[bucket].numel - offset,
          "reducer: parameter '", plan.parameters[p].name, "' lies at ", offset, " of bucket ",
          bucket, ", outside of the plan");
  }
}

// What ranks must agree on before the first payload travels.
std::string agreement_text(const Plan& plan, const ReducerOptions& options) {
  return plan.describe() + (options.on_nonfinite == OnNonFinite::kSkip ? "on_nonfinite: skip\n"
                                                                       : "on_nonfinite: error\n");
}

}  // namespace

Reducer::State::State(Plan the_plan, Transport& the_transport, ReducerOptions the_options)
    : plan(std::move(the_plan)),
      transport(the_transport),
      options(the_options),
      trace(options.trace_steps),
      stream(make_cpu_stream({.threads = options.threads, .name = "gw-reducer"})),
      context{*stream, workspace} {
  check_everywhere(plan);
  buckets = make_buckets(plan);
  begin_step();
}

Reducer::State::~State() {
  // Peers cannot finish a step this rank has left; better they hear of it now.
  if (launched > 0) {
    transport.abort(
        concat("rank ", transport.rank(), "'s reducer ended in the middle of step ", step));
  }
}

void Reducer::State::check_everywhere(const Plan& candidate) {
  check_plan(candidate);
  check_agreement("plan", agreement_text(candidate, options), transport, context);
}

int64_t Reducer::State::now_us() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - made).count();
}

std::deque<Bucket> Reducer::State::make_buckets(const Plan& from) {
  std::deque<Bucket> made_buckets;
  const uint64_t fingerprint = from.fingerprint();
  for (BucketId b = 0; b < from.buckets.size(); ++b) {
    made_buckets.emplace_back(from, fingerprint, b, transport, static_cast<uint32_t>(committed));
  }
  return made_buckets;
}

void Reducer::State::begin_step() {
  launched = 0;
  any_ready = false;
  ready.assign(plan.parameters.size(), 0);
  progress.assign(buckets.size(), {});
  for (const Plan::Place& place : plan.places) {
    ++progress[place.bucket].missing;
    ++progress[place.bucket].members;
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    progress[b].gradient = buckets[b].gradient();
    progress[b].trace.bucket = static_cast<BucketId>(b);
  }
}

void Reducer::State::throw_if_finished() const {
  if (finished) {
    throw *finished;
  }
}

void Reducer::State::note_ready(BucketId b, int64_t now) {
  if (!any_ready) {
    any_ready = true;
    first_ready_us = now;
  }
  if (progress[b].missing == 0) {
    progress[b].trace.ready_us = now;
    launch_full_buckets();
  }
}

// The order of leaving is the plan's on every rank, whatever the order of readiness.
void Reducer::State::launch_full_buckets() {
  while (launched < buckets.size() && progress[launched].missing == 0) {
    stream->enqueue([this, b = launched] { run_bucket(b); });
    ++launched;
  }
}

void Reducer::State::run_bucket(size_t b) {
  if (failure) {
    return;
  }
  try {
    Progress& p = progress[b];
    const BucketTimes times =
        buckets[b].run(p.gradient, parity, [this] { return now_us(); }, context);
    p.trace.begin_us = times.begin_us;
    p.trace.compressed_us = times.compressed_us;
    p.trace.end_us = times.end_us;
  } catch (const TransportError& error) {
    fail(b, error.what(), error.peer());
  } catch (const std::exception& error) {
    fail(b, error.what(), -1);
  }
}

// The first failure of any bucket ends the group for everyone, with the words of the rank that saw
// it: a reason that came from there already names its bucket.
void Reducer::State::fail(size_t b, std::string_view what, int peer) {
  const std::string& label = buckets[b].label();
  const bool labelled = what.find(label) != std::string_view::npos;
  failure.emplace(labelled ? std::string(what) : concat(label, ", step ", step, ": ", what), peer);
  transport.abort(failure->what());
}

void Reducer::State::check_all_ready() const {
  const auto missing = std::count(ready.begin(), ready.end(), 0);
  if (missing == 0) {
    return;
  }
  std::string names;
  size_t named = 0;
  for (size_t p = 0; p < ready.size() && named < kNamedParameters; ++p) {
    if (ready[p] == 0) {
      names += concat(named++ == 0 ? "" : ", ", "'", plan.parameters[p].name, "'");
    }
  }
  const bool more = static_cast<size_t>(missing) > named;
  throw InvalidArgument(concat("wait: ", missing, " of ", ready.size(),
                               " parameters have no gradient in step ", step, ": ", names,
                               more ? ", ..." : "", ", expected grad_ready() for each"));
}

void Reducer::State::drain() {
  try {
    stream->wait();
  } catch (const std::exception& error) {
    if (!failure) {
      failure.emplace(error.what());
    }
  }
}

void Reducer::State::record(StepTrace& times) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    const ExchangeReport& report = buckets[b].report();
    BucketTrace bucket = progress[b].trace;
    const int64_t exposed_from = std::max(bucket.begin_us, times.wait_begin_us);
    bucket.exposed_us = std::max<int64_t>(0, bucket.end_us - exposed_from);
    bucket.hidden_us = bucket.end_us - bucket.begin_us - bucket.exposed_us;
    bucket.transfer_us = report.transfer_us;
    bucket.codec_us = bucket.compressed_us - bucket.begin_us + report.codec_us;
    bucket.bytes_sent = report.bytes_sent;
    bucket.bytes_received = report.bytes_received;
    bucket.predicted_bytes_sent = report.predicted_bytes_sent;
    times.buckets.push_back(bucket);
  }
  trace.add(times);
}

// Every rank has seen every rank's flags, so all decide alike.
const Bucket* Reducer::State::first_nonfinite() const {
  const auto found = std::find_if(buckets.begin(), buckets.end(), [](const Bucket& bucket) {
    return bucket.report().nonfinite_rank >= 0;
  });
  return found == buckets.end() ? nullptr : &*found;
}

void Reducer::State::commit() {
  for (Bucket& bucket : buckets) {
    bucket.commit();
  }
  parity = 1 - parity;
  ++committed;
}

void Reducer::State::zero_means() {
  for (const Progress& p : progress) {
    std::memset(p.gradient.data, 0, p.gradient.size_bytes());
  }
}

}  // namespace gradwire
