#pragma once
// GPUs made of threads: the program that links fake_gpu.cc sees eight, whose streams are queues with
// a worker each and whose memory is the host's. For tests of what is enqueued on streams by a
// library that is faked as well.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::test {

class FakeGpuStream;

/// What was captured: the kernels of all streams that joined, in the order of their launches, in
/// which a replay runs them.
struct FakeGraph {
  /// Where a stream has come to.
  struct Place {
    std::shared_ptr<FakeGraph> graph{};
    const FakeGpuStream* stream = nullptr;
    size_t launched = 0;
  };
  void add(const FakeGpuStream* stream, std::function<void()> kernel);

  std::mutex mutex;
  std::vector<std::function<void()>> kernels;
  std::map<const FakeGpuStream*, size_t> launched, joined;  // of each stream, and waited for
  std::set<FakeGpuStream*> members;
};

class FakeGpuStream final : public Stream {
 public:
  explicit FakeGpuStream(int index) : index_(index), worker_([this] { run(); }) {}
  ~FakeGpuStream() override;

  Device device() const override { return {DeviceType::kCuda, index_}; }
  void enqueue(Task) override;
  void wait() override;
  ThreadPool& pool() override;
  void* native_handle() const override { return const_cast<FakeGpuStream*>(this); }

  /// A kernel.
  void launch(std::function<void()> kernel);
  /// What is launched meanwhile is kept, for replay(), here and on streams that wait for events
  /// recorded here. @throws DeviceError where one of those has work that nobody waits for.
  void begin_capture();
  void end_capture();
  void replay();
  bool is_capturing() const;
  /// Of events.
  FakeGraph::Place place_in_graph() const;
  void join(const FakeGraph::Place& place);

 private:
  void run();

  const int index_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::shared_ptr<FakeGraph> graph_;     // while it is captured
  std::shared_ptr<FakeGraph> captured_;  // what replay() runs
  bool busy_ = false, stop_ = false;
  std::thread worker_;
};

struct FakeGpuCounts {
  std::atomic<int> events{0}, allocations{0};     ///< since the program started
  std::atomic<size_t> bytes{0}, pinned_bytes{0};  ///< now: of all GPUs, and pinned of the host
};
FakeGpuCounts& fake_gpu_counts();

/// The GPU that is current in this thread.
int fake_current_device();

}  // namespace gradwire::test
