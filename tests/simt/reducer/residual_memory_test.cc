// A Reducer on a GPU whose residuals lie in memory of the host: what the GPU holds, how often they
// cross the line, and who can read them.

#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {
namespace {

DeviceCase case_of(const char* spec, const char* exchange, ResidualMemory memory) {
  DeviceCase what{.spec = spec, .exchange = exchange};
  what.residual_memory = memory;
  return what;
}

/// Bytes of both residual buffers of each group.
size_t residual_bytes(const Plan& plan) {
  size_t bytes = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    for (const PlanGroup& group : bucket.groups) {
      const size_t each = group.spec.feedback.residual == DType::kFloat32 ? 4 : 2;
      bytes += group.spec.feedback.on ? 2 * group.numel * each : 0;
    }
  }
  return bytes;
}

size_t groups_with_feedback(const Plan& plan) {
  size_t count = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    for (const PlanGroup& group : bucket.groups) {
      count += group.spec.feedback.on ? 1 : 0;
    }
  }
  return count;
}

/// What a reducer alone adds to the memory of GPUs and of the host, and its third step's launches.
struct Measured {
  size_t bytes = 0, pinned_bytes = 0, launches = 0;
  int allocations = 0;  // in the third step
};

Measured measured(const DeviceCase& what) {
  Measured found;
  on_every_gpu(1, [&](NcclRank self) {
    const FakeGpuCounts& counts = fake_gpu_counts();
    const size_t bytes = counts.bytes, pinned_bytes = counts.pinned_bytes;
    Reducer reducer(what.plan(), *self.transport, {.stream = &self.stream()});
    found.bytes = counts.bytes - bytes;
    found.pinned_bytes = counts.pinned_bytes - pinned_bytes;
    for (int step = 0; step < 3; ++step) {
      const uint64_t launches = simt::launches();
      const int allocations = counts.allocations;
      hand_over_on_device(reducer, gradients(0, step), self.stream());
      reducer.wait();
      self.stream().wait();
      found.launches = simt::launches() - launches;
      found.allocations = counts.allocations - allocations;
    }
    reducer.synchronize();
  });
  return found;
}

TEST_F(DeviceReducers, LeaveTheGpuTheBytesOfResidualsOnTheHost) {
  for (const char* spec : {"int8", "topk:5%", "int4,residual=bf16"}) {
    SCOPED_TRACE(spec);
    const DeviceCase what = case_of(spec, "gather", ResidualMemory::kHost);
    const Measured on_device = measured(case_of(spec, "gather", ResidualMemory::kDevice));
    const Measured on_host = measured(what);
    const size_t bytes = residual_bytes(what.plan());
    EXPECT_GT(bytes, 4 * 18000u);
    EXPECT_EQ(on_device.bytes - on_host.bytes, bytes);
    EXPECT_EQ(on_host.pinned_bytes - on_device.pinned_bytes, bytes);
    EXPECT_EQ(on_host.allocations, 0);
  }
}

// Each launch more reads or writes every element of a group once.
TEST_F(DeviceReducers, MoveResidualsOfTheHostOnceEachWayUnlessSumsAreEncodedAgain) {
  struct Expected {
    const char *spec, *exchange;
    size_t casts;  // of a group in a step
  };
  for (const auto& [spec, exchange, casts] :
       {Expected{"int8", "gather", 2}, Expected{"topk:5%,decay=0.5", "gather", 2},
        Expected{"int8", "two_shot", 4}, Expected{"fp16,ef", "dense", 4}}) {
    SCOPED_TRACE(concat(spec, " over ", exchange));
    const DeviceCase what = case_of(spec, exchange, ResidualMemory::kHost);
    const size_t groups = groups_with_feedback(what.plan());
    const size_t on_device = measured(case_of(spec, exchange, ResidualMemory::kDevice)).launches;
    EXPECT_EQ(measured(what).launches, on_device + casts * groups);
    // In bfloat16 they are worked on elsewhere wherever they lie.
    const std::string narrow = concat(spec, ",residual=bf16");
    for (const ResidualMemory memory : {ResidualMemory::kDevice, ResidualMemory::kHost}) {
      EXPECT_EQ(measured(case_of(narrow.c_str(), exchange, memory)).launches,
                on_device + casts * groups);
    }
  }
}

TEST_F(DeviceReducers, HandOutResidualsOfTheHostInItsMemory) {
  for (const char* spec : {"int8", "int8,residual=bf16"}) {
    const DeviceCase what = case_of(spec, "gather", ResidualMemory::kHost);
    const std::vector<Outcomes> expected = outcomes_on_cpu(1, what);
    on_every_gpu(1, [&](NcclRank self) {
      Reducer reducer(what.plan(), *self.transport, {.stream = &self.stream()});
      for (size_t step = 0; step < 2; ++step) {
        hand_over_on_device(reducer, gradients(0, static_cast<int>(step)), self.stream());
        reducer.wait();
        EXPECT_TRUE(same_bits(residuals(reducer), expected[0][step].residuals));
      }
      reducer.synchronize();
    });
  }
}

}  // namespace
}  // namespace gradwire::test
