#pragma once
// A point in a stream's work that other streams, and the host, can wait for.

#include <memory>

#include "gradwire/kernels/core/stream.h"

namespace gradwire {

/// Belongs to one device; every stream it is used with is of that device. One thread at a time
/// calls record() and hold(). Before the first
/// record() it counts as passed. Recording again moves it: whoever waits already still waits for
/// the earlier point.
class Event {
 public:
  virtual ~Event() = default;

  virtual Device device() const = 0;

  /// The point behind everything enqueued on the stream so far. A stream whose task has thrown
  /// passes it too: the error surfaces in that stream's own wait().
  virtual void record(Stream& stream) = 0;

  /// What is enqueued on `stream` from now on begins when the point is passed. The host goes on.
  virtual void hold(Stream& stream) = 0;

  /// Whether the point is passed, without waiting.
  virtual bool passed() const = 0;

  /// Blocks the host until the point is passed.
  virtual void wait() const = 0;
};

/// @throws DeviceError where there is no GPU, InvalidArgument for an index that is out of range.
std::unique_ptr<Event> make_event(Device device = {});

namespace cuda {
/// In a build without CUDA it throws DeviceError (no_cuda.cc).
std::unique_ptr<Event> make_event(int device_index);
}  // namespace cuda

}  // namespace gradwire
