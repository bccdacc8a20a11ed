#pragma once
// A stream is an in-order queue of work on one device: a worker thread for the CPU, a cudaStream_t
// for a GPU. Everything that takes a Context enqueues and returns; wait() is where errors surface.

#include <memory>
#include <string>

#include "gradwire/kernels/core/task.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire {

class Stream {
 public:
  virtual ~Stream() = default;

  virtual Device device() const = 0;

  /// Appends work. Called from a task of this same stream it runs at once, so that pieces which
  /// enqueue compose. After a task has thrown, later tasks are dropped until wait() reports it.
  /// @throws DeviceError on a CUDA stream: kernels are launched on native_handle() instead.
  /// InvalidArgument, as wait() does, in a process forked since from the one that made a stream
  /// with a thread, which the fork has not.
  virtual void enqueue(Task task) = 0;

  /// Blocks until all enqueued work is done; throws the first error and makes the stream usable
  /// again. Never call it from a task of this stream.
  virtual void wait() = 0;

  /// The threads of this CPU stream's loops. @throws DeviceError on a CUDA stream.
  virtual ThreadPool& pool() = 0;

  /// The cudaStream_t, or nullptr on the CPU.
  virtual void* native_handle() const { return nullptr; }
};

struct CpuStreamOptions {
  int threads = 1;                 ///< of each loop inside a task
  std::string name = "gw-stream";  ///< of the worker thread, as debuggers show it (15 characters)
  /// The threads of loops, shared with other streams (they take turns). None: `threads` of its own.
  std::shared_ptr<ThreadPool> shared_pool = nullptr;
};

/// A queue served by one worker thread.
std::unique_ptr<Stream> make_cpu_stream(CpuStreamOptions options = {});

/// A stream without a queue: enqueue() runs the task in the caller, and wait() throws what failed.
std::unique_ptr<Stream> make_inline_stream(int threads = 1);

namespace cuda {

/// Number of usable GPUs: 0 in a build without CUDA, without a driver, or without a device.
int device_count();

/// Why device_count() is 0, in words; empty when it is not.
std::string unavailable_reason();

/// A non-blocking stream on GPU `device_index`. @throws DeviceError naming the call that failed,
/// InvalidArgument for an index that is out of range.
std::unique_ptr<Stream> make_stream(int device_index);

/// Makes a GPU the calling thread's current one and returns the one before, for libraries that work
/// on the current one. In a build without CUDA it and the two below throw DeviceError.
int exchange_device(int device_index);

/// Whether what is enqueued on this GPU's stream goes into a graph and does not run now.
bool is_capturing(const Stream& stream);

/// From now on calls of this thread (queries of events) do not break captures on other threads.
void exempt_thread_from_captures();

}  // namespace cuda
}  // namespace gradwire
