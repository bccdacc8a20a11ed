// What surrounds the payloads of a step: headers that are wiped.

#include "gradwire/kernels/ops/parts_cuda.h"

#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class PartKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, PartKernels, kOrders);

TEST_P(PartKernels, ClearHeadersAndNothingElse) {
  for (const size_t stride : {size_t{32}, size_t{33}, size_t{192}, size_t{1000}}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{33}, size_t{70}}) {
      for (const size_t left_out : {size_t{0}, stride - 32}) {  // behind the last header, before the first
        SCOPED_TRACE(concat(count, " of ", stride, " bytes without ", left_out));
        const size_t bytes = count == 0 ? 0 : count * stride - left_out;
        Guarded<std::byte> memory(std::vector<std::byte>(bytes, std::byte{7}), 3);
        cuda::clear_headers(memory.span(), stride, stream_);
        stream_.wait();
        EXPECT_TRUE(memory.guards_hold());
        const std::vector<std::byte> after = memory.values();
        for (size_t i = 0; i < bytes; ++i) {
          ASSERT_EQ(after[i], std::byte{static_cast<uint8_t>(i % stride < 32 ? 0 : 7)}) << i;
        }
      }
    }
  }
}

TEST(PartLaunchers, RefuseWhatTheyCannotDo) {
  TestStream stream;
  DeviceArray<std::byte> bytes(100);
  expect_refused("stride is 31 bytes", [&] { cuda::clear_headers(bytes, 31, stream); });
}

}  // namespace
}  // namespace gradwire::testing
