#pragma once
// What a Reducer is asked for, and what it hands back.

#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/merge.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/probe.h"
#include "gradwire/kernels/compress/on_non_finite.h"

namespace gradwire {

enum class StepOutcome : uint8_t {
  kCommitted,
  kSkipped,
  kEnqueued,  ///< on a GPU: the host does not know yet, see Reducer::synchronize()
};

/// What wait() does about parameters that were never ready: it refuses, or their gradient is zero
/// on this rank. Then the mean still holds what other ranks have, and their residual goes on being
/// sent: 0 + e == D + e_next.
enum class UnusedParameters : uint8_t { kError, kZero };

/// What takes the place of the means where a step is left out: zero, which moves an optimizer as a
/// zero gradient does, or NaN, which a loss scaler takes for a step to be left out as well.
enum class MeansLeftOut : uint8_t { kZero, kNaN };

/// The order in which buckets leave, the same on all ranks. Results have the same bits either way.
enum class LaunchOrder : uint8_t {
  /// The plan's. Costs nothing; a gradient that is late on one rank holds back all buckets behind it.
  kPlan,
  /// That in which buckets have become ready on all ranks, on which ranks agree during backward: for
  /// models whose gradients appear in another order from step to step, or from rank to rank. In
  /// rounds, each an all-gather of ceil(buckets / 8) bytes a rank, on a thread and in a group of its
  /// own: a bucket leaves one or two latencies of the line later than it might, and each rank sends
  /// (world_size - 1) * (64 + ceil(buckets / 8)) bytes a round, at most one for every bucket of
  /// every rank and a few more while buckets of all ranks wait. StepTrace::agreement counts them.
  kAgreed,
};

struct ReducerOptions {
  OnNonFinite on_nonfinite = OnNonFinite::kError;
  /// This rank's own choice. On the CPU it counts under OnNonFinite::kSkip, on a GPU for every step
  /// that is not committed.
  MeansLeftOut left_out = MeansLeftOut::kZero;
  /// The same on all ranks. kZero tells ranks from each other's unused parameters by one small
  /// message a step.
  UnusedParameters unused = UnusedParameters::kError;
  int threads = 1;          ///< of all the reducer's loops together, see default_threads()
  size_t trace_steps = 64;  ///< steps the trace keeps
  /// Exchanges in flight at once, the same on all ranks, 1 to 16. Bucket b travels on stream
  /// b mod streams; buckets of one stream leave one by one. Results have the same bits for any
  /// number of streams. Those after the first have groups of their own, whose bytes the transport's
  /// counters() leave out: trace() has all of them.
  int streams = 1;
  LaunchOrder launch_order = LaunchOrder::kPlan;  ///< the same on all ranks
  /// On a GPU: the stream on which backward writes gradients and the optimizer reads means, of the
  /// transport's GPU; outlives the reducer. Null on the CPU.
  Stream* stream = nullptr;
};

/// What becomes of a bucket's result: the mean, written over its gradient, or the payloads as they
/// arrived, for callers that can use the sparse form.
enum class Delivery : uint8_t { kMean, kPayloads };

/// The mean of one group as payloads: `compressor` decodes scale * (the parts added in order).
struct GroupPayloads {
  const PlanGroup* group = nullptr;
  Compressor* compressor = nullptr;
  ExchangeResult result;
};

/// Names a bucket handed over whole.
struct Ticket {
  BucketId bucket = 0;
  uint64_t step = 0;
};

struct ReplanOptions {
  /// All but its buckets. Where its exchange is "auto" and the link's beta is known, each bucket
  /// gets the cheapest exchange (choose.h) by capacities and by what the ranks' selections had in
  /// common in the steps before: of those that keep the rank-order sum, or, where `plan.mean` allows
  /// it and the gain is clear, of all. `hierarchical` takes part where `plan.ranks_per_node` says
  /// that there are several nodes of several ranks and `node_link` is known.
  PlanOptions plan{};
  LinkCosts link{};       ///< probe_link()
  LinkCosts node_link{};  ///< the same over the ranks of one node; beta 0: not known
  size_t most_bytes = size_t{64} << 20;  ///< of a bucket
  LeavingOrder order = LeavingOrder::kReady;
  /// On rank 0, in the place of gradient_timings(): for a GPU, where those are when the host enqueued.
  std::vector<GradientTiming> timings{};
};

}  // namespace gradwire
