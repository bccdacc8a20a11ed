#pragma once
// The pipeline: gradients become ready during backward, buckets leave in one order, and wait()
// hands back the mean of all ranks and commits the residuals.

#include <functional>
#include <iosfwd>
#include <memory>
#include <span>

#include "gradwire/comm/reducer_options.h"
#include "gradwire/comm/trace.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Compresses, exchanges and decompresses the buckets of a plan on threads of its own, while the
/// caller goes on with backward: a bucket is compressed while those before it travel. Not
/// thread-safe: one caller. In a process that was forked since, calls of a step and between steps
/// throw InvalidArgument, and the destructor does nothing. Residuals are two buffers and one
/// parity: a step that fails or is skipped leaves them as they were.
///
/// Over a transport of GPU memory (TransportTraits::device) gradients and payloads lie there, and
/// residuals there or on the host (Plan::residual_memory). No call of a step waits for the GPU: they
/// enqueue, ordered by events behind and before the work on ReducerOptions::stream, so that a step
/// can be captured in a CUDA graph once two have run. Results have the bits of the CPU's. Not there,
/// and refused: LaunchOrder::kAgreed, deliver(), rebuild(), and the exchanges other than dense,
/// gather and two_shot (docs/gpu.md says why).
///
/// Specs with start= or warmup= are others in their first steps (plan_in_step() in stages.h), counted
/// as steps that were committed: the reducer goes from one to the next by itself, with residuals and
/// velocities, before the first bucket of a step leaves. gradient() stays valid. On a GPU it waits
/// once for each, and the steps before the last one cannot be captured.
///
/// Of parameters with ef21 what gradient() gives is the estimate A_next = A + mean of what all ranks
/// send, which is kept and committed with the residuals: A is the mean of the ranks' sums. A changed
/// plan takes both along, from ef21 to ef21; a rank that comes later, and all after another number
/// of ranks, begin with s = A. Where A_next overflows nothing is committed, as after a gradient that
/// is not finite. Such parameters hand on no payloads.
class Reducer {
 public:
  /// Collective: compares the plan across ranks. The transport outlives the reducer, which alone
  /// uses it; streams beyond the first travel over groups split from it.
  /// @throws InvalidArgument naming the first line in which a rank's plan differs from rank 0's.
  Reducer(Plan plan, Transport& transport, ReducerOptions options = {});
  /// In the middle of a step, behind the first gradient that was accumulated or made ready and
  /// before wait() has ended it, the others cannot finish: it ends the group with a reason that
  /// says so, and whether an exception is on its way or what the one was that is being handled.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  const Plan& plan() const;

  /// Where parameter `p`'s gradient belongs, inside its bucket: backward writes it here, and after
  /// wait() the mean of all ranks is here. Valid until set_plan().
  Gradient gradient(ParamId p);

  /// Says that gradient(p) is complete for this step. When the last one of a bucket is, and all
  /// earlier buckets have left (LaunchOrder::kAgreed: and it is on all ranks), the bucket leaves.
  /// Once per parameter and step.
  /// @throws InvalidArgument for an unknown parameter or one already ready in this step.
  void grad_ready(ParamId p);

  /// gradient(p) += values, for steps of several backward passes: the first call of a step replaces
  /// what is there, and grad_ready(p) follows the last. The mean is that of the ranks' sums: scale
  /// the loss by 1 / passes for an average. On a GPU values stay until its stream has passed.
  /// @throws InvalidArgument for a p that is already ready, or values of another length or dtype.
  void accumulate(ParamId p, ConstGradient values);

