#pragma once
// What a Reducer is made of: the state of the current step and the buckets at work.

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/internal/bucket.h"
#include "gradwire/comm/reducer.h"

namespace gradwire {

/// A bucket in the current step.
struct Progress {
  size_t missing = 0;  ///< parameters not ready
  size_t members = 0;  ///< parameters of the bucket
  Gradient gradient;   ///< the bucket's own, or the caller's
  BucketTrace trace;
};

struct Reducer::State {
  State(Plan the_plan, Transport& the_transport, ReducerOptions the_options);
  ~State();

  /// Collective: a plan whose parts fit together, the same on every rank.
  void check_everywhere(const Plan& candidate);
  std::deque<Bucket> make_buckets(const Plan& from);

  int64_t now_us() const;
  void begin_step();
  void throw_if_finished() const;
  void note_ready(BucketId b, int64_t now);
  void launch_full_buckets();
  void check_all_ready() const;
  /// Blocks until the stream is empty.
  void drain();
  void record(StepTrace& times);
  const Bucket* first_nonfinite() const;
  void commit();
  void zero_means();

  // On the stream's thread.
  void run_bucket(size_t b);
  void fail(size_t b, std::string_view what, int peer);

  Plan plan;
  Transport& transport;
  const ReducerOptions options;
  const std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
  Trace trace;
  Workspace workspace;

  size_t parity = 0;  // which residual buffer is the committed one
  uint64_t committed = 0, skipped = 0;
  std::optional<TransportError> failure;   // written on the stream, read when it is empty
  std::optional<TransportError> finished;  // as reported to the caller

  uint64_t step = 0;
  size_t launched = 0;  // buckets on their way or done
  bool any_ready = false;
  int64_t first_ready_us = 0;
  std::vector<uint8_t> ready;  // of each parameter
  std::deque<Bucket> buckets;
  std::vector<Progress> progress;

  std::unique_ptr<Stream> stream;  // after all its tasks use
  Context context;
};

}  // namespace gradwire
