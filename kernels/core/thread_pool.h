#pragma once
// A fixed set of threads for data-parallel loops. What an index computes never depends on the
// number of threads, so results have the same bits on any machine.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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
  void parallel_for(size_t count, const std::function<void(size_t)>& body);

 private:
  void work();
  void poll_for_loop(size_t seen) const;
  void take_indices(const std::function<void(size_t)>& body);
  void finish_loop();

  const int threads_;
  const int spins_;  // polls before a thread blocks
  std::vector<std::thread> workers_;
  std::mutex turn_;  // held for a whole loop
  std::mutex mutex_;
  std::condition_variable start_, finish_;
  const std::function<void(size_t)>* body_ = nullptr;  // null: no loop to join
  size_t count_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> generation_{0};  // of loops
  std::atomic<int> joined_{0};         // workers inside the loop
  bool stop_ = false;
  std::exception_ptr error_;
};

/// max(1, cores / ranks on this machine): what every rank gets unless it is told otherwise.
int default_threads(int local_world_size);

}  // namespace gradwire
