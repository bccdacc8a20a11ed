// Checkpoints of a Reducer on a GPU: the bytes of the CPU's, which either of them continues from.

#include <cmath>

#include "tests/simt/reducer/saved.h"

namespace gradwire::test {
namespace {

/// What the CPU's ranks save behind each of these steps, continuing from `files` if there are any.
std::vector<Files> files_of_cpu(int ranks, const std::vector<int>& behind, const DeviceCase& what,
                                const Files& from = {}) {
  std::vector<Files> all(behind.size(), Files(static_cast<size_t>(ranks)));
  const auto ends = run_ranks(ranks, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(what.plan(), transport, what.options);
    if (!from.empty()) {
      reducer.load(opens(from));
    }
    for (size_t i = 0; i < behind.size(); ++i) {
      steps_on_cpu(reducer, rank,
                   static_cast<int>(reducer.committed_steps() + reducer.skipped_steps()), behind[i],
                   what.gradients_of);
      all[i][static_cast<size_t>(rank)] = saved(reducer);
    }
  });
  check(first_message(ends).empty(), first_message(ends));
  return all;
}

std::vector<DeviceCase> cases() {
  std::vector<DeviceCase> all = {{"int8,stochastic", "gather"},
                                 {"int4,stochastic", "two_shot"},
                                 {"topk:5%,int4", "gather"},
                                 {"threshold:5%", "gather"},
                                 {"dgc:5%,clip=1,warmup=4", "gather"},
                                 {"int8,momentum=0.8", "two_shot"},
                                 {"randomk:10%,int8", "two_shot"},
                                 {"powersgd:2", "dense"},
                                 {"powersgd:2,rounds=2,momentum=0.8", "gather"},
                                 {"topk:5%,int4,residual=bf16", "gather"},
                                 {"int8,ef21", "two_shot"},
                                 {"topk:5%,ef21,eta=0.5", "gather"}};
  all.push_back({"threshold:5%,residual=bf16", "gather"});
  all.back().residual_memory = ResidualMemory::kHost;
  return all;
}

TEST_F(DeviceReducers, SaveTheBytesOfTheCpuAndGoOnFromThem) {
  for (const DeviceCase& what : cases()) {
    SCOPED_TRACE(concat(what.spec, " over ", what.exchange));
    const std::vector<Files> files = files_of_cpu(2, {3, 4, 6}, what);
    on_every_gpu(2, [&](NcclRank self) {
      const auto rank = static_cast<size_t>(self.rank);
      const auto reducer = reducer_on_gpu(self, what);
      const void* const memory = reducer->gradient(3).data;
      steps_on_gpu(*reducer, self, 0, 3, what.gradients_of);
      EXPECT_TRUE(saved(*reducer) == files[0][rank])
          << what.spec << " over " << what.exchange << " behind three steps";
      steps_on_gpu(*reducer, self, 100, 102, what.gradients_of);  // nothing of it may be left
      reducer->load(opens(files[1]));
      EXPECT_EQ(reducer->gradient(3).data, memory);
      EXPECT_EQ(reducer->committed_steps(), 4u);
      EXPECT_TRUE(saved(*reducer) == files[1][rank]) << "as it was loaded";
      steps_on_gpu(*reducer, self, 4, 6, what.gradients_of);
      EXPECT_TRUE(saved(*reducer) == files[2][rank])
          << what.spec << " over " << what.exchange << " behind six steps";
      reducer->synchronize();
    });
  }
}

TEST_F(DeviceReducers, MoveWhatWaitsToAnotherNumberOfRanks) {
  for (const DeviceCase& what : {DeviceCase{"topk:5%", "gather"},
                                 {"powersgd:2", "dense"},
                                 {"int8,momentum=0.8", "two_shot"},
                                 {"int8,ef21", "gather"},
                                 {"topk:5%,ef21,eta=0.5", "gather"}}) {
    for (const auto& [before, after] : {std::pair(3, 2), std::pair(1, 2)}) {
      SCOPED_TRACE(concat(what.spec, ", ", before, " to ", after, " ranks"));
      const Files old = files_of_cpu(before, {4}, what)[0];
      const std::vector<Files> expected = files_of_cpu(after, {4, 6}, what, old);
      on_every_gpu(after, [&](NcclRank self) {
        const auto rank = static_cast<size_t>(self.rank);
        const auto reducer = reducer_on_gpu(self, what);
        reducer->load(opens(old));
        EXPECT_TRUE(saved(*reducer) == expected[0][rank]) << "as it was loaded";
        steps_on_gpu(*reducer, self, 4, 6, what.gradients_of);
        EXPECT_TRUE(saved(*reducer) == expected[1][rank]) << "two steps later";
      });
    }
  }
}

TEST_F(DeviceReducers, KeepTheCountOfStepsThatWereLeftOut) {
  const DeviceCase what{.spec = "int8",
                        .exchange = "gather",
                        .options = {.on_nonfinite = OnNonFinite::kSkip},
                        .gradients_of = [](int rank, int step) {
                          Values values = gradients(rank, step);
                          values[2][1] = step % 3 == 1 ? std::nanf("") : 0.5f;
                          return values;
                        }};
  const std::vector<Files> files = files_of_cpu(2, {2, 5}, what);
  on_every_gpu(2, [&](NcclRank self) {
    const auto rank = static_cast<size_t>(self.rank);
    const auto reducer = reducer_on_gpu(self, what);
    steps_on_gpu(*reducer, self, 0, 2, what.gradients_of);
    EXPECT_TRUE(saved(*reducer) == files[0][rank]);
    reducer->load(opens(files[0]));
    EXPECT_EQ(reducer->skipped_steps(), 1u);
    steps_on_gpu(*reducer, self, 2, 5, what.gradients_of);
    EXPECT_EQ(reducer->skipped_steps(), 2u);
    EXPECT_TRUE(saved(*reducer) == files[1][rank]);
  });
}

TEST_F(DeviceReducers, LoadOnAllRanksOrChangeNothing) {
  const DeviceCase what{"topk:5%,int4", "gather"};
  const std::vector<Files> files = files_of_cpu(2, {2, 4, 5}, what);
  Files damaged = files[1];
  damaged[1][damaged[1].size() / 2] ^= 1;
  const Files steps_apart{files[1][0], files[0][1]};
  on_every_gpu(2, [&](NcclRank self) {
    const auto rank = static_cast<size_t>(self.rank);
    const auto reducer = reducer_on_gpu(self, what);
    steps_on_gpu(*reducer, self, 0, 4, what.gradients_of);
    for (const Files& bad : {damaged, steps_apart}) {
      EXPECT_NE(message_of<InvalidArgument>([&] { reducer->load(opens(bad)); }), "");
    }
    EXPECT_TRUE(saved(*reducer) == files[1][rank]);
    steps_on_gpu(*reducer, self, 4, 5, what.gradients_of);
    EXPECT_TRUE(saved(*reducer) == files[2][rank]);
  });
}

TEST_F(DeviceReducers, LoadAResidualIntoAPlanThatKeepsNone) {
  const DeviceCase what{"bf16", "gather"};
  const std::vector<Files> files = files_of_cpu(2, {2}, {"topk:5%", "gather"});
  std::vector<Values> owed(2), later(2);
  Files loaded(2);
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const auto rank = static_cast<size_t>(transport.rank());
    Reducer reducer(what.plan(), transport);
    reducer.load(opens(files[0]));
    loaded[rank] = saved(reducer);
    steps_on_cpu(reducer, transport.rank(), 2, 3, what.gradients_of);
    owed[rank] = means(reducer);
    steps_on_cpu(reducer, transport.rank(), 3, 4, what.gradients_of);
    later[rank] = means(reducer);
  });
  ASSERT_EQ(first_message(ends), "");
  on_every_gpu(2, [&](NcclRank self) {
    const auto rank = static_cast<size_t>(self.rank);
    const auto reducer = reducer_on_gpu(self, what);
    reducer->load(opens(files[0]));
    EXPECT_TRUE(saved(*reducer) == loaded[rank]);  // it still waits
    steps_on_gpu(*reducer, self, 2, 3, what.gradients_of);
    EXPECT_TRUE(means_on_host(*reducer, self.stream()) == owed[rank]);
    steps_on_gpu(*reducer, self, 3, 4, what.gradients_of);
    EXPECT_TRUE(means_on_host(*reducer, self.stream()) == later[rank]);
  });
}

}  // namespace
}  // namespace gradwire::test
