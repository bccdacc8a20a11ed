#pragma once
// A way onto the thread that does all of a Gloo device's reading and writing.

#include <gloo/transport/tcp/device.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <system_error>
#include <utility>

/// Runs `answer` on the device's thread soon after each ring(), once for several rings.
class Doorbell final : public gloo::transport::tcp::Handler {
 public:
  Doorbell(std::shared_ptr<gloo::transport::tcp::Device> device, std::function<void()> answer)
      : device_(std::move(device)),
        answer_(std::move(answer)),
        descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0) {
      throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    device_->registerDescriptor(descriptor_, EPOLLIN, this);
  }
  /// Returns when no answer is under way. Not from an answer itself.
  ~Doorbell() override {
    device_->unregisterDescriptor(descriptor_, this);
    close(descriptor_);
  }
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void ring() noexcept {
    const uint64_t one = 1;
    // It fails only when the count is full, and then the bell is ringing already.
    [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof(one));
  }

 private:
  void handleEvents(int) override {
    uint64_t rings = 0;
    if (read(descriptor_, &rings, sizeof(rings)) == sizeof(rings)) {
      answer_();
    }
  }

  std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::function<void()> answer_;
  int descriptor_;
};
