// What a Reducer on a GPU does about values that are not finite, ranks that go, and calls that are
// not there: no commit, and a later call tells.

#include <atomic>
#include <cmath>
#include <optional>
#include <tuple>

#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {
namespace {

/// Rank 1's gradient of step 1 holds NaN.
Values one_nan(int rank, int step) {
  Values values = gradients(rank, step);
  if (rank == 1 && step == 1) {
    values[4][77] = std::nanf("");
  }
  return values;
}

/// Gradients of step 1 are finite, their sum is not.
Values large_sum(int rank, int step) {
  Values values = gradients(rank, step);
  if (step == 1) {
    values[4].assign(values[4].size(), 3e38f);
  }
  return values;
}

bool all_zero(const Values& values) {
  return std::ranges::all_of(values, [](const std::vector<float>& of_parameter) {
    return std::ranges::all_of(of_parameter, [](float x) { return x == 0.0f; });
  });
}

std::unique_ptr<Reducer> make_reducer(NcclRank self, const DeviceCase& what) {
  ReducerOptions options = what.options;
  options.stream = &self.stream();
  return std::make_unique<Reducer>(what.plan(), *self.transport, options);
}

TEST_F(DeviceReducers, LeaveOutAStepThatIsNotFiniteOnAnyRank) {
  constexpr auto kDevice = ResidualMemory::kDevice, kHost = ResidualMemory::kHost;
  for (const auto& [spec, exchange, memory] :
       {std::tuple("int8", "gather", kDevice), std::tuple("int8", "two_shot", kDevice),
        std::tuple("int4,residual=bf16", "gather", kDevice),
        std::tuple("int4,residual=bf16", "two_shot", kDevice), std::tuple("int8", "gather", kHost),
        std::tuple("int8", "two_shot", kHost),
        std::tuple("int4,residual=bf16", "two_shot", kHost),
        std::tuple("topk:5%,ef21", "gather", kDevice),
        std::tuple("int8,ef21", "two_shot", kDevice),
        std::tuple("topk:5%,ef21,eta=0.5", "gather", kDevice),
        std::tuple("int8,ef21", "two_shot", kHost)}) {
    SCOPED_TRACE(concat(spec, " ", exchange, memory == kHost ? ", on the host" : ""));
    const DeviceCase what{.spec = spec,
                          .exchange = exchange,
                          .steps = 3,
                          .options = {.on_nonfinite = OnNonFinite::kSkip},
                          .gradients_of = one_nan,
                          .residual_memory = memory};
    const std::vector<Outcomes> expected = outcomes_on_cpu(3, what);
    on_every_gpu(3, [&](NcclRank self) {
      const Outcomes outcomes = outcomes_on_device(*self.transport, self.stream(), what);
      EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(self.rank)]), "");
      EXPECT_TRUE(all_zero(outcomes[1].means));
    });
  }
}

TEST_F(DeviceReducers, PutNaNInThePlaceOfWhatIsLeftOutWhereTheyAreAskedTo) {
  for (const OnNonFinite policy : {OnNonFinite::kSkip, OnNonFinite::kError}) {
    const DeviceCase what{.spec = "int8",
                          .exchange = "gather",
                          .steps = 3,
                          .options = {.on_nonfinite = policy, .left_out = MeansLeftOut::kNaN},
                          .gradients_of = one_nan};
    const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
    on_every_gpu(2, [&](NcclRank self) {
      const auto& should = expected[static_cast<size_t>(self.rank)];
      const auto reducer = make_reducer(self, what);
      for (const int step : {0, 1, 2}) {
        hand_over_on_device(*reducer, one_nan(self.rank, step), self.stream());
        try {
          EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
        } catch (const NonFiniteGradient&) {  // the GPU was faster
          EXPECT_TRUE(step == 1 && policy == OnNonFinite::kError);
        }
        const Outcome outcome = outcome_on_host(*reducer, self.stream());
        if (step == 1) {
          EXPECT_TRUE(std::ranges::all_of(outcome.means, [](const std::vector<float>& mean) {
            return std::ranges::all_of(mean, [](float x) { return std::isnan(x); });
          }));
          EXPECT_TRUE(same_bits(outcome.residuals, should[0].residuals));
          EXPECT_EQ(message_of<NonFiniteGradient>([&] { reducer->synchronize(); }).empty(),
                    policy == OnNonFinite::kSkip);
        } else {
          EXPECT_TRUE(outcome == should[static_cast<size_t>(step)]) << "step " << step;
        }
      }
    });
  }
}

