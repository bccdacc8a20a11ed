#pragma once
// The engine below a transport: ordered, tagged messages between pairs of ranks. Collectives are
// written once above it (collectives.h).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

using Deadline = std::chrono::steady_clock::time_point;

struct RebuildOptions;

/// A posted message. 0 is "nothing posted".
using MessageHandle = uint64_t;

/// A peer stayed silent past the deadline; its connection has not ended.
class SilentPeer : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Messages between ranks. An engine that is destroyed leaves in good order: peers still receive
/// what they were sent, and it waits for that at most as long as a peer may be silent. Calls may
/// come from several threads, each waiting for messages of its own. All errors are TransportError;
/// after the first one the engine is closed and every later call throws the same reason. Once a
/// call has thrown, no buffer that was posted is touched any more.
class PointToPoint {
 public:
  virtual ~PointToPoint() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Starts sending; `bytes` stays untouched until wait() returns. At most kMessageBytes.
  virtual MessageHandle post_send(int destination, uint64_t tag,
                                  std::span<const std::byte> bytes) = 0;
  /// Starts receiving into `bytes`, which holds at least what the sender sends under this tag.
  virtual MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) = 0;
  /// Blocks until the message has been sent or has arrived. @throws TransportError naming the peer
  /// when it closed or died, SilentPeer when it stayed silent past the deadline.
  virtual void wait(MessageHandle message, Deadline deadline) = 0;

  /// Closes all pairs at once, so that every rank fails now instead of at its deadline. Idempotent,
  /// callable from any thread, wakes a blocked wait().
  virtual void close(std::string_view reason) noexcept = 0;

  /// Closes in good order, for an engine that goes on in another form: first the peers receive what
  /// they were sent, as when it is destroyed. While no other call runs.
  virtual void leave(std::string_view reason) noexcept { close(reason); }

  /// What rebuild() made.
  struct Survivors {
    std::shared_ptr<PointToPoint> engine;
    std::vector<int> old_ranks;  ///< rank r of `engine` was rank old_ranks[r] here
  };
  /// An engine of the ranks that are left, as Transport::rebuild() says; `options.timeout` is not
  /// 0. This engine has been closed. Not from several threads at once.
  virtual Survivors rebuild(const RebuildOptions& options);

  /// Largest single message: receivers post buffers of this size before they trust a length.
  static constexpr size_t kMessageBytes = size_t{1} << 20;
};

}  // namespace gradwire
