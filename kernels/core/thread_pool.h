#pragma once
// A fixed set of threads for data-parallel loops. What an index computes never depends on the
// number of threads, so results have the same bits on any machine.

#include <cstddef>
#include <functional>
#include <memory>

#include "gradwire/kernels/core/of_process.h"

namespace gradwire {

/// Runs loops on `threads` threads, the caller being one of them. Between loops the others spin
/// briefly, then block. One loop at a time: callers on other threads take turns, and a loop inside
/// a loop of the same pool runs in the thread that asked for it.
class ThreadPool {
 public:
  /// @throws InvalidArgument unless threads is 1 to 1024.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(i) once for each i in [0, count), in any order, from any thread; returns when all
  /// are done. After an exception no further index is started and the first one is rethrown.
  /// @throws InvalidArgument in a process that was forked since, which has none of its threads; a
  /// pool of one works there.
  void parallel_for(size_t count, const std::function<void(size_t)>& body);

 private:
  class Workers;

  const OfProcess process_;
  const int threads_;
  std::unique_ptr<Workers> workers_;  // all but the caller; null where there are none
};

/// max(1, cores / ranks on this machine): what every rank gets unless it is told otherwise.
int default_threads(int local_world_size);

}  // namespace gradwire
