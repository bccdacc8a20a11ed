#pragma once
// The pipeline: gradients become ready during backward, buckets leave in plan order, and wait()
// hands back the mean of all ranks and commits the residuals.

#include <memory>
#include <span>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/trace.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/compress/on_non_finite.h"

namespace gradwire {

enum class StepOutcome : uint8_t { kCommitted, kSkipped };

struct ReducerOptions {
  OnNonFinite on_nonfinite = OnNonFinite::kError;
  int threads = 1;          ///< of the reducer's own stream, for compression loops
  size_t trace_steps = 64;  ///< steps the trace keeps
};

/// Names a bucket handed over whole.
struct Ticket {
  BucketId bucket = 0;
  uint64_t step = 0;
};

/// Compresses, exchanges and decompresses the buckets of a plan on a stream of its own, while the
/// caller goes on with backward. Not thread-safe: one caller. Residuals are two buffers and one
/// parity: a step that fails or is skipped leaves them as they were.
class Reducer {
 public:
  /// Collective: compares the plan across ranks. The transport outlives the reducer.
  /// @throws InvalidArgument naming the first line in which a rank's plan differs from rank 0's.
  Reducer(Plan plan, Transport& transport, ReducerOptions options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  const Plan& plan() const;

  /// Where parameter `p`'s gradient belongs, inside its bucket: backward writes it here, and after
  /// wait() the mean of all ranks is here. Valid until set_plan().
  Gradient gradient(ParamId p);

  /// Says that gradient(p) is complete for this step. When the last one of a bucket is, and all
  /// earlier buckets have left, the bucket leaves. Once per parameter and step.
  /// @throws InvalidArgument for an unknown parameter or one already ready in this step.
  void grad_ready(ParamId p);

  /// A whole bucket at once, from memory of the caller laid out as the plan's bucket; the mean is
  /// written there; it stays valid until wait() returns. Do not mix with grad_ready in one bucket
  /// and step.
  Ticket bucket_ready(BucketId bucket, Gradient gradient);

  /// Blocks until every bucket of the step is reduced, then commits. Nothing is committed, on any
  /// rank, when some rank's gradient was not finite: kError throws NonFiniteGradient naming rank
  /// and bucket, kSkip fills the means with zeros and returns kSkipped. Either way the reducer is
  /// ready for the next step.
  /// @throws InvalidArgument naming the parameters that were never ready (the step can go on:
  /// nothing was committed); TransportError naming the rank and the bucket (the group is finished).
  StepOutcome wait();

  /// The committed residual of parameter `p`: empty for specs without feedback.
  ConstResidual residual(ParamId p) const;

  /// Committed steps, and steps skipped because of non-finite gradients.
  uint64_t committed_steps() const;
  uint64_t skipped_steps() const;

  /// Changes the plan between steps: a new epoch, with residuals carried over by parameter (into
  /// the next step's gradient where the new plan keeps none). Collective, as the constructor is.
  /// @throws InvalidArgument when parameters differ or a step has begun; the old plan stays.
  void set_plan(Plan plan);

  const Trace& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire
