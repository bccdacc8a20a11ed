#pragma once
// A group of threads in which a byte changes between two ranks, for tests.

#include <map>
#include <memory>
#include <vector>

#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace gradwire::test {

constexpr size_t kNowhere = ~size_t{0};
constexpr size_t kLastByte = kNowhere - 1;  ///< of what there is room for
constexpr size_t kMiddleByte = kNowhere - 2;

/// Flips a bit of byte `place` of the `message`-th message it receives.
class CorruptingEngine final : public PointToPoint {
 public:
  CorruptingEngine(std::unique_ptr<PointToPoint> engine, size_t message, size_t place)
      : engine_(std::move(engine)), message_(message), place_(place) {}

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }
  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    return engine_->post_send(destination, tag, bytes);
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    const MessageHandle handle = engine_->post_recv(source, tag, bytes);
    if (!bytes.empty()) {
      posted_[handle] = bytes;
    }
    return handle;
  }
  void wait(MessageHandle message, Deadline deadline) override {
    engine_->wait(message, deadline);
    const auto found = posted_.find(message);
    if (found == posted_.end()) {
      return;
    }
    const std::span<std::byte> bytes = found->second;
    posted_.erase(found);
    const size_t place = place_ == kLastByte     ? bytes.size() - 1
                         : place_ == kMiddleByte ? bytes.size() / 2
                                                 : place_;
    if (received_++ == message_ && place < bytes.size()) {
      bytes[place] ^= std::byte{0x10};
    }
  }
  void close(std::string_view reason) noexcept override { engine_->close(reason); }

  /// Messages so far, without those that have no room.
  size_t received() const { return received_; }

 private:
  std::unique_ptr<PointToPoint> engine_;
  size_t message_, place_, received_ = 0;
  std::map<MessageHandle, std::span<std::byte>> posted_;
};

/// Of whose ranks rank 0 receives the change.
struct CorruptedGroup {
  CorruptedGroup(int world_size, size_t message, size_t place) {
    auto engines = make_in_process_engines(world_size);
    auto corrupting =
        std::make_unique<CorruptingEngine>(std::move(engines[0]), message, place);
    engine = corrupting.get();
    engines[0] = std::move(corrupting);
    for (auto& each : engines) {
      ranks.push_back(make_point_to_point_transport("in_process", std::move(each), {}));
    }
  }
  Transport& operator[](int rank) const { return *ranks[static_cast<size_t>(rank)]; }

  std::vector<std::unique_ptr<Transport>> ranks;
  const CorruptingEngine* engine;  ///< rank 0's
};

}  // namespace gradwire::test
