// Dense casts against kernels/core/dtype.h, element by element.

#include "gradwire/kernels/ops/cast_cuda.h"

#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class CastKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, CastKernels, kOrders);

template <class T>
std::vector<std::byte> narrowed(const std::vector<float>& x) {
  std::vector<std::byte> bytes(x.size() * sizeof(T));
  for (size_t i = 0; i < x.size(); ++i) {
    const T element = from_float<T>(x[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

template <class T>
void expect_casts(const Pattern& pattern, size_t offset, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " elements as ", to_string(kDTypeOf<T>),
                      ", offset ", offset));
  Guarded<float> x(pattern.values, offset / 4 * 4);
  Guarded<std::byte> narrow(numel * sizeof(T), offset);
  cuda::narrow(x.span(), {narrow.bytes(), numel, kDTypeOf<T>, kEmulated}, stream);
  stream.wait();
  const std::vector<std::byte> expected = narrowed<T>(pattern.values);
  ASSERT_EQ(narrow.values(), expected);
  Guarded<float> wide(numel, offset / 4 * 4);
  cuda::widen({narrow.bytes(), numel, kDTypeOf<T>, kEmulated}, wide.span(), stream);
  stream.wait();
  std::vector<float> exact(numel);
  for (size_t i = 0; i < numel; ++i) {
    T element;
    std::memcpy(&element, expected.data() + i * sizeof(T), sizeof(T));
    exact[i] = to_float(element);
  }
  ASSERT_EQ(bits_of(wide.values()), bits_of(exact));
  EXPECT_TRUE(narrow.guards_hold());
  EXPECT_TRUE(wide.guards_hold());
}

TEST_P(CastKernels, RoundAndWidenAsTheDefinitionDoes) {
  for (const size_t numel : kSizes) {
    for (const size_t offset : {0, 1, 2, 4, 12}) {
      for (const Pattern& pattern : patterns(numel, 7)) {
        expect_casts<float>(pattern, offset, stream_);
        expect_casts<float16>(pattern, offset, stream_);
        expect_casts<bfloat16>(pattern, offset, stream_);
      }
    }
  }
}

TEST_P(CastKernels, WidenEveryHalf) {
  DeviceArray<uint16_t> halves(65536);
  std::vector<float> exact(65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
    exact[i] = to_float(float16{halves[i]});
  }
  DeviceArray<float> wide(65536);
  cuda::widen({halves.data(), halves.size(), DType::kFloat16, kEmulated}, wide, stream_);
  stream_.wait();
  EXPECT_EQ(bits_of(wide), bits_of(exact));
}

TEST(CastLaunchers, NameWhatIsWrong) {
  TestStream stream;
  const auto cpu = make_inline_stream();
  DeviceArray<float> x(8), out(9);
  EXPECT_THROW(cuda::widen({x.data(), 8, DType::kFloat32, kEmulated}, out, stream),
               InvalidArgument);
  EXPECT_THROW(
      cuda::widen({x.data(), 8, DType::kFloat32, kEmulated}, std::span(out).first(8), *cpu),
      InvalidArgument);
  EXPECT_THROW(cuda::narrow(x, {out.data(), 8, DType::kFloat32, {}}, stream), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing
