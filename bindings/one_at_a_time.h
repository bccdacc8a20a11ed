#pragma once
// One call at a time into an object, and no wait that could have no end.

#include <atomic>
#include <mutex>
#include <thread>

#include "gradwire/kernels/core/error.h"

namespace gradwire::bindings {

/// Above 0 while this thread runs Python for a call of ours that waits for it.
inline thread_local int callback_depth = 0;

/// Lives as long as such a callback.
class Callback {
 public:
  Callback() { ++callback_depth; }
  ~Callback() { --callback_depth; }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
};

/// A lock that calls of other threads wait for. A callback never waits: the call that holds the
/// lock may be the one that waits for the callback.
class OneAtATime {
 public:
  /// Enter without the GIL: whoever is inside may need it to leave.
  class Inside {
   public:
    /// @throws InvalidArgument in a callback while another call is inside.
    explicit Inside(OneAtATime& door) : door_(door), lock_(door.mutex_, std::defer_lock) {
      const bool again = door.owner_ == std::this_thread::get_id();
      if (again || callback_depth > 0) {
        check(
            !again && lock_.try_lock(),
            "a callback called an object that another call is using, which may be waiting for the "
            "callback; expected a call from outside of it");
      } else {
        lock_.lock();
      }
      door_.owner_ = std::this_thread::get_id();
    }
    ~Inside() { door_.owner_ = std::thread::id(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    OneAtATime& door_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

}  // namespace gradwire::bindings
