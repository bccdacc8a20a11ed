#include "gradwire/comm/internal/bucket_pipeline.h"

#include <algorithm>
#include <limits>

namespace gradwire {

BucketPipeline::BucketPipeline(Transport& transport, const ReducerOptions& options)
    : transport_(&transport),
      options_(options),
      pool_(std::make_shared<ThreadPool>(options.threads)),
      compression_(transport.traits().device, pool_, "gw-compress"),
      gpu_(options.stream == nullptr ? nullptr
                                     : std::make_unique<DevicePipeline>(*options.stream)) {}

// Rounds feed the compression, which feeds the lanes, whose failures stop rounds: all are over before
// one of them goes.
BucketPipeline::~BucketPipeline() {
  if (links_.rounds != nullptr) {
    links_.rounds->stop();
    drain();
  }
}

BucketPipeline::Links BucketPipeline::open(Transport& over) {
  Links links{.rounds = nullptr, .lanes = make_lanes(over, options_.streams, pool_)};
  if (options_.launch_order == LaunchOrder::kAgreed) {
    links.rounds = std::make_unique<ReadyRounds>(
        over.split(0), pool_,
        ReadyRounds::Callbacks{
            .leave = [this](BucketId b) { launch(b); },
            .fail = [this](std::string_view missing, std::string_view what,
                           int peer) { fail_round(missing, what, peer); }});
  }
  return links;
}

void BucketPipeline::move_to(Transport& over, Links links) {
  links_ = std::move(links);
  transport_ = &over;
  failure_.forget();
}

int64_t BucketPipeline::now_us() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               made_)
      .count();
}

void BucketPipeline::begin_step(Epoch& epoch, uint64_t step) {
  const std::deque<Bucket>& buckets = epoch.buckets;
  epoch_ = &epoch;
  step_ = step;
  left_ = 0;
  compresses_first_ = std::ranges::any_of(buckets, &Bucket::compresses_first);
  progress_.assign(buckets.size(), {});
  for (BucketId b = 0; b < buckets.size(); ++b) {
    progress_[b].gradient = buckets[b].gradient();
    progress_[b].trace.bucket = b;
    progress_[b].trace.stream = static_cast<int>(b % links_.lanes.size());
  }
  if (links_.rounds != nullptr) {
    links_.rounds->begin_step(buckets.size());
  }
  if (gpu_ != nullptr) {
    gpu_->begin_step(epoch.state, buckets.size(), links_.lanes.size());
  }
}

// The order of leaving is the same on every rank, whatever the order of readiness.
void BucketPipeline::leave(BucketId b, Gradient gradient, int64_t now_us) {
  Progress& own = progress_[b];
  own.ready = true;
  own.gradient = gradient;
  own.trace.ready_us = now_us;
  if (links_.rounds != nullptr) {
    if (left_++ == 0) {  // read by the rounds' thread from here on
      first_told_us_ = now_us;
    }
    links_.rounds->tell(b);
    return;
  }
  while (left_ < progress_.size() && progress_[left_].ready) {
    launch(static_cast<BucketId>(left_++));
  }
}

bool BucketPipeline::may_have_left(BucketId b) const {
  return links_.rounds == nullptr ? b < left_ : progress_[b].ready;
}

// One worker compresses; each lane takes its buckets (those of every streams-th number) in that same
// order.
void BucketPipeline::launch(BucketId b) {
  first_worker(b).run([this, b] { compress(b); });
}

void BucketPipeline::compress(BucketId b) {
  guarded(b, [this, b] {
    BucketTrace& times = progress_[b].trace;
    times.begin_us = now_us();
    Worker &first = first_worker(b), &lane = *lane_of(b).worker;
    if (gpu_ != nullptr) {
      gpu_->begin_bucket(b, *first.stream);
    }
    epoch_->buckets[b].compress(progress_[b].gradient, first.context);
    times.compressed_us = now_us();
    if (gpu_ != nullptr) {
      gpu_->hand_over(b, *first.stream, *lane.stream);
    }
    if (&first == &lane) {
      exchange(b);
    } else {
      lane.run([this, b] { exchange(b); });
    }
  });
}

void BucketPipeline::exchange(BucketId b) {
  guarded(b, [this, b] {
    BucketTrace& times = progress_[b].trace;
    times.exchange_us = now_us();
    epoch_->buckets[b].exchange(lane_of(b).worker->context);
    times.end_us = now_us();
  });
}

// The calls of a lane have one order. Behind the rounds, which enqueue buckets there. A failure
// belongs to the last bucket, for messages: it is what the caller waits for.
void BucketPipeline::behind_buckets(std::function<void(Lane&)> work) {
  last_ = std::move(work);
  const auto enqueue = [this] {
    compression_.run([this] {
      links_.lanes[0].worker->run([this] {
        guarded(static_cast<BucketId>(progress_.size() - 1), [this] { last_(links_.lanes[0]); });
      });
    });
  };
  if (links_.rounds == nullptr) {
    enqueue();
  } else {
    links_.rounds->enqueue(enqueue);
  }
}

