#pragma once
// What an NCCL transport and those split from it share on one rank: the control group, the first
// failure, and the watchdog: a thread that notices what the GPU's streams cannot tell.

#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "gradwire/comm/internal/control_group.h"
#include "gradwire/comm/internal/nccl_communicator.h"
#include "gradwire/comm/internal/stream_transport.h"
#include "gradwire/kernels/core/event.h"

namespace gradwire {

/// Some ranks of the world (ascending), and a number of their own.
struct NcclMembers {
  uint64_t group = 1;
  std::vector<int> ranks;
};

/// A call on its way: between `begin` and `end` on its stream.
struct NcclCall {
  std::string_view verb{};
  CallTag tag{};
  uint64_t sequence = 0;
  std::shared_ptr<const NcclMembers> members{};
  const NcclCommunicator* communicator = nullptr;
  std::unique_ptr<Event> begin{}, end{};
  const uint64_t* status = nullptr;  ///< in device memory: what this call's ranks agreed on
  std::chrono::steady_clock::time_point began{};
  bool has_begun = false;
  std::optional<std::chrono::steady_clock::time_point> farewell{};  ///< seen that a member has left

  std::string what() const;
};

class NcclWorld final : public World {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    int device_index = 0;
    std::chrono::milliseconds timeout{30000};
  };
  /// Collective: brings the ranks' control group together. `listener` is rank 0's.
  NcclWorld(const NcclLibrary& library, const Options& options,
            const ControlInvitation& invitation, Socket listener);
  ~NcclWorld() override;

  const NcclLibrary& library() const { return library_; }
  ControlGroup& control() { return *control_; }
  int rank() const { return options_.rank; }
  int device_index() const { return options_.device_index; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  /// The first failure, this rank's or one that others told.
  std::optional<TransportError> failure() { return control_->verdict({}); }
  /// What each of the members passed.
  std::vector<std::string> gather(const NcclMembers& members, std::string_view mine,
                                  std::string_view what);

  /// Throws the first failure, this rank's or one that others told.
  void check();
  /// Of a failure that the library reported: what the control group says, which knows who died and
  /// may hear it a moment later; else `error`.
  TransportError explain(const TransportError& error);
  /// Ends the group for all ranks: they are told, and the communicators aborted by a thread.
  void close(const TransportError& reason) noexcept override;

  /// Joins; the communicator is aborted when the world ends. @throws TransportError.
  std::shared_ptr<NcclCommunicator> join(const NcclMembers& members, const NcclConfig& config);

  /// An event, one used before where there is one.
  std::unique_ptr<Event> take_event();
  /// Watches a call whose events have been recorded.
  void watch(NcclCall call);
  /// Blocks until no call of the communicator is under way, at most `within`.
  bool drain(const NcclCommunicator* communicator, std::chrono::milliseconds within);

 private:
  void run();
  void look(std::unique_lock<std::mutex>& lock);
  void look_at_calls(std::unique_lock<std::mutex>& lock);
  void look_at_communicators();
  void compare_status(const NcclCall& call);
  /// With the call that waits for it on this rank, if one does.
  TransportError as_seen_here(const TransportError& reason);
  void end_here(const TransportError& reason);

  const NcclLibrary& library_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, news_ = false, ended_ = false;
  std::deque<NcclCall> calls_;
  std::vector<std::unique_ptr<Event>> free_events_;
  std::vector<std::weak_ptr<NcclCommunicator>> communicators_;
  std::optional<std::chrono::steady_clock::time_point> unexplained_since_;
  std::unique_ptr<Stream> stream_;  // of the watchdog, for statuses
  bool blamed_ = false;
  std::future<void> aborting_;
  std::thread aborter_;
  std::unique_ptr<ControlGroup> control_;
  std::thread thread_;
};

}  // namespace gradwire
