// Conversions between float and the 16-bit types, against tables of every representable value built
// in double precision: nothing here calls the code under test to know what to expect.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {
namespace {

// A format of 16 bits: sign, exponent with the given bias, mantissa. The value by definition.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  double magnitude(uint32_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(bits >> mantissa_bits);
    const double mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
    const double unit = std::ldexp(1.0, -mantissa_bits);
    return exponent == 0 ? std::ldexp(mantissa * unit, 1 - bias)
                         : std::ldexp(1.0 + mantissa * unit, exponent - bias);
  }
  uint32_t infinity_bits() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};

constexpr Format kHalf{5, 10};
constexpr Format kBrain{8, 7};

// Nearest value of the format to |x|, ties to the even bit pattern, by search among all values.
class NearestEven {
 public:
  explicit NearestEven(Format format) {
    for (uint32_t bits = 0; bits < format.infinity_bits(); ++bits) {
      values_.push_back(format.magnitude(bits));
    }
  }
  uint32_t operator()(double magnitude) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) {
      return static_cast<uint32_t>(values_.size() - 1);  // finite stays finite
    }
    const auto high = static_cast<uint32_t>(above - values_.begin());
    if (high == 0 || *above == magnitude) {
      return high;
    }
    const double up = *above - magnitude, down = magnitude - values_[high - 1];
    if (up == down) {
      return high % 2 == 0 ? high : high - 1;
    }
    return up < down ? high : high - 1;
  }

 private:
  std::vector<double> values_;
};

// Floats worth trying: around every value of the format and every midpoint, and random bits.
std::vector<float> interesting_floats(Format format) {
  std::vector<float> floats;
  const auto add_around = [&](double value) {
    const auto x = static_cast<float>(value);
    for (const float y : {x, std::nextafter(x, -1.0f), std::nextafter(x, 3.4e38f)}) {
      floats.push_back(y);
      floats.push_back(-y);
    }
  };
  for (uint32_t bits = 0; bits + 1 < format.infinity_bits(); ++bits) {
    add_around(format.magnitude(bits));
    add_around(0.5 * (format.magnitude(bits) + format.magnitude(bits + 1)));
  }
  add_around(std::numeric_limits<float>::max());
  std::mt19937 random(20240607);
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) {
      floats.push_back(x);
    }
  }
  return floats;
}

template <class T>
void expect_every_bit_pattern_round_trips(Format format) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(T{static_cast<uint16_t>(bits)});
    const uint32_t magnitude = bits & 0x7FFFu;
    if (magnitude > format.infinity_bits()) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<T>(x)))) << bits;
      continue;
    }
    const double expected = magnitude == format.infinity_bits()
                                ? std::numeric_limits<double>::infinity()
                                : format.magnitude(magnitude);
    ASSERT_EQ(std::fabs(static_cast<double>(x)), expected) << bits;
    ASSERT_EQ(std::signbit(x), bits >= 0x8000u) << bits;
    ASSERT_EQ(from_float<T>(x).bits, bits);
  }
}

template <class T>
void expect_nearest_even(Format format) {
  const NearestEven nearest(format);
  for (const float x : interesting_floats(format)) {
    const uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
    ASSERT_EQ(from_float<T>(x).bits, sign | nearest(std::fabs(static_cast<double>(x))))
        << "x = " << x;
  }
}

TEST(DTypeConversions, EveryFloat16RoundTrips) {
  expect_every_bit_pattern_round_trips<float16>(kHalf);
}

TEST(DTypeConversions, EveryBFloat16RoundTrips) {
  expect_every_bit_pattern_round_trips<bfloat16>(kBrain);
}

TEST(DTypeConversions, Float16IsTheNearestEvenValue) { expect_nearest_even<float16>(kHalf); }

TEST(DTypeConversions, BFloat16IsTheNearestEvenValue) { expect_nearest_even<bfloat16>(kBrain); }

TEST(DTypeConversions, FiniteValuesSaturateAndInfinitiesStay) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7BFF);  // IEEE would round this one to infinity
  EXPECT_EQ(to_float16(-1e30f).bits, 0xFBFF);
  EXPECT_EQ(to_float16(infinity).bits, 0x7C00);
  EXPECT_EQ(to_float16(-infinity).bits, 0xFC00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F7F);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::max()).bits, 0xFF7F);
  EXPECT_EQ(to_bfloat16(infinity).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-infinity).bits, 0xFF80);
}

TEST(DTypeConversions, EveryKindOfNaNStaysNaN) {
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_float16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(nan)))) << bits;
  }
}

TEST(DType, DispatchPicksTheTypeAndRefusesUnknownCodes) {
  const auto bytes = []<class T>() { return sizeof(T) + (kDTypeOf<T> == DType::kBFloat16); };
  EXPECT_EQ(dispatch(DType::kFloat32, bytes), 4u);
  EXPECT_EQ(dispatch(DType::kFloat16, bytes), 2u);
  EXPECT_EQ(dispatch(DType::kBFloat16, bytes), 3u);
  try {
    dispatch(static_cast<DType>(9), bytes);
    FAIL() << "code 9 was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "dtype: code is 9, must be 0, 1 or 2");
  }
}

}  // namespace
}  // namespace gradwire
