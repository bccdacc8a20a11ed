// A plan that changes on a GPU: residuals go along as they do on the CPU.

#include <cmath>

#include "tests/simt/reducer/saved.h"

namespace gradwire::test {
namespace {

struct Change {
  DeviceCase first, second;
};

TEST_F(DeviceReducers, ChangeTheirPlanAsTheCpuDoes) {
  for (const Change& change :
       {Change{{"topk:5%,int4", "gather"}, {"int8,stochastic", "two_shot"}},
        Change{{"threshold:5%", "gather"}, {"topk:5%,residual=bf16", "gather"}},
        Change{{"powersgd:2", "dense"}, {"powersgd:2", "gather"}},
        Change{{"topk:5%,momentum=0.8", "gather"}, {"int8,momentum=0.8", "two_shot"}},
        Change{{"int8,ef21", "two_shot"}, {"topk:5%,ef21,eta=0.5", "gather"}},
        Change{{"none", "dense"}, {"topk:5%", "gather"}}}) {
    SCOPED_TRACE(concat(change.first.spec, " to ", change.second.spec));
    const GradientsOf of = gradients;
    Files between(2), files(2);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(change.first.plan(), transport);
      steps_on_cpu(reducer, transport.rank(), 0, 3, of);
      reducer.set_plan(change.second.plan());
      between[rank] = saved(reducer);
      steps_on_cpu(reducer, transport.rank(), 3, 5, of);
      files[rank] = saved(reducer);
    });
    ASSERT_EQ(first_message(ends), "");
    on_every_gpu(2, [&](NcclRank self) {
      const auto rank = static_cast<size_t>(self.rank);
      const auto reducer = reducer_on_gpu(self, change.first);
      steps_on_gpu(*reducer, self, 0, 3, of);
      reducer->set_plan(change.second.plan());
      EXPECT_TRUE(saved(*reducer) == between[rank]) << change.second.spec << " at first";
      steps_on_gpu(*reducer, self, 3, 5, of);
      EXPECT_TRUE(saved(*reducer) == files[rank]) << change.second.spec << " two steps later";
      EXPECT_EQ(reducer->committed_steps(), 5u);
      reducer->synchronize();
    });
  }
}

// What waits goes into the next gradient that is committed, and into no other: here the first step
// of the new plan is left out.
TEST_F(DeviceReducers, CarryResidualsIntoAPlanThatKeepsNone) {
  for (const Change& change :
       {Change{{"topk:5%", "gather"}, {"none", "dense"}},
        Change{{"topk:5%,int4", "gather"}, {"bf16", "gather"}},
        Change{{"int8,stochastic,ef", "two_shot"}, {"int4,stochastic,noef", "gather"}},
        Change{{"topk:5%", "gather"}, {"topk:5%,ef21", "gather"}}}) {
    SCOPED_TRACE(concat(change.first.spec, " to ", change.second.spec));
    const GradientsOf of = [](int rank, int step) {
      Values values = gradients(rank, step);
      values[4][7] = step == 3 && rank == 1 ? std::nanf("") : values[4][7];
      return values;
    };
    const bool estimates = change.second.spec.find("ef21") != std::string::npos;
    Files before(2), between(2), files(2);
    DeviceCase first = change.first;
    const DeviceCase& second = change.second;
    first.options.on_nonfinite = OnNonFinite::kSkip;
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(first.plan(), transport, first.options);
      steps_on_cpu(reducer, transport.rank(), 0, 3, of);
      reducer.set_plan(second.plan());
      before[rank] = estimates ? "" : saved(reducer);
      steps_on_cpu(reducer, transport.rank(), 3, 4, of);
      between[rank] = estimates ? "" : saved(reducer);
      steps_on_cpu(reducer, transport.rank(), 4, 7, of);
      files[rank] = saved(reducer);
    });
    ASSERT_EQ(first_message(ends), "");
    EXPECT_TRUE(estimates || before[0].size() == between[0].size());  // it still waits
    on_every_gpu(2, [&](NcclRank self) {
      const auto rank = static_cast<size_t>(self.rank);
      const auto reducer = reducer_on_gpu(self, first);
      steps_on_gpu(*reducer, self, 0, 3, of);
      reducer->set_plan(second.plan());
      EXPECT_TRUE(estimates || saved(*reducer) == before[rank]) << "at first";
      steps_on_gpu(*reducer, self, 3, 4, of);
      EXPECT_TRUE(estimates || saved(*reducer) == between[rank]) << "behind one left out";
      steps_on_gpu(*reducer, self, 4, 7, of);
      EXPECT_TRUE(saved(*reducer) == files[rank]) << "at the end";
      EXPECT_EQ(reducer->committed_steps(), 6u);
      reducer->synchronize();
    });
  }
}

TEST_F(DeviceReducers, TellOfAFaultBeforeThePlanChanges) {
  const DeviceCase what{.spec = "int8", .exchange = "gather"};
  const GradientsOf one_nan = [](int rank, int step) {
    Values values = gradients(rank, step);
    values[4][7] = step == 1 && rank == 1 ? std::nanf("") : 1.0f;
    return values;
  };
  on_every_gpu(2, [&](NcclRank self) {
    const auto reducer = reducer_on_gpu(self, what);
    steps_on_gpu(*reducer, self, 0, 1, one_nan);
    self.stream().wait();
    hand_over_on_device(*reducer, one_nan(self.rank, 1), self.stream());
    (void)message_of<NonFiniteGradient>([&] { reducer->wait(); });
    const Plan next = DeviceCase{"int4", "gather"}.plan();
    EXPECT_NE(message_of<NonFiniteGradient>([&] { reducer->set_plan(next); }), "");
    EXPECT_EQ(reducer->plan().fingerprint(), what.plan().fingerprint());
    reducer->set_plan(next);
    steps_on_gpu(*reducer, self, 2, 3, one_nan);
    reducer->synchronize();
    EXPECT_EQ(reducer->committed_steps(), 2u);
  });
}

}  // namespace
}  // namespace gradwire::test
