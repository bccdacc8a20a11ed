#pragma once
// Where the work of one Python object runs: in the calling thread, or on a GPU's stream, without
// the GIL.

#include <memory>
#include <optional>
#include <string>

#include "gradwire/bindings/one_at_a_time.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/stream_order.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire::bindings {

/// A stream that runs work in the caller, or the streams of a GPU that calls name; its scratch
/// memory, and a lock: without the GIL two Python threads may enter one object.
class Worker {
 public:
  explicit Worker(int threads, Device device = {})
      : threads_(threads), device_(device), workspace_(device) {
    if (on_gpu()) {
      order_ = std::make_unique<StreamOrder>(device.index);
    } else {
      stream_ = make_inline_stream(threads);
    }
  }

  Device device() const { return device_; }
  bool on_gpu() const { return device_.type == DeviceType::kCuda; }

  /// Runs work(context) to its end with the GIL released and throws what failed in it. On a GPU it
  /// is enqueued on `stream`, a cudaStream_t of that GPU, behind what earlier calls have enqueued
  /// elsewhere, and not waited for; what is given to it stays valid until the stream has passed it.
  /// @throws InvalidArgument in a process forked after the worker's threads were started, or from
  /// one that uses the GPU, and as OneAtATime does.
  template <class Work>
  void run(Work&& work, void* stream = nullptr) {
    if (on_gpu()) {
      process_.check_here(name_of_gpu());
      pybind11::gil_scoped_release release;
      const OneAtATime::Inside inside(door_);
      order_->run(stream, [&](Stream& named) {
        Context context{named, workspace_};
        work(context);
      });
      return;
    }
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
  auto within(Look&& look) {
    std::optional<OneAtATime::Inside> inside;
    {
      pybind11::gil_scoped_release release;
      inside.emplace(door_);
    }
    return look();
  }

  /// The same, and on a GPU nothing that was enqueued is still to run.
  template <class Look>
  auto alone(Look&& look) {
    return within([&] {
      if (!on_gpu()) {
        return look();
      }
      process_.check_here(name_of_gpu());
      const CurrentGpu current(device_.index);
      {
        pybind11::gil_scoped_release release;
        order_->wait();
      }
      return look();
    });
  }

 private:
  std::string name_of_gpu() const { return concat("GPU ", device_.index); }

  const int threads_;
  const Device device_;
  const OfProcess process_;
  OneAtATime door_;
  std::unique_ptr<Stream> stream_;      // on the CPU
  std::unique_ptr<StreamOrder> order_;  // on a GPU
  Workspace workspace_;
};

}  // namespace gradwire::bindings
