// Gradients of several passes, gradients that never come, and plans that follow from measured times, on
// a GPU: the bits of the CPU's.

#include <cmath>

#include "tests/simt/reducer/saved.h"

namespace gradwire::test {
namespace {

/// `on_cpu(reducer, transport's rank, step)` and `on_gpu(reducer, rank, step)` hand over a step.
template <class OnCpu, class OnGpu>
void expect_the_cpus_bits(const DeviceCase& what, const OnCpu& on_cpu, const OnGpu& on_gpu) {
  SCOPED_TRACE(concat(what.spec, " over ", what.exchange, " of ", to_string(what.plan().dtype)));
  std::vector<Outcomes> expected(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    Reducer reducer(what.plan(), transport, what.options);
    for (int step = 0; step < what.steps; ++step) {
      on_cpu(reducer, transport.rank(), step);
      reducer.wait();
      expected[static_cast<size_t>(transport.rank())].push_back(
          {means(reducer), residuals(reducer)});
    }
  });
  ASSERT_EQ(first_message(ends), "");
  on_every_gpu(3, [&](NcclRank self) {
    const auto reducer = reducer_on_gpu(self, what);
    Outcomes outcomes;
    for (int step = 0; step < what.steps; ++step) {
      on_gpu(*reducer, self, step);
      EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
      outcomes.push_back(outcome_on_host(*reducer, self.stream()));
    }
    EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(self.rank)]), "");
    EXPECT_EQ(reducer->committed_steps(), static_cast<uint64_t>(what.steps));
    reducer->synchronize();
  });
}

/// A copy on the rank's GPU, of what `values` becomes there.
class OnItsGpu {
 public:
  OnItsGpu(NcclRank self, std::span<const std::byte> bytes, DType dtype)
      : copy_(bytes.size(), self.rank), dtype_(dtype) {
    copy_bytes(copy_.bytes(), copy_.buffer.device(), bytes, {}, self.stream());
  }
  ConstGradient view() const {
    return {copy_.bytes().data(), copy_.bytes().size() / size_of(dtype_), dtype_,
            copy_.buffer.device()};
  }

 private:
  transport_test::OnGpu<std::byte> copy_;
  DType dtype_;
};

constexpr int kPasses = 3;

TEST_F(DeviceReducers, AddUpPassesAsTheCpuDoes) {
  for (const DeviceCase& what :
       {DeviceCase{"topk:5%,int4", "gather", 3}, DeviceCase{"none", "dense"}}) {
    const auto of_pass = [](int rank, int step, int pass) {
      return gradients(rank, kPasses * step + pass);
    };
    expect_the_cpus_bits(
        what,
        [&](Reducer& reducer, int rank, int step) {
          for (int pass = 0; pass < kPasses; ++pass) {
            const Values values = of_pass(rank, step, pass);
            for (const ParamId p : backward_order()) {
              reducer.accumulate(p, view_of(std::span<const float>(values[p])));
            }
          }
          for (const ParamId p : backward_order()) {
            reducer.grad_ready(p);
          }
        },
        [&](Reducer& reducer, NcclRank self, int step) {
          std::vector<OnItsGpu> kept;  // until the stream has passed
          for (int pass = 0; pass < kPasses; ++pass) {
            const Values values = of_pass(self.rank, step, pass);
            for (const ParamId p : backward_order()) {
              kept.emplace_back(self, std::as_bytes(std::span(values[p])), DType::kFloat32);
              reducer.accumulate(p, kept.back().view());
            }
          }
          for (const ParamId p : backward_order()) {
            reducer.grad_ready(p);
          }
          self.stream().wait();
        });
  }
}

// Sums are rounded to the gradient's type after each pass.
TEST_F(DeviceReducers, AddUpPassesOfSixteenBitsAsTheCpuDoes) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    PlanOptions options;
    options.spec = parse_spec("none");
    options.dtype = dtype;
    options.exchange = "dense";
    const std::vector<ParamInfo> parameters{{"odd", {4099}}};
    const auto narrow = [&](int pass) {
      std::vector<uint16_t> bits(4099);
      dispatch(dtype, [&]<class T>() {
        if constexpr (sizeof(T) == sizeof(uint16_t)) {
          for (size_t i = 0; i < bits.size(); ++i) {
            const T value = from_float<T>(std::sin(static_cast<float>(i) + 0.1f * float(pass)));
            std::memcpy(&bits[i], &value, sizeof value);
          }
        }
      });
      return bits;
    };
    std::vector<uint16_t> expected(4099), has(4099);
    const auto ends = run_ranks(1, [&](Transport& transport) {
      Reducer reducer(make_plan(parameters, options), transport);
      for (int pass = 0; pass < kPasses; ++pass) {
        const std::vector<uint16_t> bits = narrow(pass);
        reducer.accumulate(0, {bits.data(), bits.size(), dtype, {}});
      }
      std::memcpy(expected.data(), reducer.gradient(0).data, 2 * expected.size());
      reducer.grad_ready(0);
      reducer.wait();
    });
    ASSERT_EQ(first_message(ends), "");
    on_every_gpu(1, [&](NcclRank self) {
      Reducer reducer(make_plan(parameters, options), *self.transport,
                      {.stream = &self.stream()});
      std::vector<OnItsGpu> kept;
      for (int pass = 0; pass < kPasses; ++pass) {
        const std::vector<uint16_t> bits = narrow(pass);
        kept.emplace_back(self, std::as_bytes(std::span(bits)), dtype);
        reducer.accumulate(0, kept.back().view());
      }
      const Gradient sum = reducer.gradient(0);
      copy_bytes(std::as_writable_bytes(std::span(has)), {},
                 {static_cast<const std::byte*>(sum.data), sum.size_bytes()}, sum.device,
                 self.stream());
      self.stream().wait();
      reducer.grad_ready(0);
      reducer.wait();
      reducer.synchronize();
    });
    EXPECT_EQ(has, expected) << to_string(dtype);
  }
}

