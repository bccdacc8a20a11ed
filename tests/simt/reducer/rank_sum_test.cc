// Sums of numbers in a GPU's memory over ranks: by its own transport, and by one of CPU memory.

#include <gtest/gtest.h>

#include "gradwire/comm/rank_sum.h"
#include "tests/comm/transport_ranks.h"
#include "tests/simt/reducer/one_gpu_group.h"
#if !defined(GRADWIRE_ON_GPU)
#include "tests/simt/reducer/device_ranks.h"
#endif

namespace gradwire::test {
namespace {

#if defined(GRADWIRE_ON_GPU)
using RankSumOnAGpu = ::testing::Test;
#else
using RankSumOnAGpu = DeviceReducers;
#endif

using transport_test::expect_all_fine;
using transport_test::run_threads;

constexpr int kRanks = 3;
constexpr size_t kCount = 300;

/// In another order the sums of the first have other bits.
double value_of(int r, size_t i) {
  constexpr double kOfRank[] = {1e16, 1.0, -1e16};
  return i == 0 ? kOfRank[r] : 0.1 * static_cast<double>(i + 1) * (r + 1);
}

std::string expect_sums(Transport& transport, int r, Stream& stream) {
  const Device gpu = stream.device();
  RankSum sum(transport, kCount + 7);
  Buffer memory(kCount * sizeof(double), gpu);
  std::vector<double> values(kCount);
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < kCount; ++i) {
      values[i] = value_of(r, i);
    }
    copy_bytes(memory.bytes(), gpu, std::as_bytes(std::span(values)), {}, stream);
    sum(memory.as<double>(), stream);
    copy_bytes(std::as_writable_bytes(std::span(values)), {}, memory.bytes(), gpu, stream);
    stream.wait();
    for (size_t i = 0; i < kCount; ++i) {
      double expected = 0.0;
      for (int other = 0; other < kRanks; ++other) {
        expected += value_of(other, i);
      }
      EXPECT_EQ(values[i], expected) << "element " << i << " of rank " << r;
    }
  }
  try {
    std::vector<double> many(kCount + 8);
    sum(many, stream);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(RankSumOnAGpu, HasTheSameBitsInRankOrderOnEveryRank) {
  const auto group = std::make_shared<OneGpuGroup>(kRanks);
  const auto ends = run_threads(kRanks, [&](int r) {
    OneGpuTransport transport(group, r);
    const auto stream = cuda::make_stream(0);
    EXPECT_EQ(expect_sums(transport, r, *stream),
              "rank_sum: there are 308 values, expected at most 307");
    RankSum sum(transport, 1);
    double value = 0.0;
    EXPECT_THROW(sum({&value, 1}), InvalidArgument);
    const auto cpu = make_inline_stream(1);
    EXPECT_THROW(sum({&value, 1}, *cpu), InvalidArgument);
  });
  expect_all_fine(ends);
}

#if !defined(GRADWIRE_ON_GPU)
TEST_F(RankSumOnAGpu, IsThereOverNccl) {
  on_every_gpu(kRanks, [](NcclRank rank) {
    EXPECT_EQ(expect_sums(*rank.transport, rank.rank, rank.stream()),
              "rank_sum: there are 308 values, expected at most 307");
    rank.barrier();
  });
}
#endif

TEST_F(RankSumOnAGpu, TravelsThroughTheHostWhereTheTransportIsTheCpus) {
  const auto group = make_in_process_group(kRanks, {});
  const auto ends = run_threads(kRanks, [&](int r) {
    const auto stream = cuda::make_stream(0);
    EXPECT_EQ(expect_sums(*group[static_cast<size_t>(r)], r, *stream),
              "rank_sum: there are 308 values, expected at most 307");
  });
  expect_all_fine(ends);
}

}  // namespace
}  // namespace gradwire::test