TEST_F(DeviceReducers, LeaveOutAStepWhoseEstimateOverflows) {
  for (const auto& [spec, exchange] : {std::pair("topk:5%,ef21", "gather"),
                                       std::pair("int8,ef21", "two_shot"),
                                       std::pair("bf16,ef21", "dense")}) {
    SCOPED_TRACE(concat(spec, " ", exchange));
    const DeviceCase what{.spec = spec,
                          .exchange = exchange,
                          .steps = 4,
                          .options = {.on_nonfinite = OnNonFinite::kSkip},
                          .gradients_of = large_sum};
    const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
    on_every_gpu(2, [&](NcclRank self) {
      const Outcomes outcomes = outcomes_on_device(*self.transport, self.stream(), what);
      EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(self.rank)]), "");
      EXPECT_TRUE(all_zero(outcomes[1].means));
      EXPECT_FALSE(all_zero(outcomes[2].means));
    });
  }
}

TEST_F(DeviceReducers, CommitNothingUntilANonFiniteGradientWasReported) {
  const DeviceCase what{
      .spec = "int8", .exchange = "gather", .steps = 4, .gradients_of = one_nan};
  const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
  on_every_gpu(2, [&](NcclRank self) {
    const auto& should = expected[static_cast<size_t>(self.rank)];
    const auto reducer = make_reducer(self, what);
    std::optional<Gate> gate;  // the GPU comes to step 1 when step 2 is enqueued
    for (const int step : {0, 1, 2}) {
      hand_over_on_device(*reducer, one_nan(self.rank, step), self.stream());
      EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
      if (step == 0) {
        gate.emplace(self.stream());
      }
    }
    gate.reset();
    Outcome outcome = outcome_on_host(*reducer, self.stream());
    EXPECT_TRUE(all_zero(outcome.means));
    EXPECT_TRUE(same_bits(outcome.residuals, should[0].residuals));
    EXPECT_EQ(reducer->committed_steps(), 1u);

    hand_over_on_device(*reducer, one_nan(self.rank, 2), self.stream());
    const std::string later = message_of<NonFiniteGradient>([&] { reducer->wait(); });
    EXPECT_TRUE(contains(later, "NaN or infinity in step 1, must be finite; nothing has been "
                                "committed since")) << later;
    const std::string asked = message_of<NonFiniteGradient>([&] { reducer->synchronize(); });
    EXPECT_TRUE(contains(asked, "NaN or infinity in step 1")) << asked;
    reducer->synchronize();

    for (const size_t step : {size_t{2}, size_t{3}}) {
      hand_over_on_device(*reducer, one_nan(self.rank, static_cast<int>(step)), self.stream());
      reducer->wait();
      EXPECT_TRUE(outcome_on_host(*reducer, self.stream()) == should[step]) << "step " << step;
    }
    reducer->synchronize();
  });
}

