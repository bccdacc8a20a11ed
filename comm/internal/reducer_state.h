#pragma once
// What a Reducer is made of: the state of the current step, the buckets at work, and the workers
// that move them.

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/bucket.h"
#include "gradwire/comm/internal/device_pipeline.h"
#include "gradwire/comm/internal/ready_rounds.h"
#include "gradwire/comm/internal/worker.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire {

/// What has become of a parameter's gradient in the current step.
enum class Given : uint8_t { kNothing, kAccumulated, kReady };

/// A bucket in the current step.
struct Progress {
  size_t missing = 0;  ///< parameters not ready
  size_t members = 0;  ///< parameters of the bucket
  Gradient gradient;   ///< the bucket's own, or the caller's
  BucketTrace trace;
};

/// One exchange in flight. The first lane uses the caller's transport, the others one split from
/// it: their calls need no order among each other.
struct Lane {
  std::unique_ptr<Transport> own;  // none: the caller's
  Transport* transport = nullptr;
  std::unique_ptr<SubGroups> groups;  // parts of it, shared by the lane's buckets
  std::unique_ptr<Worker> worker;
};

struct Reducer::State {
  State(Plan the_plan, Transport& the_transport, ReducerOptions the_options);
  ~State();

  /// Collective: a plan whose parts fit together, the same on every rank.
  void check_everywhere(const Plan& candidate, Transport& over);
  /// Collective: one lane for each exchange in flight.
  std::vector<Lane> make_lanes(Transport& over);
  /// Collective: where buckets leave as ranks agree; null in plan order.
  std::unique_ptr<ReadyRounds> make_rounds(Transport& over);
  /// As the plan is behind so many steps. Collective where the plan is a new one.
  std::deque<Bucket> make_buckets(const Plan& from, std::span<const Lane> over,
                                  uint64_t committed_steps,
                                  const std::shared_ptr<DeviceState>& shared) const;
  /// What commits of new buckets change, as it is behind so many steps. On a GPU it waits.
  std::shared_ptr<DeviceState> make_commits(uint64_t committed, uint64_t skipped) const;
  /// Buckets and what they share take the place of those there are.
  void adopt(std::deque<Bucket> by, std::shared_ptr<DeviceState> shared);
  void scale_kept(std::deque<Bucket>& into, double scale, Bucket::Learnt learnt) const;
  /// Of each parameter, empty without ef21; every rank is given the same.
  void restart_estimates(std::deque<Bucket>& into,
                         std::span<const std::vector<float>> estimates) const;
  /// Views of gradients stay valid in these, which are of the same plan.
  void take_gradients(std::deque<Bucket>& into);
  Lane& lane_of(size_t b) { return lanes[b % lanes.size()]; }

  int64_t now_us() const;
  void begin_plan(uint64_t committed_steps);
  /// Before the first bucket of a step leaves: where as many steps are committed as the plan's specs
  /// stay what they are for, buckets become those of the next ones. Ranks say nothing to each other:
  /// all have committed the same. On a GPU it waits from the first step on that may be the one.
  void begin_stage();
  /// Residuals, velocities, estimates and what was learned, by parameter.
  void carry_over(std::deque<Bucket>& into, const Plan& by) const;
  void begin_step();
  uint64_t frames_sent() const;
  void measure();
  BucketCost bucket_cost(const LinkCosts& link) const;
  /// Of the exchange that a bucket of the next plan should take: its row in the registry.
  uint32_t choose_row(const Plan& next, const PlanBucket& bucket,
                      const ReplanOptions& how) const;
  void throw_if_finished() const;
  /// What peers are told where this ends in a step.
  std::string reason_of_leaving() const;
  void note_ready(BucketId b, int64_t now);
  void launch_full_buckets();
  /// On the caller's thread, or on that of the rounds.
  void launch(size_t b);
  /// Whether bucket `b` may be on its way in this step.
  bool may_have_left(size_t b) const;
  void check_not_ready(std::string_view call, ParamId p) const;
  void set_ready(ParamId p);
  /// Ready with a zero gradient, or with what was accumulated.
  void set_unused(ParamId p);
  /// Parameters never ready become unused, or are an error.
  void complete_gradients();
  void check_all_ready() const;
  /// Enqueues the comparison of what ranks did not use, behind all buckets.
  void compare_unused();
  void read_unused();
  /// Blocks until nothing is on its way.
  void drain();
  void record();
  const Bucket* first_nonfinite() const;
  void commit();
  /// What ReducerOptions::left_out puts in the place of means.
  float left_out_value() const;
  void fill_means() const;

