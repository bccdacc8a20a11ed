// Dense casts against kernels/core/dtype.h, element by element.

#include "gradwire/kernels/ops/cast_cuda.h"

#include <array>

#include "tests/simt/refused.h"
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

TensorView view(Guarded<float>& memory, Device device = kEmulated) {
  return {memory.bytes(), memory.span().size(), DType::kFloat32, device};
}

template <class T>
void expect_casts(const Pattern& pattern, size_t offset, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " elements as ", to_string(kDTypeOf<T>),
                      ", offset ", offset));
  Guarded<float> x(pattern.values, offset / 4 * 4);
  Guarded<std::byte> narrow(numel * sizeof(T), offset / sizeof(T) * sizeof(T));
  const TensorView as_narrow{narrow.bytes(), numel, kDTypeOf<T>, kEmulated};
  cuda::cast(view(x), as_narrow, stream);
  stream.wait();
  const std::vector<std::byte> expected = narrowed<T>(pattern.values);
  ASSERT_EQ(narrow.values(), expected);
  Guarded<float> wide(numel, offset / 4 * 4);
  cuda::cast(as_narrow, view(wide), stream);
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
    for (const size_t offset : {0, 2, 4, 8, 12}) {
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
  cuda::cast(TensorView{halves.data(), halves.size(), DType::kFloat16, kEmulated},
             TensorView{wide.data(), wide.size(), DType::kFloat32, kEmulated}, stream_);
  stream_.wait();
  EXPECT_EQ(bits_of(wide), bits_of(exact));
}

// The arrays that a word chooses, and those alone; large ones in fewer blocks than they have to the
// host's memory.
TEST_P(CastKernels, ReadAndWriteTheArraysThatTheDeviceSays) {
  for (const size_t numel : {size_t{1}, size_t{4097}, size_t{300000}}) {
    for (const bool pinned : {false, true}) {
      for (const uint32_t word : {0u, 1u}) {
        SCOPED_TRACE(concat(numel, " elements, parity ", word, pinned ? ", pinned" : ""));
        const Device kept_on = pinned ? Device{} : kEmulated;
        const std::vector<float> values[2] = {normal(numel, 3), normal(numel, 4)};
        std::array wide{Guarded(values[0]), Guarded(values[1])};
        std::array back{Guarded<float>(numel), Guarded<float>(numel)}, whole = back;
        std::array kept{Guarded<std::byte>(numel * 2, 2), Guarded<std::byte>(numel * 2, 2)};
        const std::vector<std::byte> untouched = kept[0].values();
        const std::vector<float> untouched_floats = back[0].values();
        DeviceValue<uint32_t> parity(word);
        const auto on_device = [&](std::array<Guarded<float>, 2>& pair) {
          return cuda::ParityView(view(pair[0]), view(pair[1]), parity.data(), false);
        };
        const auto narrow = [&](size_t i) {
          return TensorView{kept[i].bytes(), numel, DType::kBFloat16, kept_on};
        };
        // The second call reads what the first wrote; the third takes the others of both.
        cuda::cast(on_device(wide), {narrow(0), narrow(1), parity.data(), pinned}, stream_);
        cuda::cast({narrow(0), narrow(1), parity.data(), pinned}, on_device(back), stream_);
        cuda::cast(on_device(wide),
                   {view(whole[1], kept_on), view(whole[0], kept_on), parity.data(), pinned},
                   stream_);
        stream_.wait();
        const std::vector<std::byte> expected = narrowed<bfloat16>(values[word]);
        EXPECT_EQ(kept[word].values(), expected);
        EXPECT_EQ(kept[1 - word].values(), untouched);
        std::vector<float> widened(numel);
        for (size_t i = 0; i < numel; ++i) {
          widened[i] = to_float(from_float<bfloat16>(values[word][i]));
        }
        EXPECT_EQ(bits_of(back[word].values()), bits_of(widened));
        EXPECT_EQ(bits_of(back[1 - word].values()), bits_of(untouched_floats));
        EXPECT_EQ(bits_of(whole[1 - word].values()), bits_of(values[word]));
        EXPECT_EQ(bits_of(whole[word].values()), bits_of(untouched_floats));
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_TRUE(wide[i].guards_hold() && kept[i].guards_hold() && back[i].guards_hold() &&
                      whole[i].guards_hold());
        }
      }
    }
  }
}

TEST(CastLaunchers, NameWhatIsWrong) {
  TestStream stream;
  const auto cpu = make_inline_stream();
  DeviceArray<float> x(8), out(9);
  DeviceValue<uint32_t> parity;
  const TensorView from{x.data(), 8, DType::kFloat32, kEmulated};
  const TensorView to{out.data(), 8, DType::kFloat32, kEmulated};
  const TensorView half{out.data(), 8, DType::kFloat16, kEmulated};
  TensorView longer = to, host = to;
  longer.numel = 9;
  host.device = {};
  expect_refused("cuda::cast: source and out have 8 and 9 elements, must have the same number",
                 [&] { cuda::cast(from, longer, stream); });
  expect_refused("cuda::cast: the stream is a CPU stream, must be a CUDA stream",
                 [&] { cuda::cast(from, to, *cpu); });
  expect_refused("cuda::cast: to is in the memory of the CPU 0, must be in that of the stream's",
                 [&] { cuda::cast(from, host, stream); });
  expect_refused("cuda::cast: to is in the memory of CUDA device 0, must be in pinned memory of",
                 [&] {
                   cuda::cast(from, {to, to, parity.data(), true}, stream);
                 });
  expect_refused("cuda::cast: from has 9 elements of float32 in its second array, must have 8 of",
                 [&] {
                   cuda::cast({from, longer, parity.data(), false}, to, stream);
                 });
  TensorView between = half;
  between.data = reinterpret_cast<std::byte*>(out.data()) + 1;
  expect_refused("cuda::cast: to's address modulo 2 is 1, must be 0",
                 [&] { cuda::cast(from, between, stream); });
  expect_refused("cuda::cast: from is float16 and to is float16, must be float32 on one side",
                 [&] { cuda::cast(half, half, stream); });
}

}  // namespace
}  // namespace gradwire::testing
