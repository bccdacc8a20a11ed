#include "gradwire/comm/internal/nccl_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace gradwire {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

/// Yields at first, since a launch takes microseconds, then sleeps longer and longer.
class Pauses {
 public:
  void pause() {
    if (++count_ < 64) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(length_);
    length_ = std::min(length_ * 2, microseconds(1000));
  }

 private:
  int count_ = 0;
  microseconds length_{20};
};

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, const NcclMembership& membership,
                                   NcclConfig config, std::function<void()> go_on)
    : nccl_(library.functions),
      who_(membership.who),
      timeout_(membership.timeout),
      go_on_(std::move(go_on)) {
  const std::string what = concat("joining ", membership.size, " ranks");
  const NcclResult result = nccl_.comm_init_rank_config(&comm_, membership.size, membership.id,
                                                        membership.rank, &config);
  try {
    if (is_failure(result)) {
      fail(what, result);
    }
    poll(what);
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() { abort(); }

std::string NcclCommunicator::words_for(NcclResult result) const {
  const char* const name = nccl_.get_error_string(result);
  const char* const last = nccl_.get_last_error(comm_);
  const bool has_last = last != nullptr && *last != '\0';
  return concat(name == nullptr ? "an error without a name" : name, " (ncclResult_t ",
                static_cast<int>(result), ")", has_last ? ": " : "", has_last ? last : "");
}

void NcclCommunicator::fail(std::string_view what, NcclResult result) {
  throw TransportError(concat("nccl: ", who_, ": ", what, ": ", words_for(result)));
}

NcclResult NcclCommunicator::state() noexcept {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult result = nccl_.comm_get_async_error(comm_, &state);
  return is_failure(result) ? result : state;
}

void NcclCommunicator::poll(std::string_view what) {
  const auto deadline = steady_clock::now() + timeout_;
  Pauses pauses;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) {
        break;
      }
      const NcclResult now = state();
      if (now == NcclResult::kSuccess) {
        return;
      }
      if (now != NcclResult::kInProgress) {
        fail(what, now);
      }
    }
    go_on_();
    if (steady_clock::now() >= deadline) {
      throw TransportError(concat("nccl: ", who_, ": ", what, ": not begun after ",
                                  timeout_.count(), " ms: a rank is missing"));
    }
    pauses.pause();
  }
  go_on_();
  throw TransportError(concat("nccl: ", who_, ": ", what, ": the communicator was aborted"));
}

void NcclCommunicator::call_group(std::string_view what, Body body, void* arguments) {
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      go_on_();
      throw TransportError(concat("nccl: ", who_, ": ", what, ": the communicator was aborted"));
    }
    if (const NcclResult result = nccl_.group_start(); is_failure(result)) {
      fail(what, result);
    }
    const NcclResult inside = body(nccl_, comm_, arguments);
    const NcclResult end = nccl_.group_end();  // also after a failure: the group is the thread's
    if (is_failure(inside)) {
      fail(what, inside);
    }
    if (is_failure(end)) {
      fail(what, end);
    }
  }
  poll(what);
}

std::string NcclCommunicator::async_error() noexcept {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return {};
  }
  const NcclResult now = state();
  return is_failure(now) ? words_for(now) : std::string();
}

void NcclCommunicator::abort() noexcept {
  NcclCommHandle* comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm != nullptr) {
    // A failure of the abort itself leaves nothing to do: the handle must not be used again.
    (void)nccl_.comm_abort(comm);
  }
}

bool NcclCommunicator::close(std::chrono::milliseconds within) noexcept {
  const auto deadline = steady_clock::now() + within;
  bool orderly = false;
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return false;
    }
    orderly = !is_failure(state()) && !is_failure(nccl_.comm_finalize(comm_));
  }
  Pauses pauses;
  while (orderly) {
    std::unique_lock lock(mutex_);
    if (comm_ == nullptr) {
      return false;
    }
    const NcclResult now = state();
    if (now == NcclResult::kSuccess) {
      NcclCommHandle* const comm = std::exchange(comm_, nullptr);
      lock.unlock();
      return !is_failure(nccl_.comm_destroy(comm));
    }
    orderly = now == NcclResult::kInProgress && steady_clock::now() < deadline;
    lock.unlock();
    try {
      go_on_();
    } catch (const std::exception&) {
      orderly = false;  // a peer that failed is not waited for; whoever destroys has heard of it
    }
    pauses.pause();
  }
  abort();
  return false;
}

void* NcclCommunicator::register_buffer(std::span<std::byte> bytes) {
  void* handle = nullptr;
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr || nccl_.comm_register == nullptr || nccl_.comm_deregister == nullptr) {
    return nullptr;
  }
  const NcclResult result = nccl_.comm_register(comm_, bytes.data(), bytes.size(), &handle);
  if (is_failure(result)) {
    fail(concat("registering ", bytes.size(), " bytes"), result);
  }
  return handle;
}

void NcclCommunicator::unregister_buffer(void* handle) noexcept {
  std::lock_guard lock(mutex_);
  if (comm_ != nullptr && handle != nullptr) {
    // An aborted communicator has let go of its registrations; a live one has no reason to refuse.
    (void)nccl_.comm_deregister(comm_, handle);
  }
}

}  // namespace gradwire
