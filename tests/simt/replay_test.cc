// Launchers that no compressor calls, recorded once: every replay reads what is in memory then, and
// writes the same bits for the same input.

#include "gradwire/kernels/ops/cast_cuda.h"
#include "gradwire/kernels/ops/norms_cuda.h"
#include "tests/simt/captured.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

constexpr size_t kNumel = 70001;
constexpr size_t kBlock = 4096;

/// Records `work`, which reads x; what `result` gives must be the same in three replays, and differ
/// for another x.
template <class Work, class Result>
void expect_replays(DeviceArray<float>& x, TestStream& stream, const Work& work,
                    const Result& result) {
  const auto run_on = [&](uint64_t seed, auto&& run) {
    stream.wait();
    std::ranges::copy(normal(kNumel, seed), x.begin());
    run();
    stream.wait();
    return result();
  };
  const auto expected = run_on(1, work);
  Captured captured(stream, work);
  const auto replay = [&] { captured.replay(); };
  EXPECT_NE(run_on(2, replay), expected);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_on(1, replay), expected) << "replay " << i;
  }
}

TEST(Replays, OfCastsWriteTheSameThreeTimes) {
  TestStream stream;
  DeviceArray<float> x(kNumel), wide(kNumel);
  DeviceArray<uint16_t> half(kNumel);
  expect_replays(
      x, stream,
      [&] {
        const TensorView narrow{half.data(), kNumel, DType::kFloat16, kEmulated};
        cuda::cast(TensorView{x.data(), kNumel, DType::kFloat32, kEmulated}, narrow, stream);
        cuda::cast(narrow, TensorView{wide.data(), kNumel, DType::kFloat32, kEmulated}, stream);
      },
      [&] { return std::pair(half, bits_of(wide)); });
}

TEST(Replays, OfNormsWriteTheSameThreeTimes) {
  TestStream stream;
  DeviceArray<float> x(kNumel);
  DeviceArray<double> sums((kNumel + kBlock - 1) / kBlock), total(1);
  expect_replays(
      x, stream,
      [&] {
        cuda::sums_of_squares(x, kBlock, sums, stream);
        cuda::add_in_order(sums, total.data(), stream);
      },
      [&] { return std::pair(sums, total); });
}

}  // namespace
}  // namespace gradwire::testing
