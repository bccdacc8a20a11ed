// The Reducer over a transport of GPU memory: the bits of the CPU's, without a wait in a step, also
// where a captured step is replayed.

#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {
namespace {

void expect_the_cpus_bits(int world_size, const DeviceCase& what) {
  SCOPED_TRACE(
      concat(what.spec, " over ", what.exchange, ", ", world_size, " ranks, residuals ",
             what.residual_memory == ResidualMemory::kHost ? "on the host" : "on the GPU"));
  const std::vector<Outcomes> expected = outcomes_on_cpu(world_size, what);
  on_every_gpu(world_size, [&](NcclRank self) {
    const Outcomes outcomes = outcomes_on_device(*self.transport, self.stream(), what);
    EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(self.rank)]), "")
        << "rank " << self.rank;
  });
}

TEST_F(DeviceReducers, WriteTheBitsOfTheCpu) {
  for (const DeviceCase& what : device_cases()) {
    expect_the_cpus_bits(2, what);
  }
}

TEST_F(DeviceReducers, WriteThemForAnyNumberOfRanks) {
  for (const int world_size : {1, 3, 6}) {  // there are buckets of fewer chunks than 6
    expect_the_cpus_bits(world_size, {.spec = "none", .exchange = "dense", .steps = 1});
    expect_the_cpus_bits(world_size, {.spec = "int8", .exchange = "gather", .steps = 1});
    expect_the_cpus_bits(world_size, {.spec = "int8", .exchange = "two_shot", .steps = 2});
  }
}

// The first payloads of a bucket do not lie one behind another.
TEST_F(DeviceReducers, WriteThemOfGroupsOfTwoRoundsAroundAnother) {
  for (const char* exchange : {"dense", "gather", "two_shot"}) {
    const DeviceCase what{
        .spec = "powersgd:3,rounds=2",
        .exchange = exchange,
        .steps = 3,
        .rules = {{.spec = parse_spec("powersgd:2,rounds=2"), .name = "three.weight"},
                  {.spec = parse_spec("none"), .name = "*.bias"}}};
    ASSERT_EQ(what.plan().buckets[0].groups.size(), 3u);
    expect_the_cpus_bits(2, what);
  }
}

TEST_F(DeviceReducers, WriteThemOverSeveralStreams) {
  for (const ResidualMemory memory : {ResidualMemory::kDevice, ResidualMemory::kHost}) {
    expect_the_cpus_bits(3, {.spec = "int8",
                             .exchange = "two_shot",
                             .steps = 2,
                             .options = {.streams = 3},
                             .residual_memory = memory});
  }
}

/// A reducer on one rank's GPU.
struct OnRank {
  OnRank(NcclRank rank, const DeviceCase& what)
      : self(rank), options(what.options), gradients_of(what.gradients_of) {
    options.stream = &self.stream();
    reducer = std::make_unique<Reducer>(what.plan(), *self.transport, options);
  }
  void enqueue(int step) {
    hand_over_on_device(*reducer, gradients_of(self.rank, step), self.stream());
    EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
  }
  Outcome outcome() { return outcome_on_host(*reducer, self.stream()); }

  NcclRank self;
  ReducerOptions options;
  GradientsOf gradients_of;
  std::unique_ptr<Reducer> reducer;
};

TEST_F(DeviceReducers, EnqueueStepsWhileTheGpuStandsStill) {
  DeviceCase on_host{"int4", "two_shot", 4};
  on_host.residual_memory = ResidualMemory::kHost;
  for (const DeviceCase& what :
       {DeviceCase{"topk:5%,int4", "gather", 4}, DeviceCase{"fp16", "dense", 4}, on_host}) {
    const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
    on_every_gpu(2, [&](NcclRank self) {
      OnRank rank(self, what);
      rank.enqueue(0);  // workspaces grow
      rank.enqueue(1);
      self.stream().wait();
      Gate gate(self.stream());
      rank.enqueue(2);
      rank.enqueue(3);
      // Nothing of these steps has run, and both calls are back.
      gate.release();
      const Outcome outcome = rank.outcome();
      EXPECT_TRUE(outcome == expected[static_cast<size_t>(self.rank)][3]);
      EXPECT_EQ(rank.reducer->committed_steps(), 4u);
    });
  }
}

