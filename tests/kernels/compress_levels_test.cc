// ternary, natural and qsgd: their bytes, literally, and the inputs that broke other implementations.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/compress_bytes.h"
#include "tests/support/close.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

int codec_of(const std::string& spec) {
  return std::to_integer<int>(encode(spec, {1.0f})[6]);
}

// Values that are levels themselves are drawn without chance.
TEST(WireFormat, LevelsAreScalesThenIntegers) {
  EXPECT_EQ(body_of(encode("qsgd:5", {-3, 4})), (Bytes{0, 0, 0x80, 0x3F, 0x4D}));  // norm 5
  EXPECT_EQ(body_of(encode("qsgd:100", {60, -80})), (Bytes{0, 0, 0x80, 0x3F, 60, 256 - 80}));
  EXPECT_EQ(body_of(encode("qsgd:1", {0, -2})), (Bytes{0, 0, 0, 0x40, 0x0C}));
  EXPECT_EQ(codec_of("qsgd:1"), 6);
  EXPECT_EQ(codec_of("qsgd:2"), 4);
  EXPECT_EQ(codec_of("qsgd:7"), 4);
  EXPECT_EQ(codec_of("qsgd:8"), 3);
}

TEST(WireFormat, PowersOfTwoAreScalesThenBytes) {
  EXPECT_EQ(body_of(encode("natural,block=8", {2, -1, 0.5f, 0, 2, 2, 2, 2, 0x1p-126f})),
            (Bytes{0, 0, 0, 0x40, 0, 0, 0x80, 0, 0x7E, 0xFD, 0x7C, 0, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E}));
  EXPECT_EQ(codec_of("natural"), 10);
  EXPECT_EQ(encode("natural", std::vector<float>(kChunk + 1, 1.0f)).size(), 32u + 64 + 4096 + 4 + 1);
}

TEST(Ternary, IsTwoBitsThatAlwaysRoundByChance) {
  const std::vector<float> x = heavy_tailed(kChunk + 77, 1);
  EXPECT_EQ(body_of(encode("ternary", x)), body_of(encode("2bit,stochastic,noef", x)));
}

TEST(Natural, SendsPowersOfTwoAroundEachElement) {
  for (const auto& x : {normal(9001, 1), heavy_tailed(9001, 2), layered(9001, 3)}) {
    for (const cpu::Isa path : isa_paths()) {
      const cpu::IsaLimit limit(path);
      const std::vector<float> decoded = round_trip("natural", x);
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] == 0) {
          ASSERT_EQ(decoded[i], 0.0f);
          continue;
        }
        int exponent;
        std::frexp(x[i], &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
        const double below = std::ldexp(std::copysign(1.0, x[i]), exponent - 1);
        ASSERT_TRUE(decoded[i] == below || decoded[i] == 2 * below) << x[i] << " " << decoded[i];
      }
    }
  }
}

TEST(Natural, ReachesFarBelowTheLargestAndUpToTheLargestFloat) {
  const std::vector<float> x = {0x1p100f, 0x1p-24f, -0x1p-25f, 0x1p-27f};
  const std::vector<float> decoded = round_trip("natural", x);
  EXPECT_EQ(std::vector<float>(decoded.begin(), decoded.begin() + 3),
            std::vector<float>(x.begin(), x.begin() + 3));
  EXPECT_TRUE(decoded[3] == 0.0f || decoded[3] == 0x1p-25f) << decoded[3];
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(round_trip("natural", {largest, -largest, 4}),
            (std::vector<float>{0x1p127f, -0x1p127f, 4}));
  EXPECT_EQ(round_trip("natural", {0x1p-127f, 0x1p-149f}), (std::vector<float>{0, 0}));
}

TEST(Levels, ScaleByTheNormOfTheBlock) {
  for (const size_t block : {8, 64, 256, 1024}) {
    for (const auto& x : {normal(5001, 4), heavy_tailed(5001, 5), normal(5001, 6, 1e-30f)}) {
      for (const cpu::Isa path : isa_paths()) {
        const cpu::IsaLimit limit(path);
        const auto payload = encode(concat("qsgd:7,block=", block), x);
        size_t at = sizeof(PayloadHeader);
        for (size_t begin = 0; begin < x.size(); begin += block) {
          if (begin == kChunk) {
            at += kChunk / 2;  // codes of the first chunk
          }
          const size_t end = std::min({begin + block, x.size(), (begin / kChunk + 1) * kChunk});
          double squares = 0;
          for (size_t i = begin; i < end; ++i) {
            squares += double{x[i]} * x[i];
          }
          float scale;
          std::memcpy(&scale, payload.data() + at, sizeof scale);
          ASSERT_NEAR(scale * 7 / std::sqrt(squares), 1.0, 1e-6) << begin << " of " << block;
          at += sizeof scale;
        }
      }
    }
  }
}

TEST(Levels, OfTheLargestFloatsAreFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const size_t numel : {1, 300, 4096}) {
    for (const char* options : {"", ",block=8", ",block=4096"}) {
      const std::vector<float> decoded =
          round_trip(concat("qsgd:3", options), std::vector<float>(numel, -largest));
      for (const float x : decoded) {  // the norm is no float: the largest float takes its place
        ASSERT_NEAR(x / largest, -1.0f, 1e-6f);
      }
    }
  }
}

// Where a peer divides by the norm of the block.
TEST(Levels, ABlockOfZerosDecodesToZeros) {
  for (const char* spec : {"qsgd:1", "qsgd:7", "qsgd:127", "ternary", "natural"}) {
    for (const cpu::Isa path : isa_paths()) {
      const cpu::IsaLimit limit(path);
      std::vector<float> x = normal(3 * 256 + 9, 8);
      std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
      std::fill(x.begin() + 768, x.end(), -0.0f);
      const std::vector<float> decoded = round_trip(spec, x);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(std::isfinite(decoded[i])) << spec << " " << i;
        ASSERT_TRUE(x[i] != 0 || decoded[i] == 0) << spec << " " << i;
      }
      EXPECT_TRUE(all_equal(round_trip(spec, std::vector<float>(300)), std::vector<float>(300)));
    }
  }
}

// Peers decoded signs to the wrong elements, and sent a byte for each.
TEST(Signs, OfFourElementsTakeFourBits) {
  const std::vector<float> x = {-1, 2, 3, -4};
  EXPECT_EQ(round_trip("1bit", x), (std::vector<float>{-2.5f, 2.5f, 2.5f, -2.5f}));
  EXPECT_EQ(encode("1bit", x).size(), 32u + 4 + 1);
  EXPECT_EQ(encode("1bit", std::vector<float>(1 << 20, 1.0f)).size(),
            32u + (1 << 20) / 256 * 4 + (1 << 20) / 8);
}

}  // namespace
}  // namespace gradwire::testing
