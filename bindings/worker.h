#pragma once
// Where the work of one Python object runs: in the calling thread, without the GIL.

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "gradwire/kernels/core/memory.h"

namespace gradwire::bindings {

/// A stream that runs work in the caller, its scratch memory, and a lock: without the GIL two
/// Python threads may enter one object.
class Worker {
 public:
  explicit Worker(int threads) : threads_(threads), stream_(make_inline_stream(threads)) {}

  /// Runs work(context) to its end with the GIL released and throws what failed in it.
  /// @throws InvalidArgument in a process forked after the worker's threads were started.
  template <class Work>
  void run(Work&& work) {
    check(threads_ == 1 || process_ == ::getpid(), "threads: made ", threads_, " in process ",
          process_, ", which a fork does not carry over: make the object after the fork");
    pybind11::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    Context context{*stream_, workspace_};
    work(context);
    stream_->wait();
  }

  /// Runs look() with the GIL held while no other thread is inside run() or look().
  template <class Look>
  auto alone(Look&& look) {
    std::unique_lock lock(mutex_, std::defer_lock);
    {
      // Nobody waits for the lock with the GIL in hand: its holder may need the GIL.
      pybind11::gil_scoped_release release;
      lock.lock();
    }
    return look();
  }

 private:
  const int threads_;
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

}  // namespace gradwire::bindings
