#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/of_process.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire {
namespace {

[[noreturn]] void throw_waits_for_itself(const std::string& name) {
  throw InvalidArgument(concat("stream '", name, "': wait() was called from one of its own tasks, ",
                               "must be called from outside the stream"));
}

// First in, first out; allocates only when more tasks wait than ever before.
class TaskRing {
 public:
  bool empty() const { return count_ == 0; }

  void push(Task task) {
    if (count_ == slots_.size()) {
      grow();
    }
    slots_[(first_ + count_) % slots_.size()] = std::move(task);
    ++count_;
  }

  Task pop() {
    Task task = std::move(slots_[first_]);
    first_ = (first_ + 1) % slots_.size();
    --count_;
    return task;
  }

 private:
  void grow() {
    std::vector<Task> larger(slots_.size() * 2);
    for (size_t i = 0; i < count_; ++i) {
      larger[i] = std::move(slots_[(first_ + i) % slots_.size()]);
    }
    slots_ = std::move(larger);
    first_ = 0;
  }

  std::vector<Task> slots_ = std::vector<Task>(256);
  size_t first_ = 0;
  size_t count_ = 0;
};

// One worker thread serves the ring. The destructor runs what is queued; an error nobody waited
// for ends with the queue.
class Queue {
 public:
  explicit Queue(const std::string& name) : worker_([this, name] { work(name); }) {}

  ~Queue() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    queued_.notify_one();
    worker_.join();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  bool inside() const { return std::this_thread::get_id() == worker_.get_id(); }

  void push(Task task) {
    {
      std::lock_guard lock(mutex_);
      ring_.push(std::move(task));
      ++enqueued_;
    }
    queued_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    const uint64_t last = enqueued_;
    passed_.wait(lock, [&] { return done_ >= last; });
    if (std::exception_ptr error = std::exchange(error_, nullptr)) {
      lock.unlock();
      std::rethrow_exception(std::move(error));
    }
  }

 private:
  void work(const std::string& name) {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    std::unique_lock lock(mutex_);
    for (;;) {
      queued_.wait(lock, [this] { return stop_ || !ring_.empty(); });
      if (ring_.empty()) {
        return;
      }
      const bool dropped = error_ != nullptr;
      Task task = ring_.pop();
      lock.unlock();
      std::exception_ptr error = dropped ? nullptr : run(task);
      task = Task();  // what it captured is destroyed outside the lock
      lock.lock();
      if (error) {
        error_ = std::move(error);
      }
      ++done_;
      passed_.notify_all();
    }
  }

  static std::exception_ptr run(Task& task) {
    try {
      task();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  std::mutex mutex_;
  std::condition_variable queued_, passed_;
  TaskRing ring_;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;  // run or dropped
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread worker_;  // last: it uses all of the above
};

class QueueStream final : public Stream {
 public:
  explicit QueueStream(CpuStreamOptions options)
      : name_(std::move(options.name)),
        pool_(options.shared_pool ? std::move(options.shared_pool)
                                  : std::make_shared<ThreadPool>(options.threads)),
        queue_(std::make_unique<Queue>(name_)) {}

  // What is queued may use the pool, which is there until the queue has ended.
  ~QueueStream() override { process_.let_go(queue_); }

  Device device() const override { return {}; }
  ThreadPool& pool() override { return *pool_; }

  void enqueue(Task task) override {
    check(static_cast<bool>(task), "stream '", name_, "': the task is empty, must be callable");
    check_process();
    if (queue_->inside()) {
      task();
      return;
    }
    queue_->push(std::move(task));
  }

  void wait() override {
    check_process();
    if (queue_->inside()) {
      throw_waits_for_itself(name_);
    }
    queue_->wait();
  }

 private:
  void check_process() const {
    if (!process_.here()) [[unlikely]] {
      process_.check_here(concat("stream '", name_, "'"));
    }
  }

  const OfProcess process_;
  const std::string name_;
  const std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<Queue> queue_;  // last: its tasks use the pool
};

// Runs tasks in the caller, one caller at a time.
class InlineStream final : public Stream {
 public:
  explicit InlineStream(int threads) : pool_(threads) {}

  Device device() const override { return {}; }
  ThreadPool& pool() override { return pool_; }

  void enqueue(Task task) override {
    check(static_cast<bool>(task), "inline stream: the task is empty, must be callable");
    if (inside()) {
      task();
      return;
    }
    std::lock_guard turn(turn_);
    if (error_) {
      return;
    }
    runner_ = std::this_thread::get_id();
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
    }
    runner_ = std::thread::id();
  }

  void wait() override {
    if (inside()) {
      throw_waits_for_itself("inline");
    }
    std::unique_lock turn(turn_);
    if (std::exception_ptr error = std::exchange(error_, nullptr)) {
      turn.unlock();
      std::rethrow_exception(std::move(error));
    }
  }

 private:
  bool inside() const { return runner_.load() == std::this_thread::get_id(); }

  ThreadPool pool_;
  std::mutex turn_;
  std::atomic<std::thread::id> runner_{};
  std::exception_ptr error_;
};

}  // namespace

std::unique_ptr<Stream> make_cpu_stream(CpuStreamOptions options) {
  return std::make_unique<QueueStream>(std::move(options));
}

std::unique_ptr<Stream> make_inline_stream(int threads) {
  return std::make_unique<InlineStream>(threads);
}

}  // namespace gradwire
