// Reducers of several ranks on one GPU, without NCCL: on a GPU where there is one, else on emulated
// kernels.

#include <gtest/gtest.h>

#include "tests/comm/device_reducer_case.h"
#include "tests/simt/captured.h"
#include "tests/simt/reducer/one_gpu_group.h"
#if !defined(GRADWIRE_ON_GPU)
#include "tests/simt/reducer/device_ranks.h"
#endif

namespace gradwire::test {
namespace {

#if defined(GRADWIRE_ON_GPU)
using OneGpu = ::testing::Test;
#else
using OneGpu = DeviceReducers;
#endif

TEST_F(OneGpu, ReducesToTheBitsOfTheCpu) {
#if defined(GRADWIRE_ON_GPU)
  const std::vector<DeviceCase> cases = device_cases();
#else  // the others are reducer_test.cc's
  const std::vector<DeviceCase> cases = {{"topk:1%", "gather", 2}, {"int8", "two_shot", 2}};
#endif
  for (const DeviceCase& what : cases) {
    SCOPED_TRACE(concat(what.spec, " over ", what.exchange));
    const std::vector<Outcomes> expected = outcomes_on_cpu(3, what);
    const auto group = std::make_shared<OneGpuGroup>(3);
    const auto ends = run_threads(3, [&](int r) {
      OneGpuTransport transport(group, r);
      const auto stream = cuda::make_stream(0);
      const Outcomes outcomes = outcomes_on_device(transport, *stream, what);
      EXPECT_EQ(first_difference(outcomes, expected[static_cast<size_t>(r)]), "") << "rank " << r;
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

#if !defined(GRADWIRE_ON_GPU)  // there nobody makes a line slow
TEST_F(OneGpu, IsProbedAsALineIs) {
  const double bits_per_second = 1e7;
  const auto group = std::make_shared<OneGpuGroup>(3);
  std::vector<LinkCosts> costs(3);
  const auto ends = run_threads(3, [&](int r) {
    OneGpuTransport transport(group, r, bits_per_second);
    const auto stream = cuda::make_stream(0);
    Workspace workspace(kSharedGpu);
    Context context{*stream, workspace};
    costs[static_cast<size_t>(r)] =
        probe_link(transport, context,
                   {.budget = std::chrono::microseconds(200000), .most_bytes = size_t{1} << 15});
  });
  EXPECT_EQ(first_message(ends), "");
  for (const LinkCosts& each : costs) {
    EXPECT_GT(each.beta_s_per_byte, 0.5 * 8 / bits_per_second);
    EXPECT_EQ(each.alpha_s, costs[0].alpha_s);
    EXPECT_EQ(each.beta_s_per_byte, costs[0].beta_s_per_byte);
  }
}
#endif

TEST_F(OneGpu, CopiesAResidualWithoutAWait) {
  for (const DeviceCase& what :
       {DeviceCase{"topk:5%", "gather"}, DeviceCase{"topk:5%,residual=bf16", "gather"},
        DeviceCase{"bf16", "gather"}}) {
    SCOPED_TRACE(what.spec);
    const auto group = std::make_shared<OneGpuGroup>(2);
    const auto ends = run_threads(2, [&](int r) {
      OneGpuTransport transport(group, r);
      const auto stream = cuda::make_stream(0);
      Reducer reducer(what.plan(), transport, {.stream = stream.get()});
      for (int step = 0; step < 3; ++step) {  // both buffers are the committed one
        hand_over_on_device(reducer, gradients(r, step), *stream);
        reducer.wait();
        for (const ParamId p : forward_order()) {
          const Buffer copy(model()[p].numel() * sizeof(float), kSharedGpu);
          const bool there = reducer.copy_residual(p, copy.as<float>());
          const ConstResidual kept = reducer.residual(p);
          ASSERT_EQ(there, !kept.empty()) << p;
          EXPECT_TRUE(!there || on_host(copy.as<float>(), kSharedGpu, *stream) ==
                                    on_host(kept, kSharedGpu, *stream))
              << p;
        }
      }
      const Buffer small(4, kSharedGpu);
      EXPECT_THROW(reducer.copy_residual(0, small.as<float>()), InvalidArgument);
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

#if defined(GRADWIRE_ON_GPU)
TEST_F(OneGpu, ReplaysACapturedStep) {
  const DeviceCase what{.spec = "int4,stochastic", .exchange = "gather", .steps = 6};
  const std::vector<Outcomes> expected = outcomes_on_cpu(1, what);
  OneGpuTransport transport(std::make_shared<OneGpuGroup>(1), 0);
  testing::TestStream stream;
  Reducer reducer(what.plan(), transport, {.stream = &stream});
  std::vector<Buffer> inputs;
  for (const ParamInfo& parameter : model()) {
    inputs.emplace_back(parameter.numel() * sizeof(float), kSharedGpu);
  }
  const auto enqueue = [&] {
    for (const ParamId p : backward_order()) {
      const Gradient place = reducer.gradient(p);
      copy_bytes({static_cast<std::byte*>(place.data), place.size_bytes()}, kSharedGpu,
                 inputs[p].bytes(), kSharedGpu, stream);
      reducer.grad_ready(p);
    }
    reducer.wait();
  };
  std::unique_ptr<testing::Captured> step_again;
  for (int step = 0; step < what.steps; ++step) {
    const Values values = gradients(0, step);
    for (const ParamId p : forward_order()) {
      copy_bytes(inputs[p].bytes(), kSharedGpu, std::as_bytes(std::span(values[p])), {}, stream);
    }
    stream.wait();
    if (step == 2) {
      step_again = std::make_unique<testing::Captured>(stream, enqueue);
    }
    if (step < 2) {
      enqueue();
    } else {
      step_again->replay();
    }
    EXPECT_TRUE(outcome_on_host(reducer, stream) == expected[0][static_cast<size_t>(step)])
        << "step " << step;
  }
  reducer.synchronize();
}
#endif

}  // namespace
}  // namespace gradwire::test