/// What a captured step does in the steps after the first two.
void expect_the_cpus_bits_replayed(const DeviceCase& what) {
  SCOPED_TRACE(what.spec);
  const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
  on_every_gpu(2, [&](NcclRank self) {
    OnRank rank(self, what);
    rank.enqueue(0);
    rank.enqueue(1);
    self.stream().wait();
    const Device gpu = self.stream().device();
    std::vector<transport_test::OnGpu<float>> inputs;
    for (const ParamInfo& parameter : model()) {
      inputs.emplace_back(parameter.numel(), self.rank);
    }
    self.stream().begin_capture();
    for (const ParamId p : backward_order()) {
      const Gradient place = rank.reducer->gradient(p);
      copy_bytes({static_cast<std::byte*>(place.data), place.size_bytes()}, gpu, inputs[p].bytes(),
                 gpu, self.stream());
      rank.reducer->grad_ready(p);
    }
    EXPECT_EQ(rank.reducer->wait(), StepOutcome::kEnqueued);
    self.stream().end_capture();
    for (int step = 2; step < what.steps; ++step) {
      const Values values = gradients(self.rank, step);
      for (const ParamId p : forward_order()) {
        copy_bytes(inputs[p].bytes(), gpu, std::as_bytes(std::span(values[p])), {}, self.stream());
      }
      self.stream().replay();
      EXPECT_TRUE(rank.outcome() ==
                  expected[static_cast<size_t>(self.rank)][static_cast<size_t>(step)])
          << "step " << step;
    }
    EXPECT_EQ(rank.reducer->committed_steps(), static_cast<uint64_t>(what.steps));
    rank.reducer->synchronize();
  });
}

TEST_F(DeviceReducers, FollowTheirCommitsWhereACapturedStepIsReplayed) {
  DeviceCase what{.spec = "int4,stochastic", .exchange = "gather", .steps = 6};
  expect_the_cpus_bits_replayed(what);
  what.residual_memory = ResidualMemory::kHost;
  expect_the_cpus_bits_replayed(what);
  expect_the_cpus_bits_replayed({.spec = "topk:5%,ef21", .exchange = "gather", .steps = 6});
  what.options.streams = 16;  // more than there are buckets
  expect_the_cpus_bits_replayed(what);
}

// A replayed step would send what the captured one did.
TEST_F(DeviceReducers, RefuseToBeCapturedBeforeTheirSpecsAreWhatTheyStay) {
  const DeviceCase what{.spec = "topk:5%,start=2", .exchange = "gather"};
  on_every_gpu(2, [&](NcclRank self) {
    OnRank rank(self, what);
    const auto captured = [&] {
      self.stream().wait();
      self.stream().begin_capture();
      const std::string message = message_of<InvalidArgument>([&] {
        for (const ParamId p : backward_order()) {
          rank.reducer->grad_ready(p);
        }
        rank.reducer->wait();
      });
      self.stream().end_capture();
      return message;
    };
    rank.enqueue(0);
    const std::string refused = captured();
    EXPECT_TRUE(contains(refused, "which change behind 2 committed steps")) << refused;
    rank.enqueue(1);
    rank.enqueue(2);
    EXPECT_EQ(captured(), "");
    self.barrier();  // nobody leaves while the other still captures
    rank.reducer->synchronize();
  });
}

TEST_F(DeviceReducers, TakeABucketFromMemoryOfTheCaller) {
  const DeviceCase what{.spec = "none", .exchange = "dense", .steps = 1};
  on_every_gpu(2, [&](NcclRank self) {
    OnRank rank(self, what);
    const Plan& plan = rank.reducer->plan();
    const Device gpu = self.stream().device();
    std::vector<transport_test::OnGpu<float>> gradients;
    for (BucketId b = 0; b < plan.buckets.size(); ++b) {
      const size_t numel = plan.buckets[b].numel;
      const std::vector<float> values(numel, static_cast<float>(self.rank + 1));
      gradients.emplace_back(numel, self.rank);
      copy_bytes(gradients[b].bytes(), gpu, std::as_bytes(std::span(values)), {}, self.stream());
      rank.reducer->bucket_ready(b, {gradients[b].buffer.data(), numel, DType::kFloat32, gpu});
    }
    rank.reducer->wait();
    for (const auto& gradient : gradients) {
      const std::vector<float> mean = on_host(gradient.span(), gpu, self.stream());
      EXPECT_EQ(mean, std::vector<float>(mean.size(), 1.5f));
    }
  });
}

TEST_F(DeviceReducers, CountWhatTheySend) {
  on_every_gpu(3, [&](NcclRank self) {
    OnRank rank(self, {.spec = "int8", .exchange = "gather"});
    const uint64_t before = self.transport->counters().bytes_sent;
    rank.enqueue(0);
    const StepTrace& step = rank.reducer->trace().last();
    EXPECT_EQ(step.bytes_sent(), self.transport->counters().bytes_sent - before);
    for (const BucketTrace& bucket : step.buckets) {
      EXPECT_EQ(bucket.bytes_sent, bucket.predicted_bytes_sent);
      EXPECT_GT(bucket.bytes_sent, 0u);
    }
    rank.reducer->synchronize();
  });
}

}  // namespace
}  // namespace gradwire::test
