#pragma once
// Bytes between ranks: five verbs, a way to fail, and counters. One registry row per transport.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// A buffer of world_size parts of equal capacity: part r begins at r * stride and holds
/// lengths[r] <= stride bytes. When received into, `lengths` is written.
struct Parts {
  std::span<std::byte> bytes;
  size_t stride = 0;
  std::span<size_t> lengths;

  std::span<std::byte> part(size_t r) const { return bytes.subspan(r * stride, lengths[r]); }
};

/// How an all-reduce runs. All give the same bits on every rank; n values of 4 bytes, P ranks.
enum class AllReduce : uint8_t {
  kRankOrder,  ///< all-to-all of shards, sums in rank order, all-gather: the bits of a serial loop
  /// 2(P-1) steps, each to the next rank and from the one before. Shard s is summed in the order
  /// s + 1, s + 2, ..., s (Patarasuk and Yuan, 2009).
  kRing,
  /// Recursive halving, then doubling: 2 log2(P) steps, for few values. The sum is pairwise, ranks
  /// (0, 1), (2, 3), ..., then pairs of pairs. Where P is no power of two, of the first
  /// 2 (P - 2^k) ranks each even one hands its values to the odd one behind it and is told the sum
  /// at the end: 4n bytes more each way (Thakur, Rabenseifner and Gropp, 2005).
  kRabenseifner,
};

/// How an all-gather runs. All deliver the same.
enum class AllGather : uint8_t {
  kDirect,  ///< every rank to every other: one step, P-1 messages
  kRing,    ///< each part travels around: P-1 steps, one sender per receiver at any time
  kBruck,   ///< ceil(log2 P) steps, each sending on all that a rank has: for small parts (1997)
};

/// What all ranks must agree on about a collective call, so that those which do not find out before
/// any payload is used.
struct CallTag {
  uint64_t fingerprint = 0;    ///< of shape, dtype, spec and exchange; the same on all ranks
  std::string_view what = "";  ///< for messages, e.g. "bucket 3"; outlives the call
  AllReduce all_reduce = AllReduce::kRankOrder;  ///< read by all_reduce_sum alone
  AllGather all_gather = AllGather::kDirect;     ///< read by all_gather alone
};

/// Bytes this rank handed to the wire since construction. `bytes` includes the frame headers.
struct TrafficCounters {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t frames_sent = 0;  ///< one per (destination, step of a collective)
};

/// How long rebuild() waits for whom.
struct RebuildOptions {
  /// For ranks that live to call rebuild() as well; 0: the transport's timeout.
  std::chrono::milliseconds timeout{0};
  /// For a rank that neither answers nor is known to be gone: stopped, or cut off. A gone one (its
  /// machine refuses connections to it) is not waited for.
  std::chrono::milliseconds silence{1000};
};

/// What transports differ in.
struct TransportTraits {
  /// Where the spans given to the verbs lie, and whose streams the contexts have: the CPU, or a GPU.
  Device device{};
  /// True: parts arrive with their true lengths. False: whole strides travel, since lengths are in
  /// the payloads, in device memory. Then `lengths` of received Parts are the stride, written by the
  /// host at the call; lengths of what is sent are read at the call and only checked against the
  /// stride; `mine` of all_gather has a stride's bytes.
  bool true_lengths = true;
  /// False: sums are made in an order of the library's own; the same bits on every rank all the same.
  bool sums_in_rank_order = true;
  /// Whether all_reduce_sum runs in the orders that CallTag::all_reduce can ask for.
  bool sums_in_any_order = true;
};

