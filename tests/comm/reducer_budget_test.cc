// What memory a Reducer takes: messages are there for one bucket at a time, and a plan that gives way
// to another takes no more room than it had.

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "gradwire/comm/exchange/message.h"
#include "tests/comm/reducer_case.h"
#include "tests/kernels/process_memory.h"

namespace gradwire::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLayers = 12;

/// False where the kernel does not let a process forget its peak.
bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

/// Layers of 4 MiB each: 48 MiB of gradients.
Plan plan_of_layers(const std::string& spec, size_t bucket_bytes) {
  std::vector<ParamInfo> layers;
  for (size_t i = 0; i < kLayers; ++i) {
    layers.push_back({concat("layer", i), {1024, 1024}});
  }
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.bucket_bytes = bucket_bytes;
  options.exchange = "two_shot";
  return make_plan(layers, options);
}

void run_step(Reducer& reducer) {
  for (size_t p = kLayers; p-- > 0;) {
    const auto gradient = reducer.gradient(static_cast<ParamId>(p)).as<float>();
    std::ranges::fill(gradient, 0.5f);
    reducer.grad_ready(static_cast<ParamId>(p));
  }
  reducer.wait();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() GTEST_SKIP() << "sanitizers have memory beside the program's"
#else
#define SKIP_UNDER_SANITIZERS() static_cast<void>(0)
#endif

TEST(ReducerBudget, MessagesTakeRoomForOneBucketAtATime) {
  SKIP_UNDER_SANITIZERS();
  constexpr size_t kRanks = 2, kGradients = 48 * kMiB, kPayloads = 24 * kMiB;
  const size_t before = testing::status_bytes("VmRSS");
  std::vector<size_t> taken(kRanks);
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    Reducer reducer(plan_of_layers("fp16", 4 * kMiB), transport);
    check(reducer.plan().buckets.size() == kLayers, "the plan has other buckets");
    run_step(reducer);
    run_step(reducer);
    taken[static_cast<size_t>(transport.rank())] = testing::status_bytes("VmRSS") - before;
    run_step(reducer);  // nobody leaves before all have looked
  });
  EXPECT_EQ(first_message(ends), "");
  // Three messages of 2 MiB for each bucket would be 72 MiB a rank.
  for (const size_t bytes : taken) {
    EXPECT_LT(bytes, kRanks * (kGradients + kPayloads + 24 * kMiB));
  }
}

TEST(ReducerBudget, APlanThatGivesWayLeavesItsRoomToTheNext) {
  SKIP_UNDER_SANITIZERS();
  if (!forget_peak()) {
    GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  }
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_of_layers("int8", 4 * kMiB), transport);
    run_step(reducer);
    run_step(reducer);
    const std::vector<float> kept(reducer.residual(3).begin(), reducer.residual(3).end());
    static_cast<void>(forget_peak());
    const size_t before = testing::status_bytes("VmRSS");
    reducer.set_plan(plan_of_layers("int8", 8 * kMiB));
    const size_t peak = testing::status_bytes("VmHWM");
    // The new plan's residuals, 48 MiB, lie where the old gradients and the old scratch were.
    check(peak < before + 24 * kMiB, "set_plan() takes ", (peak - before) / kMiB, " MiB more");
    check(std::ranges::equal(kept, reducer.residual(3)), "the residual is another one");
    run_step(reducer);
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(MessageMemory, IsSharedByTheMessagesOfTheSamePlace) {
  MessageMemory memory;
  memory.begin_bucket();
  Messages first(2, 100, {}, &memory), second(2, 60, {}, &memory);
  EXPECT_NE(first.parts().bytes.data(), second.parts().bytes.data());
  memory.begin_bucket();
  Messages smaller(2, 40, {}, &memory), larger(2, 61, {}, &memory), own(2, 40);
  EXPECT_EQ(smaller.parts().bytes.data(), first.parts().bytes.data());
  EXPECT_EQ(smaller.parts().bytes.size(), 80u);
  EXPECT_EQ(smaller.room(1).data(), smaller.room(0).data() + 40);
  EXPECT_NE(larger.parts().bytes.data(), second.parts().bytes.data());
  EXPECT_EQ(larger.parts().bytes.size(), 122u);
  EXPECT_NE(own.parts().bytes.data(), first.parts().bytes.data());
}

}  // namespace
}  // namespace gradwire::test
