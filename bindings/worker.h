#pragma once
// Where the work of one Python object runs: in the calling thread, without the GIL.

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "gradwire/bindings/of_process.h"
#include "gradwire/bindings/one_at_a_time.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire::bindings {

/// A stream that runs work in the caller, its scratch memory, and a lock: without the GIL two
/// Python threads may enter one object.
class Worker {
 public:
  explicit Worker(int threads) : threads_(threads), stream_(make_inline_stream(threads)) {}

  /// Runs work(context) to its end with the GIL released and throws what failed in it.
  /// @throws InvalidArgument in a process forked after the worker's threads were started, and as
  /// OneAtATime does.
  template <class Work>
  void run(Work&& work) {
    if (threads_ > 1) {
      process_.check_here("threads");
    }
    pybind11::gil_scoped_release release;
    const OneAtATime::Inside inside(door_);
    Context context{*stream_, workspace_};
    work(context);
    stream_->wait();
  }

  /// Runs look() with the GIL held while no other thread is inside run() or look().
  template <class Look>
  auto alone(Look&& look) {
    std::optional<OneAtATime::Inside> inside;
    {
      pybind11::gil_scoped_release release;
      inside.emplace(door_);
    }
    return look();
  }

 private:
  const int threads_;
  const OfProcess process_;
  OneAtATime door_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

}  // namespace gradwire::bindings
