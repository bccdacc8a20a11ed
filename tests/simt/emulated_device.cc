// The one GPU that the emulator is, in place of the library's: its memory is the host's.

#include <cstdlib>
#include <cstring>
#include <new>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"
#include "tests/simt/device.h"

// Of Python, where it runs this; a GPU is waited for where its memory ends, which must not stop other
// threads of Python.
extern "C" __attribute__((weak)) int PyGILState_Check();
extern "C" __attribute__((visibility("default"))) int gradwire_frees_with_gil;
int gradwire_frees_with_gil = 0;
// That no event has been recorded behind: another stream would not wait for them.
extern "C" __attribute__((visibility("default"))) int gradwire_copies_unmarked;
int gradwire_copies_unmarked = 0;
// How often this thread has waited for a stream or an event.
extern "C" __attribute__((visibility("default"))) int gradwire_waits();

namespace {
thread_local int waits = 0;
}  // namespace

int gradwire_waits() { return waits; }

namespace gradwire::cuda {
namespace {

/// Launches run at once, so whatever is waited for has happened.
class PassedEvent final : public Event {
 public:
  Device device() const override { return testing::kEmulated; }
  void record(Stream&) override { gradwire_copies_unmarked = 0; }
  void hold(Stream&) override {}
  bool passed() const override { return true; }
  void wait() const override { ++waits; }
};

/// Of the handle it is given, which may be null.
class WrappedStream final : public Stream {
 public:
  explicit WrappedStream(void* handle) : handle_(handle) {}
  Device device() const override { return testing::kEmulated; }
  void enqueue(Task task) override { stream_.enqueue(std::move(task)); }
  void wait() override {
    ++waits;
    stream_.wait();
  }
  ThreadPool& pool() override { return stream_.pool(); }
  void* native_handle() const override { return handle_; }

 private:
  testing::TestStream stream_;
  void* const handle_;
};

}  // namespace

int device_count() { return 1; }

std::string unavailable_reason() { return ""; }

std::unique_ptr<Stream> make_stream(int) { return std::make_unique<WrappedStream>(nullptr); }

void check_device(std::string_view what, int device_index) {
  check(device_index == 0, what, ": device index is ", device_index, ", must be in [0, 1)");
}

std::unique_ptr<Stream> wrap_stream(void* native_handle, int device_index) {
  check_device("cuda::wrap_stream", device_index);
  return std::make_unique<WrappedStream>(native_handle);
}

void wait_for_device(int) { ++waits; }

int exchange_device(int) { return 0; }

bool is_capturing(const Stream&) { return false; }

void exempt_thread_from_captures() {}

std::unique_ptr<Event> make_event(int) { return std::make_unique<PassedEvent>(); }

std::byte* allocate_in_order(size_t bytes, int, void*) {
  auto* const data = static_cast<std::byte*>(std::calloc(1, bytes));
  return data != nullptr ? data : throw std::bad_alloc();
}

std::byte* allocate(size_t bytes, int) {
  ++testing::device_allocations();
  return allocate_in_order(bytes, 0, nullptr);
}

void deallocate(std::byte* data, int) noexcept {
  if (data != nullptr && PyGILState_Check != nullptr && PyGILState_Check() != 0) {
    ++gradwire_frees_with_gil;
  }
  std::free(data);
}

void deallocate_in_order(std::byte* data, int, void*) noexcept { std::free(data); }

std::byte* allocate_pinned(size_t bytes) { return allocate(bytes, 0); }

void deallocate_pinned(std::byte* data) noexcept { std::free(data); }

void copy(std::byte* destination, const std::byte* source, size_t bytes, int, void*) {
  if (bytes > 0) {
    ++gradwire_copies_unmarked;
    std::memcpy(destination, source, bytes);
  }
}

}  // namespace gradwire::cuda
