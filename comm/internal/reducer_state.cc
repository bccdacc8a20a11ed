#include "gradwire/comm/internal/reducer_state.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "gradwire/comm/stages.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostStreams = 16;

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
  return concat(plan.describe(), "on_nonfinite: ",
                options.on_nonfinite == OnNonFinite::kSkip ? "skip" : "error",
                "\nunused: ", options.unused == UnusedParameters::kZero ? "zero" : "error",
                "\nstreams: ", options.streams,
                "\nlaunch order: ", options.launch_order == LaunchOrder::kAgreed ? "agreed" : "plan",
                "\n");
}

}  // namespace

Reducer::State::State(Plan the_plan, Transport& the_transport, ReducerOptions the_options)
    : plan(std::move(the_plan)),
      transport(&the_transport),
      options(the_options),
      device(the_transport.traits().device),
      trace(options.trace_steps),
      residual_ranks(the_transport.world_size()),
      pool(std::make_shared<ThreadPool>(options.threads)),
      compression(device, pool, "gw-compress") {
  check(options.streams >= 1 && options.streams <= kMostStreams, "reducer: streams is ",
        options.streams, ", must be in [1, ", kMostStreams, "]");
  check_device_options();
  check_everywhere(plan, *transport);
  lanes = make_lanes(*transport);
  rounds = make_rounds(*transport);
  if (device.type == DeviceType::kCuda) {
    gpu = std::make_unique<DevicePipeline>(*options.stream, plan.buckets.size(), lanes.size());
  }
  commits = gpu == nullptr ? make_commits(0, 0) : gpu->state();
  buckets = make_buckets(plan, lanes, 0, commits);
  begin_plan(0);
}

// Peers cannot finish a step that this rank has left, also one of which nothing is on its way yet:
// better they hear of it now than at their deadline.
Reducer::State::~State() {
  if (begun && !finished) {
    transport->abort(reason_of_leaving());
  }
}

std::string Reducer::State::reason_of_leaving() const {
  const auto ready = std::ranges::count(given, Given::kReady);
  std::string reason = concat("rank ", transport->rank(), "'s reducer ended in the middle of step ",
                              step, ", with ", ready, " of ", given.size(), " gradients ready");
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

void Reducer::State::check_everywhere(const Plan& candidate, Transport& over) {
  check_plan(candidate);
  over.agree("plan", agreement_text(candidate, options), compression.context);
}

std::vector<Lane> Reducer::State::make_lanes(Transport& over) {
  std::vector<Lane> made_lanes;
  for (int s = 0; s < options.streams; ++s) {
    Lane& lane = made_lanes.emplace_back();
    lane.own = s == 0 ? nullptr : over.split(0);
    lane.transport = s == 0 ? &over : lane.own.get();
    lane.groups = std::make_unique<SubGroups>(*lane.transport);
    lane.worker = std::make_unique<Worker>(device, pool, concat("gw-exchange-", s));
  }
  return made_lanes;
}

std::unique_ptr<ReadyRounds> Reducer::State::make_rounds(Transport& over) {
  if (options.launch_order == LaunchOrder::kPlan) {
    return nullptr;
  }
  return std::make_unique<ReadyRounds>(
      over.split(0), pool,
      ReadyRounds::Callbacks{
          .leave = [this](BucketId b) { launch(b); },
          .fail = [this](std::string_view missing, std::string_view what,
                         int peer) { fail_round(missing, what, peer); }});
}

int64_t Reducer::State::now_us() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - made).count();
}

std::shared_ptr<DeviceState> Reducer::State::make_commits(uint64_t committed,
                                                          uint64_t skipped) const {
  if (gpu != nullptr) {
    return gpu->make_state(committed, skipped);
  }
  auto shared = std::make_shared<DeviceState>(Device{});
  *shared->words() = {.step = static_cast<uint32_t>(committed),
                      .skipped = static_cast<uint32_t>(skipped)};
  return shared;
}

