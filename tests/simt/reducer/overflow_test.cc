// A Reducer on a GPU whose ranks have finite gradients and an infinite sum: the kernels that add up
// say so, as the CPU's do, and no host waits for it.

#include <cmath>

#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {
namespace {

/// 3e38 in step 1, on every rank: in all of a parameter, and in the last element of another one.
Values large_in_step_1(int rank, int step) {
  Values values = gradients(rank, step);
  if (step == 1) {
    values[4].assign(values[4].size(), 3e38f);
    values[1].back() = 3e38f;
  }
  return values;
}

bool all_zero(const Values& values) {
  return std::ranges::all_of(values, [](const std::vector<float>& of_parameter) {
    return std::ranges::all_of(of_parameter, [](float x) { return x == 0.0f; });
  });
}

bool all_finite(const Values& values) {
  return std::ranges::all_of(values, [](const std::vector<float>& of_parameter) {
    return std::ranges::all_of(of_parameter, [](float x) { return std::isfinite(x); });
  });
}

TEST_F(DeviceReducers, LeaveOutAStepWhoseSumOverflowsAsTheCpuDoes) {
  size_t left_out = 0;
  for (DeviceCase what : device_cases()) {
    if (what.residual_memory == ResidualMemory::kHost) {
      continue;
    }
    SCOPED_TRACE(concat(what.spec, " ", what.exchange));
    what.steps = 3;
    what.options.on_nonfinite = OnNonFinite::kSkip;
    what.gradients_of = large_in_step_1;
    const std::vector<Outcomes> expected = outcomes_on_cpu(2, what);
    left_out += all_zero(expected[0][1].means) ? 1 : 0;
    on_every_gpu(2, [&](NcclRank self) {
      const Outcomes outcomes = outcomes_on_device(*self.transport, self.stream(), what);
      EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(self.rank)]), "");
      for (const Outcome& outcome : outcomes) {
        EXPECT_TRUE(all_finite(outcome.means));
        EXPECT_TRUE(all_finite(outcome.residuals));
      }
    });
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GE(left_out, 15u);
}

TEST_F(DeviceReducers, NameTheBucketWhoseSumOverflows) {
  for (const char* spec : {"int8", "1bit", "topk:5%", "bf16", "randomk:50%", "powersgd:2"}) {
    SCOPED_TRACE(spec);
    // Factors are sums, which overflow on each rank already: of low rank a vector is chosen.
    const ParamId large = spec == std::string("powersgd:2") ? 5 : 4;
    const auto gradients_of = [large](int rank, int step) {
      Values values = gradients(rank, step);
      if (step == 1) {
        values[large].assign(values[large].size(), 3e38f);
      }
      return values;
    };
    const Plan plan = DeviceCase{.spec = spec, .exchange = "gather"}.plan();
    on_every_gpu(2, [&](NcclRank self) {
      ReducerOptions options;
      options.stream = &self.stream();
      Reducer reducer(plan, *self.transport, options);
      for (const int step : {0, 1}) {
        hand_over_on_device(reducer, gradients_of(self.rank, step), self.stream());
        try {
          reducer.wait();
        } catch (const NonFiniteGradient&) {  // the GPU was faster; synchronize() says it again
          EXPECT_EQ(step, 1);
        }
        if (step == 0) {
          reducer.synchronize();
        }
      }
      const std::string message = message_of<NonFiniteGradient>([&] { reducer.synchronize(); });
      EXPECT_TRUE(contains(message, concat("bucket ", plan.places[large].bucket, " (gather")))
          << message;
      EXPECT_TRUE(contains(message,
                           "the sum of the ranks' finite gradients overflows float32 in step "
                           "1, must be finite"))
          << message;
      EXPECT_EQ(reducer.committed_steps(), 1u);
      hand_over_on_device(reducer, gradients(self.rank, 2), self.stream());
      reducer.wait();
      reducer.synchronize();
      EXPECT_EQ(reducer.committed_steps(), 2u);
    });
  }
}

}  // namespace
}  // namespace gradwire::test
