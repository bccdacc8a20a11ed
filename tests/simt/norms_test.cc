// Sums of squares against the CPU's, which the optimizers use.

#include "gradwire/kernels/ops/norms_cuda.h"

#include "gradwire/optimizers/step.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class NormKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, NormKernels, kOrders);

uint64_t bits_of(double x) { return std::bit_cast<uint64_t>(x); }

TEST_P(NormKernels, AddUpInTheCpusOrder) {
  for (const size_t numel : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{1023},
                             size_t{1024}, size_t{1025}, size_t{4095}, size_t{4097}, size_t{70001}}) {
    for (const Pattern& pattern : patterns(numel, 11)) {
      for (const size_t block : {size_t{1024}, size_t{4096}, size_t{65536}}) {
        SCOPED_TRACE(concat(pattern.name, ", ", numel, " elements in blocks of ", block));
        const DeviceArray<float> on_gpu = on_device(pattern.values);
        const std::span<const float> x(pattern.values);
        DeviceArray<double> sums((numel + block - 1) / block);
        DeviceValue<double> sum(-1.0);
        cuda::sums_of_squares(on_gpu, block, sums, stream_);
        cuda::add_in_order(sums, sum.data(), stream_);
        stream_.wait();
        double expected_total = 0.0;
        for (size_t b = 0; b < sums.size(); ++b) {
          const size_t begin = b * block;
          const double expected = cpu::sum_of_squares(
              x.subspan(begin, std::min(block, numel - begin)));
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(sums[b])) << b;
          } else {
            ASSERT_EQ(bits_of(sums[b]), bits_of(expected)) << b;
          }
          expected_total += expected;
        }
        const double total = *sum;
        if (std::isnan(expected_total)) {
          ASSERT_TRUE(std::isnan(total));
        } else {
          ASSERT_EQ(bits_of(total), bits_of(expected_total));
        }
      }
    }
  }
}

TEST_P(NormKernels, AddPartsInOrder) {
  for (const size_t numel : {size_t{0}, size_t{1}, size_t{255}, size_t{600}}) {
    DeviceArray<double> parts, sums(numel, -1.0);
    for (size_t i = 0; i < 3 * numel; ++i) {  // 1e16 + 1 - 1e16 is 0, in another order 1
      parts.push_back(i < numel ? 1e16 : i < 2 * numel ? static_cast<double>(i % 5) / 3 : -1e16);
    }
    cuda::add_parts(parts, sums, stream_);
    stream_.wait();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(sums[i], 0.0 + parts[i] + parts[numel + i] + parts[2 * numel + i]) << i;
    }
  }
}

TEST(NormLaunchers, NameWhatIsWrong) {
  TestStream stream;
  const auto cpu = make_inline_stream();
  const DeviceArray<float> x(3000);
  DeviceArray<double> sums(3);
  DeviceValue<double> total;
  EXPECT_THROW(cuda::sums_of_squares(x, 1000, sums, stream), InvalidArgument);
  EXPECT_THROW(cuda::sums_of_squares(x, 2048, sums, stream), InvalidArgument);
  EXPECT_THROW(cuda::sums_of_squares(x, size_t{1} << 20, sums, stream), InvalidArgument);
  EXPECT_THROW(cuda::sums_of_squares(x, 1024, sums, *cpu), InvalidArgument);
  EXPECT_THROW(cuda::add_in_order(sums, nullptr, stream), InvalidArgument);
  EXPECT_THROW(cuda::add_in_order(sums, total.data(), *cpu), InvalidArgument);
  EXPECT_THROW(cuda::add_parts(sums, std::span(sums).first(2), stream), InvalidArgument);
  EXPECT_THROW(cuda::add_parts(sums, sums, *cpu), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing
