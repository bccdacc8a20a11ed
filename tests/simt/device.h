#pragma once
// The device that the tests of kernels run on: the emulator, or with GRADWIRE_ON_GPU the first GPU.
// Kernels and launchers see a stream and device memory; the host may read its copy of that after
// stream.wait(). In the emulator nothing waits, so there a read without a wait is a failure.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gradwire/kernels/core/stream.h"
#include "tests/simt/device_array.h"
#if !defined(GRADWIRE_ON_GPU)
#include "tests/simt/emulator.h"
#endif

namespace gradwire::testing {

inline constexpr Device kEmulated{DeviceType::kCuda, 0};

#if defined(GRADWIRE_ON_GPU)

/// The GPU's launches run when they run.
class TestStream final : public Stream {
 public:
  Device device() const override { return stream_->device(); }
  void enqueue(Task task) override { stream_->enqueue(std::move(task)); }
  void wait() override { stream_->wait(); }
  ThreadPool& pool() override { return stream_->pool(); }
  void* native_handle() const override {
    DeviceMirror::before_launch();
    return stream_->native_handle();
  }

 private:
  std::unique_ptr<Stream> stream_ = cuda::make_stream(0);
};

inline void set_order(uint32_t) {}
inline void expect_waited() {}
inline const auto kOrders = ::testing::Values(0u);

#else

/// How many launches a wait() has been called for.
inline uint64_t& launches_waited_for() {
  static uint64_t count = 0;
  return count;
}

/// Launches run in the caller.
class TestStream final : public Stream {
 public:
  Device device() const override { return kEmulated; }
  void enqueue(Task) override { throw DeviceError("emulated stream: enqueue() takes no task"); }
  void wait() override { launches_waited_for() = simt::launches(); }
  ThreadPool& pool() override { throw DeviceError("emulated stream: there is no pool"); }
  void* native_handle() const override {
    DeviceMirror::before_launch();
    return nullptr;
  }
};

/// Seed 0: threads and blocks run in order; others shuffle them.
inline void set_order(uint32_t seed) { simt::set_options({.seed = seed}); }

/// A GPU would still be writing.
inline void expect_waited() {
  EXPECT_EQ(launches_waited_for(), simt::launches()) << "device memory is read before wait()";
}
inline const auto kOrders = ::testing::Values(0u, 1u);

#endif

using EmulatedStream = TestStream;

template <class T>
DeviceArray<T> on_device(const std::vector<T>& values) {
  return DeviceArray<T>(values.begin(), values.end());
}

/// One value in device memory: a status word, a count, a step.
template <class T>
class DeviceValue {
 public:
  explicit DeviceValue(T value = {}) : memory_(1, value) {}
  T* data() { return memory_.data(); }
  DeviceValue& operator=(T value) {
    expect_waited();
    memory_[0] = value;
    return *this;
  }
  T operator*() const {
    expect_waited();
    return memory_[0];
  }

 private:
  DeviceArray<T> memory_;
};

/// Runs each test with threads and blocks in order, and shuffled.
class AnyOrder : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { set_order(GetParam()); }
  void TearDown() override { set_order(0); }
  TestStream stream_;
};

}  // namespace gradwire::testing