void BucketPipeline::end_step() {
  if (gpu_ == nullptr) {
    drain();
  } else {
    guarded(static_cast<BucketId>(progress_.size() - 1), [this] { conclude_on_gpu(); });
  }
  left_ = failure_.is_set() ? 0 : left_;  // nothing is on its way any more
  failure_.report();
}

// Lanes without a bucket are no part of a step that is captured.
void BucketPipeline::conclude_on_gpu() {
  for (size_t l = 0; l < std::min(links_.lanes.size(), progress_.size()); ++l) {
    gpu_->join(l, *links_.lanes[l].worker->stream);
  }
  std::vector<Gradient> means;
  for (const Progress& each : progress_) {
    means.push_back(each.gradient);
  }
  gpu_->conclude(means, options_.on_nonfinite, left_out_value());
}

void BucketPipeline::drain() {
  const auto empty = [this](auto& queue) {
    try {
      queue.wait();
    } catch (const std::exception& error) {
      fail(error.what(), -1);
    }
  };
  if (links_.rounds != nullptr) {
    empty(*links_.rounds);  // first: they feed the compression, which feeds the lanes
  }
  empty(*compression_.stream);
  for (Lane& lane : links_.lanes) {
    empty(*lane.worker->stream);
  }
}

template <class Work>
void BucketPipeline::guarded(BucketId b, const Work& work) {
  if (failure_.is_set()) {
    return;
  }
  try {
    work();
  } catch (const TransportError& error) {
    fail_bucket(b, error.what(), error.peer());
  } catch (const std::exception& error) {
    fail_bucket(b, error.what(), -1);
  }
}

// A reason that came from the rank that saw it already names its bucket.
void BucketPipeline::fail_bucket(BucketId b, std::string_view what, int peer) {
  const std::string& label = epoch_->buckets[b].label();
  const bool labelled = what.find(label) != std::string_view::npos;
  const auto elapsed_ms = (now_us() - progress_[b].trace.begin_us) / 1000;
  fail(labelled ? std::string(what)
                : concat(label, ", step ", step_, ", rank ", transport_->rank(), ", after ",
                         elapsed_ms, " ms: ", what),
       peer);
}

void BucketPipeline::fail_round(std::string_view missing, std::string_view what, int peer) {
  const std::string where = concat(", step ", step_, ", rank ");
  const bool told = what.find(where) != std::string_view::npos;  // by a rank that saw it
  const auto elapsed_ms = (now_us() - first_told_us_) / 1000;
  fail(told ? std::string(what)
            : concat("ready buckets", where, transport_->rank(), ", after ", elapsed_ms, " ms: ",
                     missing.empty() ? "" : concat("waits for ", missing, "; "), what),
       peer);
}

void BucketPipeline::fail(std::string reason, int peer) {
  failure_.set(TransportError(std::move(reason), peer), [this](const char* first) {
    if (links_.rounds != nullptr) {
      links_.rounds->stop();
    }
    transport_->abort(first);
  });
}

void BucketPipeline::abandon_step() {
  if (left_ > 0) {
    fail(concat("rank ", transport_->rank(), "'s reducer is rebuilt in step ", step_), -1);
  }
  drain();
  left_ = 0;
}

void BucketPipeline::record(StepTrace& times) const {
  const auto since_wait = [&times](int64_t begin_us, int64_t end_us) {
    return std::max<int64_t>(0, end_us - std::max(begin_us, times.wait_begin_us));
  };
  times.agreement = links_.rounds == nullptr ? RoundTrace{} : links_.rounds->trace();
  times.buckets.clear();
  for (BucketId b = 0; b < progress_.size(); ++b) {
    const ExchangeReport& report = epoch_->buckets[b].report();
    BucketTrace bucket = progress_[b].trace;
    bucket.exposed_us = since_wait(bucket.begin_us, bucket.compressed_us) +
                        since_wait(bucket.exchange_us, bucket.end_us);
    bucket.hidden_us = bucket.compressed_us - bucket.begin_us + bucket.end_us - bucket.exchange_us -
                       bucket.exposed_us;
    bucket.transfer_us = report.transfer_us;
    bucket.codec_us =
        gpu_ == nullptr ? bucket.compressed_us - bucket.begin_us + report.codec_us : 0;
    bucket.bytes_sent = report.bytes_sent;
    bucket.bytes_received = report.bytes_received;
    bucket.predicted_bytes_sent = report.predicted_bytes_sent;
    times.buckets.push_back(bucket);
  }
}

float BucketPipeline::left_out_value() const {
  return options_.left_out == MeansLeftOut::kNaN ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
}

void BucketPipeline::fill_means() const {
  for (const Progress& each : progress_) {
    dispatch(each.gradient.dtype, [&]<class T>() {
      std::ranges::fill(each.gradient.as<T>(), from_float<T>(left_out_value()));
    });
  }
}

}  // namespace gradwire
