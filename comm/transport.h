#pragma once
// Bytes between ranks: five verbs, a way to fail, and counters. One registry row per transport.

#include <chrono>
#include <cstddef>
#include <cstdint>
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

/// Names one collective call, so that ranks which disagree find out before any payload is used.
struct CallTag {
  uint64_t fingerprint = 0;    ///< of shape, dtype, spec and exchange; the same on all ranks
  std::string_view what = "";  ///< for messages, e.g. "bucket 3"; outlives the call
};

/// Bytes this rank handed to the wire since construction. `bytes` includes the frame headers.
struct TrafficCounters {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t frames_sent = 0;  ///< one per (destination, collective)
};

/// Collective operations over one group of ranks. All ranks call the same verbs in the same order.
/// Each enqueues on the context's stream; its buffers stay valid until the stream has passed it,
/// and failures surface from the stream's wait(). Every failure is a TransportError that names a
/// rank (by its number in the whole world, also in groups made by split()); after it the group, and
/// all that share its world, are finished: later calls throw the same reason.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Rank r's `mine` arrives as part r of `all` on every rank, this one included. The length is
  /// read when the stream reaches the call. `mine` may be part rank() of `all`. The stride is the
  /// same on all ranks.
  virtual void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all,
                          CallTag tag, Context& context) = 0;
  /// Part d of `send` arrives as part rank() of rank d's `receive`. Both have the same stride, on
  /// all ranks, as in all_gather.
  virtual void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) = 0;
  /// out = elements [begin(rank), begin(rank + 1)) of the sum over ranks of `values`, added in rank
  /// order in float32; begin(r) = shard_begin(values.size(), world_size, r).
  virtual void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                              Context& context) = 0;
  /// values = sum over ranks, in rank order in float32: the same bits on every rank.
  virtual void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) = 0;
  /// `bytes` of `root` arrive on every rank.
  virtual void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) = 0;
  /// Returns (on the stream) when every rank has entered.
  virtual void barrier(CallTag tag, Context& context) = 0;

  /// A new transport over the ranks that pass the same color (>= 0), ordered by rank. Collective
  /// and blocking: not enqueued.
  virtual std::unique_ptr<Transport> split(int color) = 0;

  /// Ends the group for everyone, from any thread: pending and later calls throw `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;

  virtual TrafficCounters counters() const = 0;
};

/// First element of rank r's shard: balanced to within one, in order.
constexpr size_t shard_begin(size_t numel, int world_size, int r) {
  const auto size = static_cast<size_t>(world_size), index = static_cast<size_t>(r);
  return numel / size * index + (numel % size < index ? numel % size : index);
}

/// Bytes of the header in front of each (destination, collective): counted in bytes_sent.
inline constexpr size_t kFrameHeaderBytes = 64;

/// Shapes a rank's link to `bits_per_second` both ways inside the transport (0: no pacing).
struct Pacing {
  double bits_per_second = 0;
  /// Burst in bytes: max(8000, rate * 1 ms), as the shaped links have it.
  size_t burst_bytes() const;
};

struct TransportOptions {
  int rank = 0;
  int world_size = 1;
  /// How long a peer may stay silent inside one call.
  std::chrono::milliseconds timeout{30000};
  Pacing pacing{};
  /// Where ranks meet: "file:DIR" (an empty or new directory all ranks see) or "tcp:HOST:PORT"
  /// (rank 0 listens there). Unused by in_process.
  std::string store{};
  /// Network interface to bind, e.g. "eth0"; empty: the one that routes to the store, else "lo".
  std::string network_interface{};
  /// Path of the plug-in; empty: searched beside this library, then in the package.
  std::string plugin_path{};
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
/// Rank, world size and store from torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR,
/// MASTER_PORT) or GRADWIRE_RANK, GRADWIRE_WORLD_SIZE, GRADWIRE_STORE, GRADWIRE_INTERFACE, which
/// win. Under torchrun itself, whose own store holds MASTER_PORT, the port after it. The one place
/// in the library that reads the environment.
/// @throws InvalidArgument naming the variable that is missing or malformed.
TransportOptions from_environment();
}  // namespace comm

}  // namespace gradwire