TEST_F(DeviceReducers, CommitNothingOfAStepThatARankLeaves) {
  for (const char* exchange : {"gather", "two_shot"}) {
    SCOPED_TRACE(exchange);
    const DeviceCase what{.spec = "int8", .exchange = exchange};
    const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
    std::atomic<bool> enqueued{false};
    const auto errors = transport_test::run_nccl_ranks(2, {}, [&](NcclRank self) {
      const auto reducer = make_reducer(self, what);
      hand_over_on_device(*reducer, gradients(self.rank, 0), self.stream());
      reducer->wait();
      reducer->synchronize();
      if (self.rank == 1) {
        while (!enqueued) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        self.transport->abort("rank 1: gave up");
        return;
      }
      hand_over_on_device(*reducer, gradients(self.rank, 1), self.stream());
      EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
      enqueued = true;
      const std::string error = message_of<TransportError>([&] { reducer->synchronize(); });
      EXPECT_TRUE(contains(error, "rank 1: gave up")) << error;
      EXPECT_EQ(message_of<TransportError>([&] { reducer->grad_ready(0); }), error);
      const Outcome outcome = outcome_on_host(*reducer, self.stream());
      EXPECT_TRUE(all_zero(outcome.means));
      EXPECT_TRUE(same_bits(outcome.residuals, expected[0][0].residuals));
      EXPECT_EQ(reducer->committed_steps(), 1u);
    });
    EXPECT_EQ(errors[0], "");
    EXPECT_EQ(errors[1], "");
  }
}

TEST_F(DeviceReducers, SayWhatIsNotThereOnAGpu) {
  on_every_gpu(2, [&](NcclRank self) {
    const std::string gpu = concat("GPU ", self.rank);
    const auto reducer = make_reducer(self, {.spec = "topk:1%", .exchange = "gather"});
    const auto refused = [&](const char* call, const char* because,
                             const std::function<void()>& action) {
      EXPECT_EQ(message_of<InvalidArgument>(action),
                concat(call, ": gradients are on ", gpu, ", expected CPU memory: ", because));
    };
    refused("deliver", "messages there are wiped behind their use",
            [&] { reducer->deliver(0, Delivery::kPayloads); });
    refused("rebuild", "no transport of GPU memory goes on without a rank",
            [&] { reducer->rebuild(*self.transport); });

    std::vector<float> values(reducer->plan().buckets[0].numel);
    EXPECT_EQ(message_of<InvalidArgument>(
                  [&] { reducer->bucket_ready(0, view_of(std::span(values))); }),
              concat("bucket_ready: bucket 0's gradient has ", values.size(),
                     " elements of float32 on the CPU, expected ", values.size(),
                     " of float32 on ", gpu));

    const auto made = [&](const DeviceCase& what, Stream* stream) {
      ReducerOptions options = what.options;
      options.stream = stream;
      return message_of<InvalidArgument>(
          [&] { Reducer another(what.plan(), *self.transport, options); });
    };
    const auto cpu = make_inline_stream();
    const std::string because =
        concat(", expected one of ", gpu, ", because the transport carries memory of ", gpu);
    EXPECT_EQ(made({"none", "dense"}, nullptr), "reducer: stream is null" + because);
    EXPECT_EQ(made({"none", "dense"}, cpu.get()), "reducer: stream is of the CPU" + because);
    EXPECT_EQ(made({.spec = "none", .exchange = "dense",
                    .options = {.launch_order = LaunchOrder::kAgreed}}, &self.stream()),
              "reducer: launch_order is agreed, expected plan: on a GPU nobody waits for what "
              "other ranks say");
    EXPECT_EQ(made({"topk:1%", "gtopk"}, &self.stream()),
              "exchange 'gtopk': is not there on a GPU, where the host reads what a meeting left "
              "before the next begins; expected dense, gather, two_shot");
    EXPECT_TRUE(contains(made({"topk:1%", "two_shot"}, &self.stream()),
                         "exchange 'two_shot': cannot carry 'topk:1%' on a GPU"));
    EXPECT_EQ(message_of<InvalidArgument>([&] {
                const auto on_cpu = make_compressor(parse_spec("int8"), {.numel = 9});
                make_exchange("gather", {.compressors = {on_cpu.get()},
                                         .transport = self.transport.get(), .tag = {}});
              }),
              concat("exchange 'gather': a compressor is of the CPU, expected ", gpu,
                     " as the transport is"));
  });
  const auto ends = run_ranks(1, [](Transport& transport) {
    FakeGpuStream stream(0);
    Reducer reducer(plan_of("none"), transport, {.stream = &stream});
  });
  EXPECT_EQ(first_message(ends), "reducer: stream is of GPU 0, expected null, because the transport "
                                 "carries memory of the CPU");
}

}  // namespace
}  // namespace gradwire::test
