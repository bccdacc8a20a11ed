// Gradients handed over between memories, against loops over elements; and means after a fault.

#include "gradwire/kernels/ops/elementwise_cuda.h"

#include <bit>
#include <cmath>

#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class ElementwiseKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, ElementwiseKernels, kOrders);

template <class T>
std::vector<T> as(const std::vector<float>& x) {
  std::vector<T> elements;
  for (const float each : x) {
    elements.push_back(from_float<T>(each));
  }
  return elements;
}

template <class T>
TensorView view(Guarded<T>& memory, Device device = kEmulated) {
  return {memory.bytes(), memory.span().size(), kDTypeOf<T>, device};
}

// NaN for NaN: which of them is nobody's to say.
template <class T>
void expect_same(const std::vector<T>& has, const std::vector<T>& should) {
  ASSERT_EQ(has.size(), should.size());
  for (size_t i = 0; i < has.size(); ++i) {
    const float a = to_float(has[i]), b = to_float(should[i]);
    ASSERT_TRUE(std::memcmp(&has[i], &should[i], sizeof(T)) == 0 ||
                (std::isnan(a) && std::isnan(b)))
        << "element " << i << " is " << a << ", expected " << b;
  }
}

template <class From, class To>
void expect_products(const std::vector<float>& x, const cuda::Factor& factor, float by,
                     Stream& stream) {
  SCOPED_TRACE(concat(to_string(kDTypeOf<From>), " to ", to_string(kDTypeOf<To>), ", ", x.size(),
                      " elements"));
  const std::vector<From> given = as<From>(x);
  Guarded<From> from(given);
  Guarded<To> to(x.size());
  cuda::multiply(view(from), factor, view(to), stream);
  stream.wait();
  std::vector<To> expected;
  for (const From& each : given) {
    const float wide = to_float(each);
    const float product = by * wide;
    expected.push_back(from_float<To>(product));
  }
  expect_same(to.values(), expected);
  EXPECT_TRUE(to.guards_hold());
}

TEST_P(ElementwiseKernels, MultiplyByWhatTheHostAndTheDeviceKnow) {
  DeviceValue<float> scale(3.0f);
  using With = cuda::Factor::With;
  const std::pair<cuda::Factor, float> factors[] = {
      {{}, 1.0f},
      {{.value = 0.1f}, 0.1f},
      {{.value = 0.5f, .on_device = scale.data()}, 1.5f},
      {{.value = 1.0f, .on_device = scale.data(), .with = With::kQuotient},
       static_cast<float>(1.0 / 3.0)}};
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 3)) {
      for (const auto& [factor, by] : factors) {
        expect_products<float, float>(pattern.values, factor, by, stream_);
        expect_products<float, bfloat16>(pattern.values, factor, by, stream_);
        expect_products<float16, float>(pattern.values, factor, by, stream_);
        expect_products<float16, float16>(pattern.values, factor, by, stream_);
        expect_products<bfloat16, bfloat16>(pattern.values, factor, by, stream_);
        expect_products<bfloat16, float16>(pattern.values, factor, by, stream_);
      }
    }
  }
}

TEST_P(ElementwiseKernels, MultiplyEveryTypeInPlace) {
  const std::vector<float> x = normal(4099, 5);
  const auto expect = [&]<class T>(T) {
    Guarded<T> memory(as<T>(x));
    cuda::multiply(view(memory), {.value = 4.0f}, view(memory), stream_);
    stream_.wait();
    std::vector<float> four_times;
    for (const T& each : as<T>(x)) {
      four_times.push_back(4.0f * to_float(each));
    }
    expect_same(memory.values(), as<T>(four_times));
  };
  expect(float{});
  expect(float16{});
  expect(bfloat16{});
}

