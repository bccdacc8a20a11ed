// One suite for both CPU streams: the queue and the inline one.

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire {
namespace {

enum class Kind { kQueue, kInline };

class CpuStreams : public testing::TestWithParam<Kind> {
 protected:
  static std::unique_ptr<Stream> make(int threads = 1) {
    return GetParam() == Kind::kQueue ? make_cpu_stream({.threads = threads})
                                      : make_inline_stream(threads);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, CpuStreams, testing::Values(Kind::kQueue, Kind::kInline),
                         [](const auto& kind) {
                           return kind.param == Kind::kQueue ? "Queue" : "Inline";
                         });

std::string message_of_wait(Stream& stream) {
  try {
    stream.wait();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_P(CpuStreams, TasksRunInOrder) {
  const auto stream = make();
  std::vector<int> order;
  for (int i = 0; i < 2000; ++i) {  // more than the ring holds at first
    stream->enqueue([&order, i] { order.push_back(i); });
  }
  stream->wait();
  ASSERT_EQ(order.size(), 2000u);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST_P(CpuStreams, WaitThrowsTheFirstErrorAndRearms) {
  const auto stream = make();
  int later = 0;
  stream->enqueue([] { throw std::runtime_error("first"); });
  stream->enqueue([&later] { ++later; });
  stream->enqueue([] { throw std::runtime_error("second"); });
  EXPECT_EQ(message_of_wait(*stream), "first");
  EXPECT_EQ(later, 0);
  EXPECT_EQ(message_of_wait(*stream), "");
  stream->enqueue([&later] { ++later; });
  stream->wait();
  EXPECT_EQ(later, 1);
}

TEST_P(CpuStreams, TheErrorKeepsItsType) {
  const auto stream = make();
  stream->enqueue([] { throw TransportError("rank 3 is gone", 3); });
  try {
    stream->wait();
    FAIL() << "nothing was thrown";
  } catch (const TransportError& error) {
    EXPECT_EQ(error.peer(), 3);
  }
}

TEST_P(CpuStreams, ANestedTaskRunsAtOnce) {
  const auto stream = make();
  std::string order;
  stream->enqueue([&] {
    order += 'a';
    stream->enqueue([&] {
      order += 'b';
      stream->enqueue([&] { order += 'c'; });
    });
    order += 'd';
  });
  stream->enqueue([&] { order += 'e'; });
  stream->wait();
  EXPECT_EQ(order, "abcde");
}

TEST_P(CpuStreams, AnErrorOfANestedTaskEndsTheOuterOne) {
  const auto stream = make();
  bool outer_went_on = false;
  stream->enqueue([&] {
    stream->enqueue([] { throw std::runtime_error("inner"); });
    outer_went_on = true;
  });
  EXPECT_EQ(message_of_wait(*stream), "inner");
  EXPECT_FALSE(outer_went_on);
}

TEST_P(CpuStreams, WaitingInsideATaskIsAnError) {
  const auto stream = make();
  stream->enqueue([&] { stream->wait(); });
  EXPECT_THROW(stream->wait(), InvalidArgument);
}

TEST_P(CpuStreams, AnEmptyTaskIsRefused) {
  const auto stream = make();
  EXPECT_THROW(stream->enqueue(Task()), InvalidArgument);
  stream->wait();
}

TEST_P(CpuStreams, WhatATaskCapturedIsGoneAfterWait) {
  const auto stream = make();
  const auto value = std::make_shared<int>(7);
  stream->enqueue([value] {});
  stream->enqueue([] { throw std::runtime_error("drop what follows"); });
  stream->enqueue([value] {});
  EXPECT_THROW(stream->wait(), std::runtime_error);
  EXPECT_EQ(value.use_count(), 1);
}

TEST_P(CpuStreams, AcceptsTasksFromManyThreads) {
  const auto stream = make();
  std::array<int, 4> counts{};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < counts.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        stream->enqueue([&counts, t] { ++counts[t]; });
      }
      stream->wait();
      EXPECT_EQ(counts[t], 500);  // wait() covers at least what this thread enqueued
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(CpuStreams, TasksUseTheStreamsPool) {
  const auto stream = make(3);
  EXPECT_EQ(stream->pool().threads(), 3);
  std::atomic<int> calls{0};
  stream->enqueue([&] { stream->pool().parallel_for(50, [&](size_t) { ++calls; }); });
  stream->wait();
  EXPECT_EQ(calls.load(), 50);
  EXPECT_EQ(stream->device(), Device{});
  EXPECT_EQ(stream->native_handle(), nullptr);
}

TEST_P(CpuStreams, RefuseImpossibleThreadCounts) {
  EXPECT_THROW(make(0), InvalidArgument);
  EXPECT_THROW(make(5000), InvalidArgument);
}

TEST(QueueStream, EnqueueReturnsBeforeTheTaskHasRun) {
  const auto stream = make_cpu_stream();
  std::promise<void> gate;
  std::atomic<bool> ran{false};
  stream->enqueue([&] {
    gate.get_future().wait();
    ran = true;
  });
  EXPECT_FALSE(ran.load());
  gate.set_value();
  stream->wait();
  EXPECT_TRUE(ran.load());
}

TEST(QueueStream, TheDestructorRunsWhatIsQueued) {
  int runs = 0;
  {
    const auto stream = make_cpu_stream();
    for (int i = 0; i < 600; ++i) {
      stream->enqueue([&runs] { ++runs; });
    }
  }
  EXPECT_EQ(runs, 600);
}

TEST(QueueStream, TheWorkerThreadBearsTheStreamsName) {
  const auto stream = make_cpu_stream({.name = "a-name-longer-than-fifteen"});
  std::array<char, 32> name{};
  stream->enqueue([&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  stream->wait();
  EXPECT_STREQ(name.data(), "a-name-longer-t");
}

TEST(QueueStream, TwoStreamsMayFeedEachOther) {
  const auto first = make_cpu_stream(), second = make_cpu_stream();
  int value = 0;
  first->enqueue([&] {
    second->enqueue([&] { value = 5; });
    second->wait();
    value *= 2;
  });
  first->wait();
  EXPECT_EQ(value, 10);
}

TEST(InlineStream, TheTaskHasRunWhenEnqueueReturns) {
  const auto stream = make_inline_stream();
  std::thread::id runner;
  stream->enqueue([&] { runner = std::this_thread::get_id(); });
  EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST(TaskTest, MovesAndDestroysItsCallableOnce) {
  const auto value = std::make_shared<int>(0);
  {
    Task task([value] { ++*value; });
    Task moved = std::move(task);
    EXPECT_FALSE(static_cast<bool>(task));  // NOLINT: moved-from is specified to be empty
    moved();
    task = std::move(moved);
    task();
    EXPECT_EQ(value.use_count(), 2);
  }
  EXPECT_EQ(*value, 2);
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace gradwire
