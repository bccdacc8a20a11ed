// Streams and pools in a forked child, which has none of their threads: refused by name, and let go
// of without waiting.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/stream.h"
#include "tests/support/forked.h"

namespace gradwire {
namespace {

using test::in_a_fork;
using test::refusal_in_a_fork;

/// "" where `action` is refused as an object of another process, else what it did.
template <class Action>
std::string not_refused(const std::string& what, const Action& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what() == refusal_in_a_fork(what) ? "" : error.what() + std::string("\n");
  }
  return what + " was used\n";
}

TEST(AForkedChild, IsRefusedAStreamWithAThreadAndEndsAllTheSame) {
  auto stream = make_cpu_stream({.name = "gw-mine"});
  stream->enqueue([] {});
  stream->wait();
  const std::string said = in_a_fork([&] {
    const std::string name = "stream 'gw-mine'";
    std::string wrong = not_refused(name, [&] { stream->enqueue([] {}); });
    wrong += not_refused(name, [&] { stream->wait(); });
    stream.reset();
    return wrong;
  });
  EXPECT_EQ(said, "");
  bool ran = false;
  stream->enqueue([&] { ran = true; });
  stream->wait();
  EXPECT_TRUE(ran);
}

TEST(AForkedChild, IsRefusedLoopsOnThreadsOfItsParent) {
  auto pool = std::make_unique<ThreadPool>(3);
  auto stream = make_inline_stream(3);
  const auto loop = [](ThreadPool& of) {
    std::atomic<int> sum{0};
    of.parallel_for(8, [&](size_t i) { sum += static_cast<int>(i); });
    return sum.load();
  };
  ASSERT_EQ(loop(*pool), 28);
  const std::string said = in_a_fork([&] {
    std::string wrong = not_refused("thread pool", [&] { loop(*pool); });
    wrong += not_refused("thread pool", [&] {
      stream->enqueue([&] { loop(stream->pool()); });
      stream->wait();
    });
    pool.reset();
    stream.reset();
    return wrong;
  });
  EXPECT_EQ(said, "");
  EXPECT_EQ(loop(*pool), 28);
}

TEST(AForkedChild, MayUseWhatHasNoThreadsAndMakeItsOwn) {
  const auto stream = make_inline_stream();
  const std::string said = in_a_fork([&] {
    int sum = 0;
    const auto add = [&](size_t i) { sum += static_cast<int>(i); };
    stream->enqueue([&] { stream->pool().parallel_for(8, add); });
    stream->wait();
    const auto own = make_cpu_stream({.threads = 2});
    own->enqueue([&] { ++sum; });
    own->wait();
    return std::to_string(sum);
  });
  EXPECT_EQ(said, "29");
}

}  // namespace
}  // namespace gradwire
