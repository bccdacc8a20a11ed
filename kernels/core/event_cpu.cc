#include <condition_variable>
#include <mutex>
#include <utility>

#include "gradwire/kernels/core/event.h"

namespace gradwire {
namespace {

/// Outlives the event while a stream still holds a task of it.
struct Points {
  std::mutex mutex;
  std::condition_variable moved;
  uint64_t recorded = 0;  // points asked for
  uint64_t passed = 0;    // the latest one that was reached

  void pass(uint64_t point) {
    const std::lock_guard lock(mutex);
    if (point > passed) {
      passed = point;
      moved.notify_all();
    }
  }
  void wait_for(uint64_t point) {
    std::unique_lock lock(mutex);
    moved.wait(lock, [&] { return passed >= point; });
  }
};

/// Passes its point when it is destroyed: a stream drops tasks after an error, and whoever waits
/// for the point must not wait for ever.
class Mark {
 public:
  Mark(std::shared_ptr<Points> points, uint64_t point)
      : points_(std::move(points)), point_(point) {}
  Mark(Mark&& other) noexcept = default;
  Mark& operator=(Mark&&) = delete;
  ~Mark() {
    if (points_ != nullptr) {
      points_->pass(point_);
    }
  }
  void operator()() {}

 private:
  std::shared_ptr<Points> points_;
  uint64_t point_;
};

class CpuEvent final : public Event {
 public:
  Device device() const override { return {}; }

  void record(Stream& stream) override {
    check_stream(stream);
    uint64_t point;
    {
      const std::lock_guard lock(points_->mutex);
      point = ++points_->recorded;
    }
    stream.enqueue(Mark(points_, point));
  }

  void hold(Stream& stream) override {
    check_stream(stream);
    stream.enqueue([points = points_, point = last_point()] { points->wait_for(point); });
  }

  bool passed() const override {
    const std::lock_guard lock(points_->mutex);
    return points_->passed >= points_->recorded;
  }

  void wait() const override { points_->wait_for(last_point()); }

 private:
  static void check_stream(const Stream& stream) {
    check(stream.device().type == DeviceType::kCpu,
          "event: the stream is a CUDA stream, must be a CPU stream as the event's device is");
  }
  uint64_t last_point() const {
    const std::lock_guard lock(points_->mutex);
    return points_->recorded;
  }

  const std::shared_ptr<Points> points_ = std::make_shared<Points>();
};

}  // namespace

std::unique_ptr<Event> make_event(Device device) {
  if (device.type == DeviceType::kCuda) {
    return cuda::make_event(device.index);
  }
  return std::make_unique<CpuEvent>();
}

}  // namespace gradwire