  // On a GPU (reducer_device.cc).
  void check_device_options() const;
  void refuse_on_gpu(std::string_view call) const;
  /// What the host knows, or the GPU, for which it waits then.
  struct Counts {
    uint64_t committed, skipped;
  };
  Counts counts() const;
  StepOutcome end_step_on_device();
  void throw_if_transport_failed();
  /// What the words of a step that is over say; `advice` goes behind it.
  void throw_faults(const cuda::StepWords& words, std::string_view advice);

  // On the workers' threads; on a GPU in the caller.
  void compress_bucket(size_t b);
  void exchange_bucket(size_t b);
  template <class Work>
  void guarded(size_t b, const Work& work);
  void fail(size_t b, std::string_view what, int peer);
  void fail_round(std::string_view missing, std::string_view what, int peer);
  void fail_step(std::string reason, int peer);
  void exchange_unused();

  const OfProcess process;
  Plan plan;
  Transport* transport;
  const ReducerOptions options;
  const Device device;  // of gradients, payloads and residuals
  const std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
  Trace trace;
  StepTrace times;  // of the step that wait() concludes; kept for its memory

  Buffer widened;     // what residual() returned last, where it is kept in fewer bits
  std::shared_ptr<DeviceState> commits;  // which buffers are committed, and how many steps
  int residual_ranks;              // the world size that residuals are scaled for
  bool has_parameters = true;      // false: rebuild() committed a step whose mean never came
  std::mutex failing;                      // guards failure while workers run
  std::atomic<bool> failed{false};         // failure is set
  std::optional<TransportError> failure;   // of this step
  std::optional<TransportError> finished;  // as reported to the caller

  const int exceptions_before = std::uncaught_exceptions();  // on their way when this was made
  uint64_t step = 0;
  size_t launched = 0;  // buckets on their way or done, or told of to the other ranks
  bool compresses_first = true;  // some bucket of the plan
  int no_sync = 0;         // scopes that live
  bool begun = false;      // something was accumulated or is ready
  bool any_ready = false;
  int64_t first_ready_us = 0;
  std::vector<Given> given;      // of each parameter
  std::vector<uint8_t> reached;  // of each parameter: has a gradient of its own
  std::vector<int64_t> ready_us;
  std::vector<uint8_t> unused_everywhere;

  /// What the steps since the last plan have shown.
  struct Measured {
    std::vector<double> ready_us;  // of each parameter, since the first of its step: sum
    std::vector<uint32_t> times;   // that it was reached
    double buckets = 0, gradient_bytes = 0, bytes_sent = 0, codec_us = 0;
    uint64_t frames_before = 0;
  } measured;
  Messages reached_bits{0, 0};  // of all ranks, a bit each
  std::deque<Bucket> buckets;
  std::deque<Bucket> retired;  // of the stage before, as long as their payloads may be read
  uint64_t changes_at = 0;     // committed steps behind which the plan's specs are others
  std::vector<Progress> progress;

  // After all that their tasks use, and the first to enqueue last.
  std::shared_ptr<ThreadPool> pool;
  std::vector<Lane> lanes;
  Worker compression;
  std::unique_ptr<ReadyRounds> rounds;  // null where buckets leave in plan order
  std::unique_ptr<DevicePipeline> gpu;  // null on the CPU; goes first, and waits
};

// A failed step does no further work.
template <class Work>
void Reducer::State::guarded(size_t b, const Work& work) {
  if (failed) {
    return;
  }
  try {
    work();
  } catch (const TransportError& error) {
    fail(b, error.what(), error.peer());
  } catch (const std::exception& error) {
    fail(b, error.what(), -1);
  }
}

}  // namespace gradwire