void Reducer::State::take_gradients(std::deque<Bucket>& into) {
  for (size_t b = 0; b < into.size(); ++b) {
    into[b].take_gradient(buckets[b]);
  }
}

void Reducer::State::adopt(std::deque<Bucket> by, std::shared_ptr<DeviceState> shared) {
  buckets = std::move(by);
  commits = std::move(shared);
  if (gpu != nullptr) {
    gpu->replace_state(commits, buckets.size());
  }
}

void Reducer::State::begin_step() {
  launched = 0;
  retired.clear();
  any_ready = false;
  begun = false;
  given.assign(plan.parameters.size(), Given::kNothing);
  reached.assign(plan.parameters.size(), 1);
  ready_us.assign(plan.parameters.size(), 0);
  progress.assign(buckets.size(), {});
  for (const Plan::Place& place : plan.places) {
    ++progress[place.bucket].missing;
    ++progress[place.bucket].members;
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    progress[b].gradient = buckets[b].gradient();
    progress[b].trace.bucket = static_cast<BucketId>(b);
    progress[b].trace.stream = static_cast<int>(b % lanes.size());
  }
  if (rounds != nullptr) {
    rounds->begin_step(buckets.size());
  }
}

void Reducer::State::throw_if_finished() const {
  process.check_here("reducer");
  if (finished) {
    throw *finished;
  }
}

void Reducer::State::note_ready(BucketId b, int64_t now) {
  if (!any_ready) {
    any_ready = begun = true;
    first_ready_us = now;
  }
  if (progress[b].missing == 0) {
    progress[b].trace.ready_us = now;
    if (rounds != nullptr) {
      ++launched;
      rounds->tell(b);
    } else {
      launch_full_buckets();
    }
  }
}

// The order of leaving is the plan's on every rank, whatever the order of readiness.
void Reducer::State::launch_full_buckets() {
  while (launched < buckets.size() && progress[launched].missing == 0) {
    launch(launched++);
  }
}

// The order of calls is the same on every rank. One worker compresses; each lane takes its buckets
// (those of every streams-th number) in that same order. Where no bucket of the plan has anything
// to compress they go to their lanes at once: a thread less to wake.
void Reducer::State::launch(size_t b) {
  if (gpu != nullptr) {
    compress_bucket(b);  // which enqueues
  } else {
    Stream& first = compresses_first ? *compression.stream : *lane_of(b).worker->stream;
    first.enqueue([this, b] { compress_bucket(b); });
  }
}

bool Reducer::State::may_have_left(size_t b) const {
  return rounds == nullptr ? b < launched : progress[b].missing == 0;
}

void Reducer::State::compress_bucket(size_t b) {
  guarded(b, [this, b] {
    BucketTrace& times_of = progress[b].trace;
    times_of.begin_us = now_us();
    if (gpu != nullptr) {
      gpu->begin_bucket(b, *compression.stream);
    }
    const bool in_lane = gpu == nullptr && !compresses_first;
    Worker& worker = in_lane ? *lane_of(b).worker : compression;
    buckets[b].compress(progress[b].gradient, worker.context);
    times_of.compressed_us = now_us();
    if (gpu != nullptr) {
      gpu->hand_over(b, *compression.stream, *lane_of(b).worker->stream);
    }
    if (gpu == nullptr && !in_lane) {
      lane_of(b).worker->stream->enqueue([this, b] { exchange_bucket(b); });
    } else {
      exchange_bucket(b);
    }
  });
}

void Reducer::State::exchange_bucket(size_t b) {
  guarded(b, [this, b] {
    BucketTrace& times_of = progress[b].trace;
    times_of.exchange_us = now_us();
    Context& context = lane_of(b).worker->context;
    buckets[b].exchange(context);
    buckets[b].sample_union();
    buckets[b].add_to_estimates(context);
    times_of.end_us = now_us();
  });
}

