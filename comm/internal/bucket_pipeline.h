#pragma once
// Buckets of a step on their way: compressed one by one, then exchanged, each in its lane.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/internal/device_pipeline.h"
#include "gradwire/comm/internal/epoch.h"
#include "gradwire/comm/internal/ready_rounds.h"
#include "gradwire/comm/internal/step_failure.h"
#include "gradwire/comm/reducer_options.h"
#include "gradwire/comm/trace.h"

namespace gradwire {

/// Buckets leave in the plan's order, or in that in which ranks agree. On the CPU they move on threads
/// of this; on a GPU the calls enqueue, and nobody waits. The first failure ends the group, with the
/// words of the rank that saw it.
class BucketPipeline {
 public:
  /// `options` stay where they are. Behind it: move_to().
  BucketPipeline(Transport& transport, const ReducerOptions& options);
  ~BucketPipeline();

  Transport& transport() const { return *transport_; }
  const ReducerOptions& options() const { return options_; }
  std::span<Lane> lanes() { return links_.lanes; }
  StepFailure& failure() { return failure_; }
  const StepFailure& failure() const { return failure_; }
  /// Of calls between steps.
  Context& context() { return compression_.context; }
  /// Null on the CPU.
  DevicePipeline* gpu() { return gpu_.get(); }
  int64_t now_us() const;

  /// What belongs to a group of ranks. Collective.
  struct Links {
    std::unique_ptr<ReadyRounds> rounds;  // null where buckets leave in plan order
    std::vector<Lane> lanes;
  };
  Links open(Transport& over);
  /// When nothing is on its way: begins, or goes on, there, as if nothing had failed.
  void move_to(Transport& over, Links links);

  /// The next step's buckets are this one's, which stays where it is. Also where it has changed in a
  /// step of which nothing has left.
  void begin_step(Epoch& epoch, uint64_t step);
  /// All gradients of bucket `b` are ready, in `gradient`. It leaves when its turn has come.
  void leave(BucketId b, Gradient gradient, int64_t now_us);
  /// Whether bucket `b` may be on its way in this step; any bucket.
  bool may_have_left(BucketId b) const;
  /// `work` is done in the first lane behind its buckets; those of other lanes may still travel.
  void behind_buckets(std::function<void(Lane&)> work);
  /// Blocks until nothing is on its way. On a GPU: enqueues the end of the step.
  void end_step();
  /// Ends the group.
  void fail(std::string reason, int peer);
  /// The same where something is on its way; blocks until nothing is.
  void abandon_step();

  /// Of the step that has ended: its buckets and rounds.
  void record(StepTrace& times) const;
  /// Takes the place of the means.
  void fill_means() const;

 private:
  struct Progress {
    bool ready = false;
    Gradient gradient;  // the bucket's own, or the caller's
    BucketTrace trace;
  };

  // On the workers' threads, or that of the rounds; on a GPU in the caller.
  void launch(BucketId b);
  void compress(BucketId b);
  void exchange(BucketId b);
  /// Work for bucket `b`: none once the step has failed.
  template <class Work>
  void guarded(BucketId b, const Work& work);
  void fail_bucket(BucketId b, std::string_view what, int peer);
  void fail_round(std::string_view missing, std::string_view what, int peer);

  Lane& lane_of(BucketId b) { return links_.lanes[b % links_.lanes.size()]; }
  /// Where its compression runs: in its lane where there is nothing to compress, a thread less to wake.
  Worker& first_worker(BucketId b) {
    return compresses_first_ ? compression_ : *lane_of(b).worker;
  }
  void drain();
  void conclude_on_gpu();
  float left_out_value() const;

  Transport* transport_;
  const ReducerOptions& options_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  StepFailure failure_;
  Epoch* epoch_ = nullptr;
  uint64_t step_ = 0;
  size_t left_ = 0;  // buckets on their way or done, or told of to the other ranks
  bool compresses_first_ = true;  // some bucket
  int64_t first_told_us_ = 0;
  std::vector<Progress> progress_;
  std::function<void(Lane&)> last_;  // behind all buckets

  // After all that their tasks use, and before what feeds them.
  std::shared_ptr<ThreadPool> pool_;
  Links links_;
  Worker compression_;
  std::unique_ptr<DevicePipeline> gpu_;  // goes first, and waits
};

}  // namespace gradwire