TEST_P(ElementwiseKernels, FillAMeanAfterAnyFault) {
  for (const float value : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
    for (const uint32_t status : {0u, cuda::kStatusNonFinite, cuda::kStatusMalformed,
                                  cuda::kStatusNonFinite | cuda::kStatusMalformed}) {
      for (const size_t numel : {size_t{0}, size_t{1}, size_t{257}, size_t{2500000}}) {
        SCOPED_TRACE(concat("status ", status, ", ", numel, " elements"));
        DeviceValue<cuda::StepWords> words(cuda::StepWords{.status = status});
        const auto expect = [&]<class T>(T half) {
          Guarded<T> mean(std::vector<T>(numel, half));
          cuda::fill_after_fault(words.data(), view(mean), value, stream_);
          stream_.wait();
          EXPECT_TRUE(mean.guards_hold());
          expect_same(mean.values(),
                      std::vector<T>(numel, status == 0 ? half : from_float<T>(value)));
        };
        expect(0.5f);
        if (numel < 1000) {
          expect(from_float<float16>(0.5f));
          expect(from_float<bfloat16>(0.5f));
        }
      }
    }
  }
}

TEST_P(ElementwiseKernels, AddUntilAStepIsCommitted) {
  for (const size_t numel : kSizes) {
    const std::vector<float> x = normal(numel, 7), more = normal(numel, 8);
    for (const uint32_t committed : {4u, 5u, 6u}) {
      SCOPED_TRACE(concat(numel, " elements, ", committed, " steps"));
      DeviceValue<cuda::StepWords> words(cuda::StepWords{.step = 5});
      const auto expect = [&]<class T>(T) {
        const std::vector<T> given = as<T>(x);
        Guarded<T> gradient(given);
        Guarded<float> values(more);
        cuda::add_until_committed(words.data(), committed, values.span(), view(gradient), stream_);
        stream_.wait();
        std::vector<T> expected = given;
        for (size_t i = 0; committed == 5 && i < numel; ++i) {
          expected[i] = from_float<T>(to_float(given[i]) + more[i]);
        }
        expect_same(gradient.values(), expected);
        EXPECT_TRUE(gradient.guards_hold() && values.guards_hold());
      };
      expect(float{});
      expect(float16{});
      expect(bfloat16{});
    }
  }
}

TEST(ElementwiseLaunchers, RefuseWhatTheyCannotDo) {
  TestStream stream;
  DeviceArray<float> x(10), longer(11);
  DeviceValue<cuda::StepWords> words;
  const TensorView on_gpu{x.data(), x.size(), DType::kFloat32, kEmulated};
  const TensorView on_cpu{x.data(), x.size(), DType::kFloat32, {}};
  expect_refused("from has 10 elements, must have to's 11", [&] {
    cuda::multiply(on_gpu, {}, {longer.data(), 11, DType::kFloat32, kEmulated}, stream);
  });
  expect_refused("from is in the memory of the CPU",
                 [&] { cuda::multiply(on_cpu, {}, on_gpu, stream); });
  expect_refused("to is in the memory of the CPU",
                 [&] { cuda::multiply(on_gpu, {}, on_cpu, stream); });
  expect_refused("x is in the memory of the CPU",
                 [&] { cuda::fill_after_fault(words.data(), on_cpu, 0.0f, stream); });
  expect_refused("step is null", [&] { cuda::fill_after_fault(nullptr, on_gpu, 0.0f, stream); });
  expect_refused("step is null",
                 [&] { cuda::add_until_committed(nullptr, 0, x, on_gpu, stream); });
  expect_refused("values has 11 elements, must have x's 10", [&] {
    cuda::add_until_committed(words.data(), 0, longer, on_gpu, stream);
  });
  expect_refused("x is in the memory of the CPU",
                 [&] { cuda::add_until_committed(words.data(), 0, x, on_cpu, stream); });
}

// A GPU makes 0x7fffffff of any NaN, a CPU keeps most.
TEST(Bits, OfEveryNaNAreTheSame) {
  const std::vector<float> gpus{std::bit_cast<float>(0x7FFFFFFFu), -0.0f};
  const std::vector<float> cpus{std::bit_cast<float>(0xFFC00001u), -0.0f};
  EXPECT_EQ(bits_of(gpus), bits_of(cpus));
  EXPECT_NE(bits_of(cpus), bits_of(std::vector<float>{1.0f, -0.0f}));
  EXPECT_NE(bits_of(cpus), bits_of(std::vector<float>{cpus[0], 0.0f}));
}

}  // namespace
}  // namespace gradwire::testing