// The first failure of any bucket ends the group for everyone, with the words of the rank that saw
// it: a reason that came from there already names its bucket.
void Reducer::State::fail(size_t b, std::string_view what, int peer) {
  const std::string& label = buckets[b].label();
  const bool labelled = what.find(label) != std::string_view::npos;
  const auto elapsed_ms = (now_us() - progress[b].trace.begin_us) / 1000;
  fail_step(labelled ? std::string(what)
                     : concat(label, ", step ", step, ", rank ", transport->rank(), ", after ",
                              elapsed_ms, " ms: ", what),
            peer);
}

void Reducer::State::fail_round(std::string_view missing, std::string_view what, int peer) {
  const std::string where = concat(", step ", step, ", rank ");
  const bool told = what.find(where) != std::string_view::npos;  // by a rank that saw it
  const auto elapsed_ms = (now_us() - first_ready_us) / 1000;
  fail_step(told ? std::string(what)
                 : concat("ready buckets", where, transport->rank(), ", after ", elapsed_ms, " ms: ",
                          missing.empty() ? "" : concat("waits for ", missing, "; "), what),
            peer);
}

void Reducer::State::fail_step(std::string reason, int peer) {
  std::lock_guard lock(failing);
  if (failure) {
    return;  // what followed from it
  }
  failure.emplace(std::move(reason), peer);
  failed = true;
  if (rounds != nullptr) {
    rounds->stop();
  }
  transport->abort(failure->what());
}

void Reducer::State::drain() {
  const auto empty = [this](auto& queue) {
    try {
      queue.wait();
    } catch (const std::exception& error) {
      std::lock_guard lock(failing);
      if (!failure) {
        failure.emplace(error.what());
      }
    }
  };
  if (rounds != nullptr) {
    empty(*rounds);  // first: they feed the compression, which feeds the lanes
  }
  empty(*compression.stream);
  for (Lane& lane : lanes) {
    empty(*lane.worker->stream);
  }
}

void Reducer::State::record() {
  const auto since_wait = [this](int64_t begin_us, int64_t end_us) {
    return std::max<int64_t>(0, end_us - std::max(begin_us, times.wait_begin_us));
  };
  times.agreement = rounds == nullptr ? RoundTrace{} : rounds->trace();
  times.buckets.clear();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const ExchangeReport& report = buckets[b].report();
    BucketTrace bucket = progress[b].trace;
    bucket.exposed_us = since_wait(bucket.begin_us, bucket.compressed_us) +
                        since_wait(bucket.exchange_us, bucket.end_us);
    bucket.hidden_us = bucket.compressed_us - bucket.begin_us + bucket.end_us - bucket.exchange_us -
                       bucket.exposed_us;
    bucket.transfer_us = report.transfer_us;
    bucket.codec_us = bucket.compressed_us - bucket.begin_us + report.codec_us;
    bucket.bytes_sent = report.bytes_sent;
    bucket.bytes_received = report.bytes_received;
    bucket.predicted_bytes_sent = report.predicted_bytes_sent;
    times.buckets.push_back(bucket);
  }
  trace.add(times);
}

// Every rank has seen every rank's flags, and has the same means, so all decide alike. A rank that
// is to blame comes before sums that overflow.
const Bucket* Reducer::State::first_nonfinite() const {
  const Bucket* found = nullptr;
  for (const Bucket& bucket : buckets) {
    if (bucket.report().nonfinite_rank >= 0) {
      return &bucket;
    }
    if (found == nullptr && (!bucket.report().finite() || bucket.estimates_overflow())) {
      found = &bucket;
    }
  }
  return found;
}

void Reducer::State::commit() {
  cuda::conclude(*commits->words(), false);
  for (Bucket& bucket : buckets) {
    bucket.commit();
  }
  has_parameters = true;
}

float Reducer::State::left_out_value() const {
  return options.left_out == MeansLeftOut::kNaN ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
}

void Reducer::State::fill_means() const {
  for (const Progress& p : progress) {
    dispatch(p.gradient.dtype, [&]<class T>() {
      std::ranges::fill(p.gradient.as<T>(), from_float<T>(left_out_value()));
    });
  }
}

}  // namespace gradwire
