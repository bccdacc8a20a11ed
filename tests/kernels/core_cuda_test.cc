// With a GPU: streams, memory and copies work. Without one, or in a build without CUDA: every
// function says so. Each machine runs one half and skips the other with its reason.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"

namespace gradwire {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

class WithoutGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() > 0) {
      GTEST_SKIP() << "this machine has " << cuda::device_count() << " GPU(s)";
    }
  }
};

class WithGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) {
      GTEST_SKIP() << "needs a GPU: " << cuda::unavailable_reason();
    }
  }
};

template <class F>
void expect_device_error(const std::string& what, F&& f) {
  try {
    f();
    FAIL() << what << " did not throw";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST_F(WithoutGpu, AReasonIsGiven) { EXPECT_FALSE(cuda::unavailable_reason().empty()); }

TEST_F(WithoutGpu, EveryCallIsADeviceErrorThatNamesIt) {
  expect_device_error("cuda::make_stream", [] { cuda::make_stream(0); });
  expect_device_error("cuda::wrap_stream", [] { cuda::wrap_stream(nullptr, 0); });
  expect_device_error("weights: no GPU", [] { cuda::check_device("weights", 0); });
  expect_device_error("cuda::allocate", [] { Buffer buffer(16, kGpu); });
  expect_device_error("cuda::make_event", [] { make_event(kGpu); });
  expect_device_error("cuda::allocate_in_order", [] { cuda::allocate_in_order(16, 0, nullptr); });
  cuda::deallocate_in_order(nullptr, 0, nullptr);
  expect_device_error("cuda::allocate_pinned", [] { PinnedBuffer buffer(16); });
  cuda::deallocate_pinned(nullptr);
  std::byte a{}, b{};
  expect_device_error("cuda::copy", [&] { cuda::copy(&a, &b, 1, 0, nullptr); });
  cuda::deallocate(nullptr, 0);
}

TEST_F(WithoutGpu, AnEmptyGpuBufferIsStillABuffer) {
  Buffer empty(0, kGpu);
  EXPECT_EQ(empty.device(), kGpu);
}

TEST_F(WithGpu, BytesSurviveTheRoundTrip) {
  EXPECT_TRUE(cuda::unavailable_reason().empty());
  const auto stream = cuda::make_stream(0);
  EXPECT_EQ(stream->device(), kGpu);
  EXPECT_NE(stream->native_handle(), nullptr);
  std::vector<std::byte> sent((1 << 20) + 3), received(sent.size(), std::byte{1});
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<std::byte>(i * 31);
  }
  const Buffer first(sent.size(), kGpu), second(sent.size(), kGpu);
  copy_bytes(first.bytes(), kGpu, sent, {}, *stream);
  copy_bytes(second.bytes(), kGpu, first.bytes(), kGpu, *stream);
  copy_bytes(received, {}, second.bytes(), kGpu, *stream);
  stream->wait();
  EXPECT_EQ(received, sent);
}

TEST_F(WithGpu, AStreamOfSomebodyElseIsUsedAndLeftAlone) {
  const auto owned = cuda::make_stream(0);
  void* const handles[] = {owned->native_handle(), nullptr, reinterpret_cast<void*>(1),
                           reinterpret_cast<void*>(2)};
  for (void* const handle : handles) {
    std::vector<std::byte> sent(1000, std::byte{7}), received(sent.size());
    const Buffer buffer(sent.size(), kGpu);
    for (int again = 0; again < 2; ++again) {  // the end of the first destroys nothing
      const auto wrapped = cuda::wrap_stream(handle, 0);
      EXPECT_EQ(wrapped->device(), kGpu);
      EXPECT_NE(wrapped->native_handle(), nullptr);
      copy_bytes(buffer.bytes(), kGpu, sent, {}, *wrapped);
      copy_bytes(received, {}, buffer.bytes(), kGpu, *wrapped);
      wrapped->wait();
    }
    EXPECT_EQ(received, sent);
  }
  EXPECT_THROW(cuda::wrap_stream(nullptr, cuda::device_count()), InvalidArgument);
}

TEST_F(WithGpu, BuffersAreZeroed) {
  const auto stream = cuda::make_stream(0);
  const Buffer buffer(100000, kGpu);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  std::vector<std::byte> bytes(buffer.size_bytes(), std::byte{1});
  copy_bytes(bytes, {}, buffer.bytes(), kGpu, *stream);
  stream->wait();
  EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size()));
}

TEST_F(WithGpu, MemoryComesAndGoesInStreamOrder) {
  const auto stream = cuda::make_stream(0);
  std::vector<std::byte> received(5000, std::byte{1});
  {
    const Buffer buffer(received.size(), *stream);
    copy_bytes(received, {}, buffer.bytes(), kGpu, *stream);
  }  // given back behind the copy
  stream->wait();
  EXPECT_EQ(received, std::vector<std::byte>(received.size()));
  Workspace workspace(*stream);
  for (const size_t count : {100, 1000000, 10}) {
    Workspace::Frame frame(workspace);
    EXPECT_EQ(frame.take<float>(count).size(), count);
  }
}

TEST_F(WithGpu, CopiesReachPinnedMemory) {
  const auto stream = cuda::make_stream(0);
  const PinnedBuffer pinned(5000);
  EXPECT_TRUE(std::ranges::all_of(pinned.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  const std::vector<std::byte> sent(5000, std::byte{7});
  const Buffer buffer(sent.size(), kGpu);
  copy_bytes(buffer.bytes(), kGpu, sent, {}, *stream);
  copy_bytes(pinned.bytes(), {}, buffer.bytes(), kGpu, *stream);
  stream->wait();
  EXPECT_TRUE(std::ranges::equal(pinned.bytes(), sent));
}

TEST_F(WithGpu, EventsOrderStreams) {
  const auto first = cuda::make_stream(0), second = cuda::make_stream(0);
  const auto end = make_event(kGpu);
  EXPECT_TRUE(end->passed());
  std::vector<std::byte> sent(1 << 20, std::byte{7}), received(sent.size());
  const Buffer buffer(sent.size(), kGpu);
  copy_bytes(buffer.bytes(), kGpu, sent, {}, *first);
  end->record(*first);
  end->hold(*second);
  copy_bytes(received, {}, buffer.bytes(), kGpu, *second);
  second->wait();
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(end->passed());
  end->wait();
  const auto cpu = make_event();
  EXPECT_THROW(cpu->record(*first), InvalidArgument);
}

TEST_F(WithGpu, HostTasksAndPoolsBelongToCpuStreams) {
  const auto stream = cuda::make_stream(0);
  EXPECT_THROW(stream->enqueue([] {}), DeviceError);
  EXPECT_THROW(stream->pool(), DeviceError);
}

TEST_F(WithGpu, BadRequestsAreNamed) {
  EXPECT_THROW(cuda::make_stream(-1), InvalidArgument);
  EXPECT_THROW(cuda::make_stream(cuda::device_count()), InvalidArgument);
  expect_device_error("cudaMalloc", [] { Buffer buffer(size_t{1} << 60, kGpu); });
  Workspace workspace(kGpu);
  Workspace::Frame frame(workspace);
  EXPECT_EQ(frame.take<float>(1000).size(), 1000u);  // a failed call leaves the device usable
}

}  // namespace
}  // namespace gradwire