  /// While one lives, grad_ready() and bucket_ready() note that backward has been there and nothing
  /// leaves; wait() is refused. For backward passes that add to gradient(p) themselves, where only
  /// the last pass of a step, after the end of the scope, is exchanged.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(Reducer& reducer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
  };

  /// In place of grad_ready(p) for a parameter that this rank's backward did not reach: its
  /// gradient is zero, or what earlier passes of the step accumulated. Errors as of grad_ready().
  void mark_unused(ParamId p);

  /// Whether no rank reached `p` in the last step that wait() concluded: an optimizer may leave it
  /// alone. On a GPU it waits, and such a step cannot be captured. @throws InvalidArgument without
  /// UnusedParameters::kZero, and before the first such step.
  bool unused_everywhere(ParamId p) const;

  /// A whole bucket at once, from memory of the caller with its parameters one behind the other, as
  /// Plan::places has them; the mean is written there; it stays valid until wait() returns. Do not
  /// mix with grad_ready in one bucket and step.
  Ticket bucket_ready(BucketId bucket, Gradient gradient);

  /// Blocks until every bucket of the step is reduced, then commits. Nothing is committed, on any
  /// rank, when some rank's gradient was not finite, or the sum of all ranks': kError throws
  /// NonFiniteGradient naming the bucket, and the rank if one is to blame, kSkip fills the means
  /// with zeros (ReducerOptions::left_out) and returns kSkipped. Either way the reducer is ready
  /// for the next step.
  /// @throws InvalidArgument naming the parameters that were never ready, unless their gradients
  /// are zero by UnusedParameters::kZero (the step can go on: nothing was committed);
  /// TransportError naming the rank and the bucket (the group is finished).
  ///
  /// On a GPU it waits for nothing and returns kEnqueued: what is enqueued on the stream from now
  /// on reads the mean. The commit happens on the GPU, of all buckets or none. Where it does not
  /// happen means are zero, so that an optimizer moves as after a zero gradient, or NaN, as
  /// ReducerOptions::left_out says, and a later call tells: a
  /// TransportError, a payload that does not decode (the group is finished), or under kError a
  /// NonFiniteGradient, from when the GPU was seen to have met it. Then nothing is committed on any
  /// rank, and wait() throws after each step it has enqueued, until synchronize(). kSkip leaves out
  /// the step and goes on.
  StepOutcome wait();

  /// On a GPU: blocks until the steps so far are over, and throws what one of them met, as wait()
  /// does on the CPU. A NonFiniteGradient is forgotten then, and the next step commits: called behind
  /// the same step on all ranks. On the CPU wait() has told all: does nothing.
  /// @throws InvalidArgument when a step has begun.
  void synchronize();

  /// How the bucket's result is handed on, from the next step on: this rank's own choice, nothing
  /// else changes. kMean again after set_plan(). @throws InvalidArgument when a step has begun.
  void deliver(BucketId bucket, Delivery delivery);
  /// The result of a bucket that delivers payloads, a row per group, after a wait() that committed:
  /// the same bytes on every rank. Valid until the bucket leaves again; gradient(p) of its
  /// parameters then holds no mean. @throws InvalidArgument where there is no such result.
  std::span<const GroupPayloads> take_payloads(BucketId bucket);

  /// The committed residual of parameter `p`: empty for specs without feedback; with ef21 the
  /// negative sum of what this rank has sent. On a GPU it waits, and the memory is the GPU's, or
  /// the host's where the plan keeps residuals there. Where the spec has residual=bf16 it is a copy
  /// in float32, valid until the next call.
  ConstResidual residual(ParamId p) const;
  /// On a GPU: enqueues a copy of it, as floats, to memory of that GPU, on ReducerOptions::stream,
  /// and does not wait: between steps that of the last step that was enqueued. Returns false, and
  /// does nothing, where there is no feedback. @throws InvalidArgument on the CPU, and for another
  /// size.
  bool copy_residual(ParamId p, std::span<float> to) const;

  /// Committed steps, and steps skipped because of non-finite gradients. On a GPU they wait.
  uint64_t committed_steps() const;
  uint64_t skipped_steps() const;

  /// Changes the plan between steps: a new epoch, with residuals and velocities carried over by
  /// parameter (residuals into the next step's gradient where the new plan keeps none). Collective,
  /// as the constructor is.
  /// @throws InvalidArgument when parameters differ or a step has begun; the old plan stays. On a
  /// GPU it waits, throws as synchronize() does, and a step that was captured must be captured
  /// anew. What goes into the next gradient there takes 4 bytes an element of its buckets until a
  /// step that has it is known to be committed.
  void set_plan(Plan plan);

  /// Writes what this rank keeps between steps (residuals, velocities, counters, what compressors and exchanges
  /// learned), in the format of CHECKPOINT_FORMAT.md: one file per rank; parameters and optimizer
  /// state are the caller's. Between steps, or after a TransportError. Write to a new file and
  /// rename it: a stream is not atomic. On a GPU it waits, and the bytes are the CPU's.
  /// @throws InvalidArgument when the stream does not take it.
  void save(std::ostream& out) const;

  /// Opens what rank `rank` saved; null when there was no such rank.
  using OpenCheckpoint = std::function<std::unique_ptr<std::istream>(int rank)>;

  /// Collective: continues where save() was called. With the same world size bit for bit; with
  /// another one rank j takes over what the old ranks i keep with i mod world_size == j,
  /// times new / old world size (CHECKPOINT_FORMAT.md derives it). Reads its own and those only,
  /// a rank that was not there the header of rank 0's. gradient() stays valid. On a GPU it waits,
  /// and a step that was captured must be captured anew.
  /// @throws InvalidArgument, on every rank, when one finds its checkpoint missing, damaged, of
  /// other parameters or of another step than rank 0's; nothing has changed then.
  void load(const OpenCheckpoint& open);

  /// After a TransportError: goes on with the group of the ranks that are left
  /// (Transport::rebuild), which all call this. The step in progress is dropped; gradient() stays
  /// valid.
  ///
  /// Some ranks may have left wait() with the step committed when the others failed in it. A rank
  /// commits when the last messages of all ranks have arrived, and a rank sends its last message of
  /// a bucket after everything it writes to that bucket's next residual, what its merges put back
  /// included. So if any rank committed step s, every rank's next residual of s is complete: the
  /// ranks behind commit theirs here. The mean of s they never saw: they must be given parameters
  /// and optimizer state (and the loss scale) by `source`, which the caller broadcasts before the
  /// next step. Residuals are scaled by new / old world size, so that their sum over ranks divided
  /// by the world size stays what it was; the residuals of ranks that are gone are lost, and what
  /// exchanges learned is learned anew.
  /// @throws TransportError when another rank fails meanwhile: the reducer is as before, and
  /// rebuild may be called again with the next group. InvalidArgument when no rank that is left has
  /// the parameters of the newest committed step: load a checkpoint.
  struct Rebuilt {
    uint64_t committed_steps = 0;  ///< the same on all ranks
    int source = -1;      ///< the rank of the new group that gives to those behind; -1: none is
    bool behind = false;  ///< whether this rank is
  };
  /// A plan by node goes on with every rank a node of its own (ranks_per_node becomes 1). With `gtopk`
  /// a rank that is behind cannot go on, since what it keeps of that step may not be complete: all
  /// ranks throw InvalidArgument.
  Rebuilt rebuild(Transport& survivors);

  /// When the gradients of the steps since the constructor, set_plan(), load() or rebuild() became
  /// ready on this rank: means, from the first one of a step on. Without those that were never
  /// reached.
  std::vector<GradientTiming> gradient_timings() const;

  /// Collective, between steps: from the order and times that rank 0 measured in the steps since
  /// the last plan, and what buckets cost there (bytes sent, messages and codec time per byte of
  /// gradient, on `link`), rank 0 merges gradients to buckets (merge.h), chooses their exchanges
  /// and broadcasts both; every rank makes the plan from `options.plan` with these buckets and sets
  /// it, as set_plan() does. On a GPU the host's times say little: ReplanOptions::timings takes the
  /// caller's. @throws InvalidArgument before the first step of a plan.
  void replan(ReplanOptions options);

  const Trace& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire
