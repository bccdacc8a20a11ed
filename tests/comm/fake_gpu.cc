#include "tests/comm/fake_gpu.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"

namespace gradwire::test {
namespace {

thread_local int current_device = 0;

// What copies need to know: the host's memory is read before the call returns, and written before it
// returns unless it is pinned; a GPU's is not.
struct Allocations {
  std::mutex mutex;
  std::map<const std::byte*, size_t> sizes;  // of GPUs and pinned
};
Allocations& allocations() {
  static Allocations all;
  return all;
}

std::byte* allocate_counted(size_t bytes, std::atomic<size_t>& counter) {
  auto* const data = static_cast<std::byte*>(std::calloc(1, bytes));
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  ++fake_gpu_counts().allocations;
  counter += bytes;
  std::lock_guard lock(allocations().mutex);
  allocations().sizes[data] = bytes;
  return data;
}

void deallocate_counted(std::byte* data, std::atomic<size_t>& counter) noexcept {
  if (data == nullptr) {
    return;
  }
  {
    std::lock_guard lock(allocations().mutex);
    counter -= allocations().sizes.extract(data).mapped();
  }
  std::free(data);
}

bool is_reached_by_gpu(const std::byte* address) {
  Allocations& all = allocations();
  std::lock_guard lock(all.mutex);
  auto after = all.sizes.upper_bound(address);
  if (after == all.sizes.begin()) {
    return false;
  }
  --after;
  return address < after->first + after->second;
}

/// A point in a stream's work that is passed once.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;

  void pass() {
    std::lock_guard lock(mutex);
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};

class FakeGpuEvent final : public Event {
 public:
  explicit FakeGpuEvent(int index) : index_(index) { ++fake_gpu_counts().events; }
  Device device() const override { return {DeviceType::kCuda, index_}; }
  void record(Stream& stream) override {
    auto& recorded = static_cast<FakeGpuStream&>(stream);
    const auto point = std::make_shared<Point>();
    const FakeGraph::Place place = recorded.place_in_graph();
    {
      std::lock_guard lock(mutex_);
      point_ = point;
      place_ = place;
    }
    if (place.graph == nullptr) {
      recorded.launch([point] { point->pass(); });
    }
  }
  void hold(Stream& stream) override {
    auto& held = static_cast<FakeGpuStream&>(stream);
    std::lock_guard lock(mutex_);
    if (place_.graph != nullptr) {
      held.join(place_);
    } else if (point_ != nullptr) {
      // As CUDA's cudaErrorStreamCaptureIsolation.
      check(!held.is_capturing(), "fake GPU: a stream that is captured waits for work that is not");
      held.launch([point = point_] { point->wait(); });
    }
  }
  bool passed() const override {
    std::lock_guard lock(mutex_);
    if (point_ == nullptr) {
      return true;
    }
    std::lock_guard inner(point_->mutex);
    return point_->passed;
  }
  void wait() const override { throw DeviceError("fake GPU: wait() is not needed here"); }

