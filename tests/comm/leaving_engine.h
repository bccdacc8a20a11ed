#pragma once
// A rank whose messages stop in the middle of a collective, for tests.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport/frame.h"

namespace gradwire::test {

/// Where a rank's messages stop: behind the first one of a collective of one group.
struct LastMessage {
  uint16_t group = 0;
  size_t collective = 0;  ///< of the group, counted from arm()
};

/// Forwards to `inner`. Once armed, the second message of the chosen collective is not sent: when
/// the first one has left, `then` runs in its place, and ends the process or throws.
class LeavingEngine final : public PointToPoint {
 public:
  LeavingEngine(std::shared_ptr<PointToPoint> inner, std::function<void()> then)
      : inner_(std::move(inner)), then_(std::move(then)) {}

  void arm(LastMessage last) {
    std::lock_guard lock(mutex_);
    last_ = last;
    armed_ = true;
    firsts_ = 0;
  }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    const auto peers = static_cast<size_t>(world_size() - 1);
    bool leaves = false;
    {
      std::lock_guard lock(mutex_);
      if (armed_ && is_first_message(tag) && group_of(tag) == last_.group) {
        leaves = ++firsts_ == last_.collective * peers + 2;
      }
    }
    if (leaves) {
      inner_->wait(before_, std::chrono::steady_clock::now() + std::chrono::seconds(20));
      then_();
    }
    const MessageHandle handle = inner_->post_send(destination, tag, bytes);
    std::lock_guard lock(mutex_);
    if (group_of(tag) == last_.group) {
      before_ = handle;
    }
    return handle;
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    return inner_->post_recv(source, tag, bytes);
  }
  void wait(MessageHandle message, Deadline deadline) override { inner_->wait(message, deadline); }
  void close(std::string_view reason) noexcept override { inner_->close(reason); }

 private:
  std::shared_ptr<PointToPoint> inner_;
  std::function<void()> then_;
  std::mutex mutex_;
  LastMessage last_;
  bool armed_ = false;
  size_t firsts_ = 0;
  MessageHandle before_ = 0;
};

}  // namespace gradwire::test
