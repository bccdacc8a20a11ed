// Codes that are floats of eight bits: their bytes, literally, and what they round to against the
// specification's table.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_bytes.h"
#include "tests/reference/small_float_reference.h"
#include "tests/support/close.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

struct Format {
  const char* spec;
  int exponent_bits;
  int mantissa_bits;
  int largest_code;
  float largest;
};
constexpr Format kFormats[] = {{"e4m3", 4, 3, 0x7E, 448.0f}, {"e5m2", 5, 2, 0x7B, 57344.0f}};

std::vector<double> values_of(const Format& f) {
  return reference::small_float_values(f.exponent_bits, f.mantissa_bits, f.largest_code);
}

TEST(SmallFloats, AreScalesThenBytes) {
  // A scale of 1. Ties go to the even code: 2^-10 to zero and 17 to 16, as 9 to 8 below.
  EXPECT_EQ(body_of(encode("e4m3,block=8", {448, -1, 0.3f, 0x1p-9f, 0x1p-10f, 17, -0.0f, -19})),
            (Bytes{0, 0, 0x80, 0x3F, 0x7E, 0xB8, 0x2A, 0x01, 0x00, 0x58, 0x80, 0xDA}));
  EXPECT_EQ(body_of(encode("e5m2,block=8", {57344, -1, 0.3f, 0x1p-16f, 0x1p-17f, 9, -3, 0})),
            (Bytes{0, 0, 0x80, 0x3F, 0x7B, 0xBC, 0x35, 0x01, 0x00, 0x48, 0xC2, 0x00}));
  EXPECT_EQ(encode("e4m3", {1.0f})[6], std::byte{8});
  EXPECT_EQ(encode("e5m2", {1.0f})[6], std::byte{9});
  EXPECT_EQ(encode("e4m3", std::vector<float>(kChunk + 1, 1.0f)).size(), 32u + 64 + 4096 + 4 + 1);
}

TEST(SmallFloats, OfASelectionHaveOneScalePerChunk) {
  std::vector<float> x(2 * kChunk);
  x[1] = 448.0f;
  x[2] = -3.0f;
  x[kChunk + 2] = 112.0f;
  EXPECT_EQ(body_of(encode("topk:0.0004,e4m3", x)),
            (Bytes{2, 0, 1, 0, 0x80, 0x3F, 0x80, 0x3E,  // counts, bf16 scales 1 and 0.25
                   0x01, 0x20, 0x00, 0x02, 0x00, 0, 0, 0,  // indices, padding
                   0x7E, 0xC4, 0x7E}));
}

/// What lies on, between and beside the values of a format, up to the largest.
std::vector<float> samples_of(const std::vector<double>& values) {
  std::vector<float> samples;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float y : {static_cast<float>(values[i]), middle, std::nextafter(middle, 0.0f),
                          std::nextafter(middle, 1e9f),
                          static_cast<float>(values[i] + 0.3 * (values[i + 1] - values[i]))}) {
      samples.insert(samples.end(), {y, -y});
    }
  }
  return samples;
}

TEST(SmallFloats, RoundAsTheSpecificationsTableSays) {
  for (const Format& f : kFormats) {
    const std::vector<double> values = values_of(f);
    ASSERT_EQ(values.back(), f.largest);
    for (const char* block : {",block=8", "", ",block=4096"}) {
      const std::vector<float> samples = samples_of(values);
      // The largest value in every block makes its scale 1.
      std::vector<float> x;
      for (const float y : samples) {
        x.insert(x.end(), {y, f.largest});
      }
      for (const cpu::Isa path : isa_paths()) {
        const cpu::IsaLimit limit(path);
        SCOPED_TRACE(concat(f.spec, block, " ", name_of(path)));
        const std::vector<float> decoded = round_trip(f.spec + std::string(block), x);
        for (size_t i = 0; i < x.size(); ++i) {
          const int code = reference::nearest_code(values, std::abs(double{x[i]}));
          ASSERT_EQ(std::abs(decoded[i]), values[static_cast<size_t>(code)]) << x[i];
          ASSERT_TRUE(decoded[i] == 0 || std::signbit(decoded[i]) == std::signbit(x[i])) << x[i];
        }
      }
    }
  }
}

TEST(SmallFloats, NearestIsOffByAtMostHalfAUnit) {
  for (const Format& f : kFormats) {
    const double relative = std::ldexp(1.0, -f.mantissa_bits - 1);
    for (const std::string& spec : {std::string(f.spec), std::string(f.spec) + ",block=8",
                                   std::string("topk:100%,") + f.spec}) {
      SCOPED_TRACE(spec);
      for (const auto& x : {normal(9001, 3), heavy_tailed(9001, 3), layered(9001, 3)}) {
        const size_t block = spec.starts_with("topk") ? kChunk : parse_spec(spec).codec.block;
        const std::vector<float> decoded = round_trip(spec, x);
        for (size_t begin = 0; begin < x.size(); begin += block) {
          const size_t end = std::min(begin + block, x.size());
          double largest = 0;
          for (size_t i = begin; i < end; ++i) {
            largest = std::max(largest, std::abs(double{x[i]}));
          }
          // Half a subnormal step, of a scale that bf16 may have rounded up.
          const double tiny = largest / f.largest * values_of(f)[1] / 2 * 1.01;
          for (size_t i = begin; i < end; ++i) {
            ASSERT_LE(std::abs(double{decoded[i]} - x[i]),
                      std::max(relative * std::abs(double{x[i]}), tiny) * (1 + 1e-5))
                << i;
          }
        }
      }
    }
  }
}

TEST(SmallFloats, NothingIsLostNearTheSmallestMaximum) {
  for (const auto& [spec, smallest] : {std::pair{"e4m3", 1.33e-36f}, {"e5m2", 1.7e-34f}}) {
    for (const char* options : {"", ",stochastic"}) {
      for (float x = 0.97f * smallest; x < 1.03f * smallest; x *= 1.0005f) {
        const std::string text = concat(spec, options);
        const Sample s = make_sample(text, DType::kFloat32, {x, -x / 3, x / 5000, -x / 60000});
        for (size_t i = 0; i < s.g.size(); ++i) {  // the residual is larger than x: D of g alone
          const float decoded = round_trip(text, s.g)[i];
          ASSERT_LE(std::abs(double{decoded} - s.g[i]), std::abs(s.g[i])) << text << " " << x;
          ASSERT_EQ(s.g[i] - decoded + decoded, s.g[i]) << text << " " << x;
        }
      }
      const float below = std::nextafter(smallest, 0.0f);
      EXPECT_EQ(round_trip(concat(spec, options), {below, -below})[0], 0.0f);
      EXPECT_NEAR(round_trip(concat(spec, options), {smallest})[0] / smallest, 1.0f, 1e-5f);
    }
  }
}

TEST(SmallFloats, CodesNoEncoderWritesDecodeToFiniteValues) {
  for (const auto& [spec, code, value] :
       {std::tuple{"e4m3", 0x7F, 480.0f}, {"e5m2", 0x7C, 65536.0f}, {"e5m2", 0x7F, 114688.0f}}) {
    const Format& f = kFormats[spec == std::string("e4m3") ? 0 : 1];
    for (const size_t numel : {1, 256}) {
      auto payload = encode(spec, std::vector<float>(numel, f.largest));
      payload.back() = static_cast<std::byte>(code);
      Rig rig(spec, {.numel = numel});
      EXPECT_EQ(rig.decompress({payload}).floats().back(), value) << spec;
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