// Rank 0 reaches parameters 0 to 5, the others all but 4; nobody 6 in odd steps.
bool reaches(int rank, int step, ParamId p) {
  return (p != 6 || step % 2 == 0) && (rank == 0 ? p <= 6 : p != 4);
}

TEST_F(DeviceReducers, TakeWhatIsUnusedForZeroAsTheCpuDoes) {
  for (const bool marked : {true, false}) {
    for (const DeviceCase& what : {DeviceCase{.spec = "topk:5%,int4", .exchange = "gather",
                                              .steps = 4,
                                              .options = {.unused = UnusedParameters::kZero}},
                                   DeviceCase{.spec = "none", .exchange = "dense", .steps = 4,
                                              .options = {.unused = UnusedParameters::kZero,
                                                          .streams = 3}}}) {
      const auto hand_over_some = [&](Reducer& reducer, int rank, int step, const auto& write) {
        if (step > 0) {
          for (const ParamId p : forward_order()) {
            EXPECT_EQ(reducer.unused_everywhere(p), p == 6 && (step - 1) % 2 == 1)
                << "parameter " << p << " in step " << step - 1;
          }
        }
        const Values values = gradients(rank, step);
        for (const ParamId p : backward_order()) {
          if (reaches(rank, step, p)) {
            write(p, values);
            reducer.grad_ready(p);
          } else if (marked) {
            reducer.mark_unused(p);
          }
        }
      };
      expect_the_cpus_bits(
          what,
          [&](Reducer& reducer, int rank, int step) {
            hand_over_some(reducer, rank, step, [&](ParamId p, const Values& values) {
              write_gradient(reducer, p, values);
            });
          },
          [&](Reducer& reducer, NcclRank self, int step) {
            hand_over_some(reducer, self.rank, step, [&](ParamId p, const Values& values) {
              write_on_device(reducer, p, values[p], self.stream());
            });
          });
    }
  }
}

// A replayed step would not tell which parameters are unused in it.
TEST_F(DeviceReducers, RefuseToBeCapturedWhereRanksTellOfUnusedParameters) {
  on_every_gpu(1, [&](NcclRank self) {
    const auto reducer =
        reducer_on_gpu(self, {.spec = "none", .exchange = "dense",
                              .options = {.unused = UnusedParameters::kZero}});
    self.stream().begin_capture();
    EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { reducer->wait(); }),
                         "step 0 is captured, but ranks tell each other of unused parameters"));
    self.stream().end_capture();
    reducer->mark_unused(0);
    EXPECT_EQ(reducer->wait(), StepOutcome::kEnqueued);
    reducer->synchronize();
  });
}

// What rank 0 is given as measured decides, and the others follow.
TEST_F(DeviceReducers, ReplanFromTheCallersTimesAsTheCpuDoes) {
  for (const auto& [spec, exchange] :
       {std::pair("topk:5%", "auto"), std::pair("int8", "auto"), std::pair("none", "dense")}) {
    SCOPED_TRACE(spec);
    const DeviceCase first{spec, default_exchange(parse_spec(spec)) == "dense" ? "dense" : "gather"};
    ReplanOptions how{.link = {1e-5, 1e-9}};
    how.plan.spec = parse_spec(spec);
    how.plan.exchange = exchange;
    how.plan.seed = 3;
    const std::vector<ParamId> order = random_order(5);
    for (size_t i = 0; i + 1 < order.size(); ++i) {  // the last is never reached
      how.timings.push_back({.parameter = order[i], .ready_s = 100 * double(i),
                             .bytes = model()[order[i]].numel() * sizeof(float)});
    }
    ReplanOptions of_another = how;
    of_another.timings = {};
    Files files(2);
    uint64_t fingerprint = 0;
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(first.plan(), transport);
      steps_on_cpu(reducer, transport.rank(), 0, 2, gradients);
      reducer.replan(rank == 0 ? how : of_another);
      check(reducer.plan().fingerprint() != first.plan().fingerprint(), "the plan stayed");
      fingerprint = rank == 0 ? reducer.plan().fingerprint() : fingerprint;
      steps_on_cpu(reducer, transport.rank(), 2, 5, gradients);
      files[rank] = saved(reducer);
    });
    ASSERT_EQ(first_message(ends), "");
    on_every_gpu(2, [&](NcclRank self) {
      const auto reducer = reducer_on_gpu(self, first);
      steps_on_gpu(*reducer, self, 0, 2, gradients);
      reducer->replan(self.rank == 0 ? how : of_another);
      EXPECT_EQ(reducer->plan().fingerprint(), fingerprint);
      steps_on_gpu(*reducer, self, 2, 5, gradients);
      EXPECT_TRUE(saved(*reducer) == files[static_cast<size_t>(self.rank)]);
      reducer->synchronize();
    });
  }
}

}  // namespace
}  // namespace gradwire::test
