#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const size_t count : {0, 1, 2, 7, 64, 1000}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, " << count << " indices");
      std::vector<std::atomic<int>> visits(count);
      pool.parallel_for(count, [&](size_t i) { ++visits[i]; });
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(visits[i].load(), 1) << i;
      }
    }
  }
}

TEST(ThreadPool, ResultsHaveTheSameBitsForAnyNumberOfThreads) {
  const auto run = [](int threads) {
    ThreadPool pool(threads);
    std::vector<float> sums(257);
    pool.parallel_for(sums.size(), [&](size_t i) {
      float sum = 0;
      for (size_t j = 1; j < 500; ++j) {
        sum += 1.0f / static_cast<float>(i + j);
      }
      sums[i] = sum;
    });
    return sums;
  };
  const std::vector<float> expected = run(1);
  EXPECT_EQ(run(2), expected);
  EXPECT_EQ(run(7), expected);
}

TEST(ThreadPool, ManyShortLoopsFollowOneAnother) {
  ThreadPool pool(4);
  uint64_t expected = 0;
  std::atomic<uint64_t> sum{0};
  for (uint64_t round = 0; round < 3000; ++round) {
    pool.parallel_for(5, [&](size_t i) { sum += round * i; });
    expected += round * 10;
    ASSERT_EQ(sum.load(), expected);
  }
}

TEST(ThreadPool, LoopsBeginAfterWorkersHaveGoneToSleep) {
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than any polling
    pool.parallel_for(4, [&](size_t) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 20);
}

TEST(ThreadPool, RethrowsTheExceptionAndStaysUsable) {
  for (const int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      const auto loop = [&] {
        pool.parallel_for(100, [](size_t i) {
          if (i == 3) {
            throw std::runtime_error("index 3");
          }
        });
      };
      EXPECT_THROW(loop(), std::runtime_error);
      std::atomic<int> calls{0};
      pool.parallel_for(100, [&](size_t) { ++calls; });
      ASSERT_EQ(calls.load(), 100);
    }
  }
}

TEST(ThreadPool, StartsNoFurtherIndexAfterAnException) {
  constexpr size_t kCount = 2000;
  ThreadPool pool(2);
  std::atomic<size_t> calls{0};
  const auto loop = [&] {
    pool.parallel_for(kCount, [&](size_t i) {
      ++calls;
      if (i == 0) {
        while (calls < 2) {  // the other thread is at work
          std::this_thread::yield();
        }
        throw std::runtime_error("index 0");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  };
  EXPECT_THROW(loop(), std::runtime_error);
  EXPECT_LT(calls.load(), kCount);
}

TEST(ThreadPool, ReturnsOnlyWhenSlowThreadsAreDone) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> started{false}, done{false};
  pool.parallel_for(2, [&](size_t) {
    if (std::this_thread::get_id() == caller) {
      while (!started) {
        std::this_thread::yield();
      }
      return;
    }
    started = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // longer than any polling
    done = true;
  });
  EXPECT_EQ(started.load(), done.load());
}

TEST(ThreadPool, ALoopInsideALoopRuns) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  pool.parallel_for(6, [&](size_t) { pool.parallel_for(5, [&](size_t) { ++calls; }); });
  EXPECT_EQ(calls.load(), 30);
}

TEST(ThreadPool, CallersOnOtherThreadsTakeTurns) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&pool] {
      std::vector<std::atomic<int>> visits(50);
      for (int round = 1; round <= 100; ++round) {
        pool.parallel_for(visits.size(), [&](size_t i) {
          ++visits[i];
          std::this_thread::yield();
        });
        for (const std::atomic<int>& count : visits) {
          ASSERT_EQ(count.load(), round);
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (const int threads : {-1, 0, 1025}) {
    EXPECT_THROW(ThreadPool pool(threads), InvalidArgument) << threads;
  }
  EXPECT_THROW(default_threads(0), InvalidArgument);
  EXPECT_GE(default_threads(1), 1);
  EXPECT_EQ(default_threads(1000000), 1);
}

}  // namespace
}  // namespace gradwire
