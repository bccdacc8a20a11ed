#pragma once
// A queue of work of the reducer's, with its thread or its GPU's stream.

#include <memory>
#include <string>
#include <utility>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire {

/// A queue of work with its scratch memory. All workers of a reducer on the CPU share one pool of
/// threads.
struct Worker {
  Worker(Device device, const std::shared_ptr<ThreadPool>& pool, const std::string& name)
      : stream(device.type == DeviceType::kCpu
                   ? make_cpu_stream({.name = name, .shared_pool = pool})
                   : cuda::make_stream(device.index)),
        workspace(device.type == DeviceType::kCpu ? std::make_unique<Workspace>()
                                                  : std::make_unique<Workspace>(*stream)),
        context{*stream, *workspace} {}
  // A queue runs dry before what its tasks use goes; memory in a GPU's stream order goes on it.
  ~Worker() {
    if (stream->device().type == DeviceType::kCpu) {
      stream.reset();
    }
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// On the CPU in the queue's turn; for a GPU at once, since the task itself enqueues.
  void run(Task task) {
    if (stream->device().type == DeviceType::kCpu) {
      stream->enqueue(std::move(task));
    } else {
      task();
    }
  }

  std::unique_ptr<Stream> stream;
  std::unique_ptr<Workspace> workspace;
  Context context;
};

}  // namespace gradwire
