#pragma once
// One NCCL communicator: what it is in, and how each of its states is left within a deadline.

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/comm/transport/nccl_library.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// Who a communicator joins.
struct NcclMembership {
  NcclUniqueId id{};
  int rank = 0;
  int size = 1;
  std::string who;  ///< of this rank, for messages, e.g. "rank 3"
  std::chrono::milliseconds timeout{30000};
};

/// A non-blocking communicator: every call into the library returns at once, and what it began is
/// polled. One thread makes calls; abort() and async_error() come from others.
class NcclCommunicator {
 public:
  /// Joins, with the GPU that is current in this thread. `go_on` is called between polls, and ends
  /// the waiting by throwing. @throws TransportError "nccl: ..." with NCCL's own words, or at the
  /// timeout; the communicator has then been aborted.
  NcclCommunicator(const NcclLibrary& library, const NcclMembership& membership, NcclConfig config,
                   std::function<void()> go_on);
  /// Aborts unless close() did what there was to do.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Runs `body(functions, communicator)`, which enqueues through the library and returns the first
  /// result that is neither success nor in progress, as one group, and returns when all of it is on
  /// the stream; the host does not wait for it to run. @throws TransportError.
  using Body = NcclResult (*)(const NcclFunctions&, NcclCommHandle*, void* arguments);
  template <class F>
  void call(std::string_view what, F body) {
    call_group(
        what,
        [](const NcclFunctions& nccl, NcclCommHandle* comm, void* f) {
          return (*static_cast<F*>(f))(nccl, comm);
        },
        &body);
  }

  /// What NCCL has noticed on its own since, "" for nothing: a peer's socket that closed, a fault of
  /// the GPU. Not waiting.
  std::string async_error() noexcept;

  /// Ends what runs on the GPU and frees the communicator; any thread, idempotent. NCCL may take its
  /// time, or never come back from this.
  void abort() noexcept;

  /// The orderly end: what was sent reaches the peers. False when it took longer than the deadline,
  /// or failed, and the communicator was aborted instead: never destroyed after a failure.
  bool close(std::chrono::milliseconds within) noexcept;

  /// The handle that unregister_buffer() takes; null where this NCCL cannot register.
  void* register_buffer(std::span<std::byte> bytes);
  void unregister_buffer(void* handle) noexcept;

 private:
  void call_group(std::string_view what, Body body, void* arguments);
  void poll(std::string_view what);
  [[noreturn]] void fail(std::string_view what, NcclResult result);
  std::string words_for(NcclResult result) const;
  NcclResult state() noexcept;

  const NcclFunctions& nccl_;
  const std::string who_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> go_on_;
  std::mutex mutex_;  // held while NCCL is called with comm_
  NcclCommHandle* comm_ = nullptr;
};

}  // namespace gradwire
