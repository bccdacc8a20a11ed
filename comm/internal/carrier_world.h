#pragma once
// What the transports over one carrier share: the control group, and engines that close when the
// world has ended.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "gradwire/comm/internal/control_group.h"
#include "gradwire/comm/internal/stream_transport.h"
#include "gradwire/comm/transport/carrier.h"

namespace gradwire {

/// A table, used by one thread at a time, and closed once: by its last user where somebody asks for
/// it during a call.
class CarrierEngine {
 public:
  explicit CarrierEngine(Carrier carrier) : carrier_(std::move(carrier)) {}
  ~CarrierEngine() { close(); }
  CarrierEngine(const CarrierEngine&) = delete;
  CarrierEngine& operator=(const CarrierEngine&) = delete;

  template <class F>
  void use(const F& body) {
    struct AtEnd {
      CarrierEngine& engine;
      ~AtEnd() {
        if (engine.closing_) {
          engine.close();
        }
      }
    } at_end{*this};
    std::lock_guard lock(users_);
    if (closed_) {
      throw std::runtime_error("the engine has been closed");
    }
    body(carrier_);
  }

  void close() noexcept;

 private:
  Carrier carrier_;
  std::mutex users_;
  bool closed_ = false;
  std::atomic<bool> closing_{false};
};

/// The control group and the engines of a transport and those split from it.
class CarrierWorld final : public World {
 public:
  /// Collective: brings the ranks together over `engine`, which is the whole world's.
  CarrierWorld(std::shared_ptr<CarrierEngine> engine, int rank, int world_size,
               const CarrierOptions& options);

  void close(const TransportError& reason) noexcept override { control_->abort(reason); }
  ControlGroup& control() { return *control_; }

  /// An engine to close when the world has ended.
  void add(const std::shared_ptr<CarrierEngine>& engine);

  const std::chrono::milliseconds timeout;
  std::mutex splits;  // guards next_group
  uint16_t next_group = 1;

 private:
  void close_engines();

  std::mutex mutex_;
  std::vector<std::weak_ptr<CarrierEngine>> engines_;
  std::optional<ControlGroup> control_;  // last: its thread uses the rest
};

}  // namespace gradwire
