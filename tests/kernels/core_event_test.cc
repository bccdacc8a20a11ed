// Events order streams, survive errors, and tell the time between two points.

#include "gradwire/kernels/core/event.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gradwire/kernels/core/memory.h"

namespace gradwire {
namespace {

using namespace std::chrono_literals;

TEST(Events, HoldAnotherStreamUntilThePointIsPassed) {
  const auto first = make_cpu_stream(), second = make_cpu_stream();
  const auto event = make_event();
  std::atomic<bool> open{false};
  std::vector<int> order;
  first->enqueue([&] {
    while (!open) {
      std::this_thread::yield();
    }
    order.push_back(1);
  });
  event->record(*first);
  event->hold(*second);
  second->enqueue([&] { order.push_back(2); });
  EXPECT_FALSE(event->passed());
  open = true;
  second->wait();
  first->wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_TRUE(event->passed());
}

TEST(Events, CountAsPassedBeforeTheyAreRecorded) {
  const auto event = make_event();
  EXPECT_TRUE(event->passed());
  event->wait();
  const auto stream = make_cpu_stream();
  event->hold(*stream);
  stream->wait();
}

TEST(Events, WaitForThePointThatWasRecordedLast) {
  const auto stream = make_cpu_stream();
  const auto event = make_event();
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i) {
    stream->enqueue([&] { ++done; });
    event->record(*stream);
  }
  event->wait();
  EXPECT_EQ(done, 100);
}

TEST(Events, ArePassedByAStreamWhoseTaskHasThrown) {
  const auto stream = make_cpu_stream();
  const auto event = make_event();
  stream->enqueue([] { throw DeviceError("broken"); });
  event->record(*stream);
  event->wait();
  EXPECT_THROW(stream->wait(), DeviceError);
}

TEST(Events, AStreamThatRunsTasksAtOncePassesThemAtOnce) {
  const auto stream = make_inline_stream();
  const auto event = make_event();
  event->record(*stream);
  EXPECT_TRUE(event->passed());
}

TEST(StreamOrderedMemory, OnTheCpuIsMemoryLikeAnyOther) {
  const auto stream = make_cpu_stream();
  Buffer buffer(100, *stream);
  EXPECT_EQ(buffer.size_bytes(), 100u);
  EXPECT_EQ(buffer.data()[99], std::byte{0});
  Workspace workspace(*stream);
  EXPECT_EQ(workspace.device(), stream->device());
  Workspace::Frame frame(workspace);
  EXPECT_EQ(frame.take<float>(10).size(), 10u);
}

}  // namespace
}  // namespace gradwire