/// Collective operations over one group of ranks. All ranks call the same verbs in the same order.
/// Each enqueues on the context's stream; its buffers stay valid until the stream has passed it,
/// and failures surface from the stream's wait(). Every failure is a TransportError that names a
/// rank (by its number in the whole world, also in groups made by split()); after it the group, and
/// all that share its world, are finished: later calls throw the same reason. In a process that was
/// forked since, calls throw InvalidArgument, and abort() and the destructor do nothing. A transport
/// whose last call has passed is destroyed in good order: ranks that are still in theirs receive what
/// they were sent. That waits for their receipts, not for their calls, and for a silent rank at
/// most the timeout, or a minute; for one that has died it does not wait.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual TransportTraits traits() const { return {}; }

  /// Rank r's `mine` arrives as part r of `all` on every rank, this one included. The length is
  /// read when the stream reaches the call. `mine` may be part rank() of `all`. The stride is the
  /// same on all ranks. Runs as tag.all_gather says.
  virtual void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all,
                          CallTag tag, Context& context) = 0;
  /// Part d of `send` arrives as part rank() of rank d's `receive`. Both have the same stride, on
  /// all ranks, as in all_gather.
  virtual void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) = 0;
  /// out = elements [begin(rank), begin(rank + 1)) of the sum over ranks of `values`, added in rank
  /// order in float32; begin(r) = shard_begin(values.size(), world_size, r).
  virtual void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                              Context& context) = 0;
  /// values = sum over ranks in float32: the same bits on every rank, in rank order unless
  /// tag.all_reduce says otherwise. A transport that cannot run it so throws InvalidArgument.
  virtual void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) = 0;
  /// `bytes` of `root` arrive on every rank.
  virtual void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) = 0;
  /// Returns (on the stream) when every rank has entered.
  virtual void barrier(CallTag tag, Context& context) = 0;

  /// A new transport over the ranks that pass the same color (>= 0), ordered by rank. Collective
  /// and blocking: not enqueued.
  virtual std::unique_ptr<Transport> split(int color) = 0;

  /// A new group of the ranks that are left, ordered by rank, after a TransportError. Collective
  /// among them and blocking; ends this group first if it has not failed yet, and the groups split
  /// from it with it. They find each other without the store and without rank 0: the lowest rank
  /// left collects the others, waits as `options` says and tells all who is in. That takes more
  /// than half of this group's ranks, or half when all others are known to be gone (so of two, one
  /// goes on alone when the other's process has ended, and neither does when the link between them
  /// is cut): there are never two groups. A rank that comes later, or that the others could not
  /// reach, is told that they went on without it.
  /// @throws TransportError naming the missing ranks when too few are left, or when one dies during
  /// the rebuild (it may then be called again); after at most options.timeout for the agreement and
  /// the transport's timeout for connecting. InvalidArgument where it cannot be done: in a group
  /// made by split(), in one already rebuilt, and by transports that say so.
  virtual std::unique_ptr<Transport> rebuild(const RebuildOptions& options = {});

  /// In a group made by rebuild(): rank r of it was rank old_ranks()[r] of the group before. Empty
  /// in all others.
  virtual std::span<const int> old_ranks() const { return {}; }

  /// Ends the group for everyone, from any thread: pending and later calls throw `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// Throws the first failure, if there was one. A GPU's stream passes calls that failed without a
  /// word, so that behind its wait() this is where failures surface; it does not wait itself.
  virtual void throw_if_failed() const {}

  /// Collective and blocking, not enqueued: once per plan, for transports that do not compare the
  /// fingerprints of every call. @throws InvalidArgument, on every rank, naming the lowest rank
  /// whose `text` differs from rank 0's and the first differing line. `what` is what it describes.
  /// `context` is of the transport's device.
  virtual void agree(std::string_view what, std::string_view text, Context& context);

  /// Collective and blocking, not enqueued: what each rank passed, in CPU memory whatever the verbs
  /// carry. For a few KB between steps. `capacity` is the same on all ranks and at least
  /// mine.size() on each; tags are compared as those of calls are. `context` is the verbs' where
  /// they carry CPU memory, else not used. @throws InvalidArgument for what is longer, which ends
  /// the group.
  virtual std::vector<std::string> gather_words(std::string_view mine, size_t capacity, CallTag tag,
                                                Context& context);

  /// Tells the transport that `bytes` will be used by many calls, on all ranks, as long as the
  /// result lives; it must not outlive the memory. Null where that does not help.
  virtual std::shared_ptr<void> register_buffer(std::span<std::byte> /*bytes*/) { return nullptr; }

  /// Of this group: groups that split() made of it count their own.
  virtual TrafficCounters counters() const = 0;
};

/// First element of rank r's shard: balanced to within one, in order.
constexpr size_t shard_begin(size_t numel, int world_size, int r) {
  const auto size = static_cast<size_t>(world_size), index = static_cast<size_t>(r);
  return numel / size * index + (numel % size < index ? numel % size : index);
}

/// A rank's place in a group.
struct RankOf {
  int rank = 0;
  int world_size = 1;
};

/// Bytes this rank sends for an all-reduce of `numel` floats, frame headers included.
uint64_t all_reduce_bytes_sent(AllReduce algorithm, size_t numel, RankOf place);

/// Bytes of the header in front of each message of a step: counted in bytes_sent.
inline constexpr size_t kFrameHeaderBytes = 64;

/// Shapes a rank's link to `bits_per_second` both ways inside the transport (0: no pacing).
struct Pacing {
  double bits_per_second = 0;
  /// Burst in bytes: max(8000, rate * 1 ms), as the shaped links have it.
  size_t burst_bytes() const;
};

