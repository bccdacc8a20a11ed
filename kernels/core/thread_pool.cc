#include "gradwire/kernels/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

// The pool whose loop this thread is inside: a nested loop would wait for itself.
thread_local const ThreadPool* current_pool = nullptr;

class LoopScope {
 public:
  explicit LoopScope(const ThreadPool* pool) : outer_(std::exchange(current_pool, pool)) {}
  ~LoopScope() { current_pool = outer_; }
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;

 private:
  const ThreadPool* outer_;
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

int checked_threads(int threads) {
  check(threads >= 1 && threads <= 1024, "thread pool: threads is ", threads,
        ", must be in [1, 1024]");
  return threads;
}

// About 20 microseconds of polling; none when there are more threads than cores, where polling
// would only keep the others from running.
int polls(int threads) {
  return static_cast<unsigned>(threads) <= std::thread::hardware_concurrency() ? 1000 : 0;
}

}  // namespace

// The threads beside the caller, and the loop they are in.
class ThreadPool::Workers {
 public:
  Workers(const ThreadPool* pool, int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void run(size_t count, const std::function<void(size_t)>& body);

 private:
  void work();
  void poll_for_loop(size_t seen) const;
  void take_indices(const std::function<void(size_t)>& body);
  void finish_loop();

  const ThreadPool* const pool_;
  const int spins_;  // polls before a thread blocks
  std::vector<std::thread> threads_;
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

ThreadPool::ThreadPool(int threads)
    : threads_(checked_threads(threads)),
      workers_(threads == 1 ? nullptr : std::make_unique<Workers>(this, threads)) {}

ThreadPool::~ThreadPool() { process_.let_go(workers_); }

void ThreadPool::parallel_for(size_t count, const std::function<void(size_t)>& body) {
  if (count <= 1 || threads_ == 1 || current_pool == this) {
    for (size_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  process_.check_here("thread pool");
  workers_->run(count, body);
}

ThreadPool::Workers::Workers(const ThreadPool* pool, int threads)
    : pool_(pool), spins_(polls(threads)) {
  threads_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

ThreadPool::Workers::~Workers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  start_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPool::Workers::run(size_t count, const std::function<void(size_t)>& body) {
  std::lock_guard turn(turn_);
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1);
  }
  start_.notify_all();
  take_indices(body);
  finish_loop();
  if (std::exception_ptr error = std::exchange(error_, nullptr)) {
    std::rethrow_exception(error);
  }
}

// Closes the loop to workers that wake late and waits for those inside.
void ThreadPool::Workers::finish_loop() {
  {
    std::lock_guard lock(mutex_);
    body_ = nullptr;
  }
  for (int spin = 0; spin < spins_ && joined_.load() != 0; ++spin) {
    pause();
  }
  std::unique_lock lock(mutex_);
  finish_.wait(lock, [this] { return joined_.load() == 0; });
}

void ThreadPool::Workers::take_indices(const std::function<void(size_t)>& body) {
  LoopScope scope(pool_);
  try {
    for (size_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      body(i);
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = std::current_exception();
    }
    next_.store(count_);
  }
}

// Polls until a newer loop than `seen` begins, for as long as that is cheaper than blocking.
void ThreadPool::Workers::poll_for_loop(size_t seen) const {
  for (int spin = 0; spin < spins_ && generation_.load() == seen; ++spin) {
    pause();
  }
}

void ThreadPool::Workers::work() {
  size_t seen = 0;
  for (;;) {
    poll_for_loop(seen);
    const std::function<void(size_t)>* body = nullptr;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return generation_.load() != seen; });
      if (stop_) {
        return;
      }
      seen = generation_.load();
      body = body_;
      if (body == nullptr) {
        continue;
      }
      joined_.fetch_add(1);
    }
    take_indices(*body);
    std::lock_guard lock(mutex_);
    if (joined_.fetch_sub(1) == 1) {
      finish_.notify_one();
    }
  }
}

int default_threads(int local_world_size) {
  check(local_world_size >= 1, "default_threads: local world size is ", local_world_size,
        ", must be at least 1");
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / local_world_size);
}

}  // namespace gradwire