 private:
  const int index_;
  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
  FakeGraph::Place place_;
};

}  // namespace

FakeGpuCounts& fake_gpu_counts() {
  static FakeGpuCounts counts;
  return counts;
}

int fake_current_device() { return current_device; }

FakeGpuStream::~FakeGpuStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

void FakeGpuStream::enqueue(Task) { throw DeviceError("CUDA stream: enqueue() takes no host task"); }

ThreadPool& FakeGpuStream::pool() { throw DeviceError("CUDA stream: pool() is of CPU streams"); }

void FakeGpuStream::wait() {
  std::unique_lock lock(mutex_);
  if (graph_ != nullptr) {
    throw DeviceError("fake GPU: wait() on a stream that is captured");
  }
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void FakeGpuStream::launch(std::function<void()> kernel) {
  std::lock_guard lock(mutex_);
  if (graph_ != nullptr) {
    graph_->add(this, std::move(kernel));
    return;
  }
  queue_.push_back(std::move(kernel));
  changed_.notify_all();
}

void FakeGraph::add(const FakeGpuStream* stream, std::function<void()> kernel) {
  std::lock_guard lock(mutex);
  kernels.push_back(std::move(kernel));
  ++launched[stream];
}

FakeGraph::Place FakeGpuStream::place_in_graph() const {
  std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    return {};
  }
  std::lock_guard inner(graph_->mutex);
  return {graph_, this, graph_->launched[this]};
}

void FakeGpuStream::join(const FakeGraph::Place& place) {
  std::lock_guard lock(mutex_);
  if (graph_ != nullptr && graph_ != place.graph) {
    throw DeviceError("fake GPU: two captures meet");
  }
  graph_ = place.graph;
  std::lock_guard inner(graph_->mutex);
  graph_->members.insert(this);
  size_t& joined = graph_->joined[place.stream];
  joined = std::max(joined, place.launched);
}

void FakeGpuStream::begin_capture() {
  std::lock_guard lock(mutex_);
  graph_ = std::make_shared<FakeGraph>();
}

void FakeGpuStream::end_capture() {
  std::shared_ptr<FakeGraph> graph;
  {
    std::lock_guard lock(mutex_);
    graph = std::exchange(graph_, nullptr);
  }
  for (FakeGpuStream* const member : graph->members) {
    if (member != this) {
      std::lock_guard lock(member->mutex_);
      member->graph_ = nullptr;
      if (graph->joined[member] < graph->launched[member]) {
        throw DeviceError("fake GPU: a captured stream has work that no other waits for");
      }
    }
  }
  captured_ = graph;
}

void FakeGpuStream::replay() {
  std::lock_guard lock(mutex_);
  queue_.insert(queue_.end(), captured_->kernels.begin(), captured_->kernels.end());
  changed_.notify_all();
}

bool FakeGpuStream::is_capturing() const {
  std::lock_guard lock(mutex_);
  return graph_ != nullptr;
}

void FakeGpuStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    const auto kernel = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    kernel();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace gradwire::test

// In place of the library's.
namespace gradwire::cuda {

using namespace gradwire::test;

int device_count() { return 8; }

std::string unavailable_reason() { return ""; }

std::unique_ptr<Stream> make_stream(int index) { return std::make_unique<FakeGpuStream>(index); }

std::unique_ptr<Event> make_event(int index) { return std::make_unique<FakeGpuEvent>(index); }

int exchange_device(int index) { return std::exchange(current_device, index); }

bool is_capturing(const Stream& stream) {
  return static_cast<const FakeGpuStream&>(stream).is_capturing();
}

void exempt_thread_from_captures() {}

std::byte* allocate(size_t bytes, int) { return allocate_counted(bytes, fake_gpu_counts().bytes); }

void deallocate(std::byte* data, int) noexcept {
  deallocate_counted(data, fake_gpu_counts().bytes);
}

std::byte* allocate_in_order(size_t bytes, int index, void*) { return allocate(bytes, index); }

void deallocate_in_order(std::byte* data, int, void* stream) noexcept {
  if (data != nullptr) {
    static_cast<FakeGpuStream*>(stream)->launch([data] { deallocate(data, 0); });
  }
}

std::byte* allocate_pinned(size_t bytes) {
  return allocate_counted(bytes, fake_gpu_counts().pinned_bytes);
}

void deallocate_pinned(std::byte* data) noexcept {
  deallocate_counted(data, fake_gpu_counts().pinned_bytes);
}

void copy(std::byte* to, const std::byte* from, size_t bytes, int, void* native_stream) {
  if (bytes == 0) {
    return;
  }
  auto* const stream = static_cast<FakeGpuStream*>(native_stream);
  if (!is_reached_by_gpu(from)) {
    auto staged = std::make_shared<std::vector<std::byte>>(from, from + bytes);
    stream->launch([to, staged] { std::memcpy(to, staged->data(), staged->size()); });
    return;
  }
  stream->launch([to, from, bytes] { std::memcpy(to, from, bytes); });
  if (!is_reached_by_gpu(to)) {
    stream->wait();
  }
}

}  // namespace gradwire::cuda