/// What the transport "nccl" takes besides.
struct NcclOptions {
  int device_index = 0;    ///< this rank's GPU, as CUDA numbers them
  int min_ctas = 0;        ///< blocks NCCL takes from the GPU while it communicates; 0: NCCL's choice
  int max_ctas = 0;        ///< and at most; few leave room for backward
  int traffic_class = -1;  ///< of the network's quality of service; -1: NCCL's default
  /// kEveryCall: 16 bytes more with each call find out, after it, that ranks passed different tags.
  enum class Compare { kOncePerPlan, kEveryCall } compare = Compare::kOncePerPlan;
};

struct TransportOptions {
  int rank = 0;
  int world_size = 1;
  /// Place among the ranks of the same machine, and their number; -1 and 0: not known.
  int local_rank = -1;
  int local_world_size = 0;
  /// How long a peer may stay silent inside one call.
  std::chrono::milliseconds timeout{30000};
  Pacing pacing{};
  /// Where ranks meet: "file:DIR" (an empty or new directory all ranks see) or "tcp:HOST:PORT"
  /// (rank 0 listens there: store.h says at which addresses). Unused by in_process and mpi.
  std::string store{};
  /// Network interface whose address is bound and given to the others: "eth0", several with commas
  /// between, "eth*" for all that begin so, "^docker*,lo" for all but these. Empty: the one on the
  /// way to the store, on rank 0's machine on the way to the others. In a folder that several
  /// machines share: the one on the way to everywhere else.
  std::string network_interface{};
  /// The same, as other libraries have been told: counts where network_interface is empty, for
  /// transports with sockets of their own.
  std::string socket_interface{};
  /// Known to the ranks of one job alone, made by whoever starts them: ranks meet only where it is
  /// the same, and strangers are refused. Empty: whoever reaches the store is believed.
  std::string job_secret{};
  /// Takes a line about something that happened beside the calls, e.g. a stranger refused. Called
  /// from any thread, also while a call of this rank is in progress; must not throw.
  std::function<void(std::string_view line)> log{};
  /// Path of the plug-in or of its folder; empty: searched beside this library and in the package.
  /// For nccl of libnccl.so.2 or a folder that has it; empty: by the loader's rules.
  std::string plugin_path{};
  NcclOptions nccl{};
};

/// One row per transport that joins processes.
struct TransportRow {
  std::string_view name;
  std::string_view summary;
  /// Empty when usable here, else why not.
  std::string (*unavailable_reason)(const TransportOptions&);
  std::unique_ptr<Transport> (*make)(const TransportOptions&);
};
std::span<const TransportRow> transport_registry();

/// Joins the group: collective, blocking, at most options.timeout. @throws InvalidArgument for an
/// unknown name (listing the known ones) or bad options; TransportError when ranks do not appear.
std::unique_ptr<Transport> make_transport(std::string_view name, const TransportOptions& options);

/// `world_size` transports of one process, one per thread; element r is rank r's.
std::vector<std::unique_ptr<Transport>> make_in_process_group(int world_size,
                                                              const TransportOptions& options = {});

namespace comm {
/// Who this process is and where ranks meet, from GRADWIRE_RANK, GRADWIRE_WORLD_SIZE,
/// GRADWIRE_LOCAL_RANK, GRADWIRE_LOCAL_WORLD_SIZE, GRADWIRE_STORE, GRADWIRE_INTERFACE and
/// GRADWIRE_JOB_SECRET, which win, or from the variables of torchrun, Open MPI's mpirun or SLURM's
/// srun. Of nested launchers the innermost counts (torchrun, mpirun, srun).
/// TransportOptions::socket_interface is socket_interface_from_environment().
/// The store: MASTER_ADDR and MASTER_PORT (the port after it under torchrun itself, whose own store
/// holds MASTER_PORT); without them, under SLURM the first host of the step and a port from 20000
/// to 29999 made of the job's and the step's numbers, under Open MPI none (mpi needs none). The one
/// place in the library that reads the environment.
/// @throws InvalidArgument naming the variable that is missing or malformed, or both where those of
/// two launchers contradict each other.
TransportOptions from_environment();

/// GRADWIRE_INTERFACE, else GLOO_SOCKET_IFNAME (names), else NCCL_SOCKET_IFNAME (beginnings of
/// names, or = and names; behind ^ those to leave out), in the form of
/// TransportOptions::network_interface.
std::string socket_interface_from_environment();
}  // namespace comm

}  // namespace gradwire
