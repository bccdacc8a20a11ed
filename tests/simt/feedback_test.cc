// The estimate of ef21 against a loop, element by element.

#include "gradwire/kernels/ops/feedback_cuda.h"

#include <cmath>

#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class EstimateKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, EstimateKernels, kOrders);

TEST_P(EstimateKernels, AddTheMeanToTheOneThatIsCommitted) {
  size_t overflows = 0;
  for (const size_t numel : kSizes) {
    for (const size_t offset : {0, 4, 12}) {
      for (const Pattern& pattern : finite_patterns(numel, 3)) {
        for (const uint32_t parity : {0u, 1u}) {
          SCOPED_TRACE(
              concat(pattern.name, ", ", numel, " elements, offset ", offset, ", parity ", parity));
          const std::vector<float> before[] = {normal(numel, 11, 1e37f), normal(numel, 12)};
          Guarded<float> first(before[0], offset), second(before[1], 0);
          Guarded<float> mean(pattern.values, offset / 4 * 8 % 16);
          DeviceValue<uint32_t> word(parity), status(cuda::kStatusMalformed);
          cuda::add_estimate({.estimate = {first.span(), second.span(), word.data()},
                              .next = {second.span(), first.span(), word.data()},
                              .mean = mean.span(),
                              .status = status.data()},
                             stream_);
          stream_.wait();
          std::vector<float> expected(numel);
          for (size_t i = 0; i < numel; ++i) {
            expected[i] = before[parity][i] + pattern.values[i];
          }
          const Guarded<float>& committed = parity == 0 ? first : second;
          const Guarded<float>& next = parity == 0 ? second : first;
          ASSERT_EQ(bits_of(mean.values()), bits_of(expected));
          ASSERT_EQ(bits_of(next.values()), bits_of(expected));
          const bool finite =
              std::ranges::all_of(expected, [](float x) { return std::isfinite(x); });
          overflows += finite ? 0 : 1;
          ASSERT_EQ(*status, cuda::kStatusMalformed | (finite ? 0u : cuda::kStatusNonFinite));
          ASSERT_EQ(bits_of(committed.values()), bits_of(before[parity]));
          EXPECT_TRUE(mean.guards_hold() && first.guards_hold() && second.guards_hold());
        }
      }
    }
  }
  EXPECT_GT(overflows, 0u);
}

TEST(EstimateLauncher, NamesWhatIsWrong) {
  TestStream stream;
  const auto cpu = make_inline_stream();
  DeviceArray<float> first(9), second(9), mean(9);
  DeviceValue<uint32_t> status;
  const auto add = [&](size_t of_second, size_t of_mean, Stream& on) {
    const auto other = std::span(second).first(of_second);
    cuda::add_estimate({.estimate = {first, other, nullptr},
                        .next = {other, first, nullptr},
                        .mean = std::span(mean).first(of_mean),
                        .status = status.data()},
                       on);
  };
  expect_refused("estimate, next and mean have 9, 9 and 8 elements", [&] { add(9, 8, stream); });
  expect_refused("estimate, next and mean have 9, 8 and 9 elements", [&] { add(8, 9, stream); });
  expect_refused("CPU stream", [&] { add(9, 9, *cpu); });
}

}  // namespace
}  // namespace gradwire::testing
