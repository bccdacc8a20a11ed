#pragma once
// What calls enqueue on different streams of one GPU, one call behind the other.

#include <memory>
#include <utility>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/external_stream.h"

namespace gradwire::bindings {

/// Makes a GPU the thread's current one, and the earlier one again at the end.
class CurrentGpu {
 public:
  explicit CurrentGpu(int index) : before_(cuda::exchange_device(index)) {}
  ~CurrentGpu() {
    try {
      (void)cuda::exchange_device(before_);
    } catch (const DeviceError&) {  // sticky: every later call says so
    }
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  const int before_;
};

/// The work of one object: it shares scratch memory and state, so a call begins behind the last
/// one, whose stream may have been another. While a stream is captured into a graph this is left to who
/// captures: what ran before is waited for, and replays are ordered by their caller.
class StreamOrder {
 public:
  explicit StreamOrder(int index) : index_(index), passed_(cuda::make_event(index)) {}

  /// Calls work(stream), which enqueues on the stream of that handle.
  template <class Work>
  void run(void* handle, Work&& work) {
    const CurrentGpu current(index_);
    const std::unique_ptr<Stream> stream = cuda::wrap_stream(handle, index_);
    if (cuda::is_capturing(*stream)) {
      work(*stream);
      return;
    }
    // Also where the handle is the last one's: that stream may have ended, and its handle be another's.
    passed_->hold(*stream);
    try {
      work(*stream);
    } catch (...) {
      passed_->record(*stream);
      throw;
    }
    passed_->record(*stream);
  }

  /// Until all that was enqueued has run.
  void wait() const { passed_->wait(); }

 private:
  const int index_;
  std::unique_ptr<Event> passed_;
};

}  // namespace gradwire::bindings
