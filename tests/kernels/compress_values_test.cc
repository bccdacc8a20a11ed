// What compressors choose and how far decoded values are off, against naive references; and the
// inputs that break compressors.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/compress_cases.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 77;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<float> round_trip(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kSeed});
  OwnedTensor g = tensor_of(values, DType::kFloat32);
  return rig.decompress({rig.compress(g, {}, {})}).floats();
}

std::vector<float> naive_top_k(const std::vector<float>& x, double density) {
  const auto k = static_cast<size_t>(std::ceil(density * static_cast<double>(x.size())));
  std::vector<float> kept(x.size());
  for (const size_t i : reference::top_k(x, k)) {
    kept[i] = x[i];
  }
  return kept;
}

TEST(ChunkTopK, AMergeKeepsTheSameOfEveryChunk) {
  const size_t numel = 3 * kChunk + 500;
  Rig rig("chunktopk:41/4096", {.numel = numel});
  std::vector<std::vector<std::byte>> payloads;
  std::vector<float> sum(numel);
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<float> x = normal(numel, seed);
    std::fill(x.begin() + kChunk, x.begin() + 2 * kChunk, 0.0f);
    OwnedTensor g = tensor_of(x, DType::kFloat32);
    payloads.push_back(rig.compress(g, {}, {}));
    const std::vector<float> decoded = rig.decompress({payloads.back()}).floats();
    for (size_t i = 0; i < numel; ++i) {
      sum[i] += decoded[i];
    }
  }
  const auto merged = rig.merge(payloads, {0, numel}, 1.0f, {});
  const std::vector<float> mean = rig.decompress({merged}).floats();
  for (size_t begin = 0; begin < numel; begin += kChunk) {
    const size_t len = std::min(kChunk, numel - begin);
    const std::vector<float> chunk(sum.begin() + static_cast<ptrdiff_t>(begin),
                                   sum.begin() + static_cast<ptrdiff_t>(begin + len));
    std::vector<float> expected(len);
    for (const size_t i : reference::top_k(chunk, len == kChunk ? 41 : 6)) {  // 5.005 of 500
      expected[i] = chunk[i];
    }
    EXPECT_TRUE(all_equal(expected, std::span(mean).subspan(begin, len))) << begin;
  }
}

TEST(TopK, KeepsWhatASortKeeps) {
  for (const double density : {0.001, 0.01, 0.1, 0.5, 1.0}) {
    for (const size_t numel : {1, 255, 4097, 50000, 300001}) {
      const std::string spec = concat("topk:", density);
      SCOPED_TRACE(concat(spec, " of ", numel));
      for (const auto& x :
           {normal(numel, kSeed), heavy_tailed(numel, kSeed), layered(numel, kSeed)}) {
        EXPECT_TRUE(all_equal(round_trip(spec, x), naive_top_k(x, density)));
      }
    }
  }
}

TEST(TopK, ASampleThatMisleadsChangesNothing) {
  // Most elements of a sample line are large only where the stride cannot see them.
  std::vector<float> x = normal(400000, kSeed, 1e-3f);
  for (size_t i = 0; i < x.size() / 50; ++i) {
    x[i] *= 1e6f;  // all large ones at the start: the sample's tail is one stretch
  }
  for (size_t i = 0; i < 17; ++i) {
    x[399000 + i] = 0.0f;
  }
  EXPECT_TRUE(all_equal(round_trip("topk:1%", x), naive_top_k(x, 0.01)));
  EXPECT_TRUE(all_equal(round_trip("topk:10%", x), naive_top_k(x, 0.1)));
}

TEST(TopK, TiesGoToTheSmallerIndex) {
  for (const size_t numel : {100, 5000, 100000}) {
    SCOPED_TRACE(numel);
    std::vector<float> x(numel, -2.5f);
    for (size_t i = 0; i < numel; i += 3) {
      x[i] = 2.5f;
    }
    EXPECT_TRUE(all_equal(round_trip("topk:10%", x), naive_top_k(x, 0.1)));
    x[numel - 1] = 3.0f;
    EXPECT_TRUE(all_equal(round_trip("topk:10%", x), naive_top_k(x, 0.1)));
  }
}

TEST(TopK, SendsNoZeros) {
  std::vector<float> x(100000);
  for (const size_t i : {5, 4096, 99999}) {
    x[i] = 1e-42f;  // subnormal, but not zero
  }
  x[7] = -0.0f;
  Rig rig("topk:1%", {.numel = x.size()});
  OwnedTensor g = tensor_of(x, DType::kFloat32);
  const auto payload = rig.compress(g, {}, {});
  EXPECT_EQ(payload.size(), 32u + 52u /* 25 counts and padding */ + 8u /* 3 * 2, padded */ + 12u);
  EXPECT_TRUE(all_equal(rig.decompress({payload}).floats(), x));
}

TEST(TopK, LargeGroupsDecodeAsSmallOnesDo) {
  const size_t numel = (size_t{1} << 20) + 4097;  // written past the caches, in lines and a rest
  for (const std::string spec : {"topk:1%", "topk:1%,int4", "topk:30%"}) {
    SCOPED_TRACE(spec);
    Rig rig(spec, {.numel = numel}, 2);
    OwnedTensor a = tensor_of(normal(numel, kSeed), DType::kFloat32);
    OwnedTensor b = tensor_of(heavy_tailed(numel, kSeed), DType::kFloat32);
    const auto first = rig.compress(a, {}, {});
    const auto second = rig.compress(b, {}, {});
    std::vector<float> expected(numel);
    for (const auto& payload : {first, second, first}) {
      std::vector<std::vector<std::byte>> slices;
      for (const Region region : tiles(numel, 100)) {
        slices.push_back(rig.slice(payload, region));
      }
      const std::vector<float> decoded = rig.decompress(slices).floats();
      for (size_t i = 0; i < numel; ++i) {
        expected[i] += decoded[i];
      }
    }
    for (float& x : expected) {
      x *= 1.0f / 3;
    }
    EXPECT_TRUE(all_equal(rig.decompress({first, second, first}, 1.0f / 3).floats(), expected));
  }
}

TEST(TopK, AnEntryTakesFewBits) {
  const size_t numel = 1'000'000;
  OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
  for (const auto& [spec, bits] : {std::pair{"topk:1%,int4", 17.0}, {"topk:1%", 45.0}, {"topk:1%,2bit", 15.1}, {"topk:1%,1bit", 14.2}}) {
    Rig rig(spec, {.numel = numel});
    const size_t bytes = rig.compress(g, {}, {}).size() - sizeof(PayloadHeader);
    EXPECT_LE(static_cast<double>(bytes) * 8 / 10000, bits) << spec;
    EXPECT_LE(static_cast<double>(rig.compressor().capacity_bytes() - 32) * 8 / 10000, bits);
  }
}

TEST(TopK, Contracts) {
  // Stich et al.: |x - C(x)|^2 <= (1 - k / n) |x|^2.
  for (const auto& x : {normal(20000, kSeed), heavy_tailed(20000, kSeed)}) {
    const std::vector<float> kept = round_trip("topk:1%", x);
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(x[i]) - kept[i], 2);
      norm += std::pow(static_cast<double>(x[i]), 2);
    }
    EXPECT_LE(error, 0.99 * norm);
  }
}

std::string quantizer(int bits) { return bits == 2 ? "2bit" : concat("int", bits); }

TEST(Quantizers, NearestIsOffByAtMostHalfAStep) {
  for (const int bits : {8, 4, 2}) {
    for (const size_t block : {8, 256, 4096}) {
      const std::string spec = concat(quantizer(bits), ",block=", block);
      SCOPED_TRACE(spec);
      for (const auto& x : {normal(9001, kSeed), heavy_tailed(9001, kSeed), layered(9001, kSeed)}) {
        const std::vector<float> decoded = round_trip(spec, x);
        const std::vector<double> bound = reference::nearest_error_bound(x, bits, block);
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(std::abs(static_cast<double>(decoded[i]) - x[i]), bound[i] * (1 + 1e-4)) << i;
        }
      }
    }
  }
}

// Around 127 / FLT_MAX the reciprocal of the scale leaves the floats.
TEST(Quantizers, NothingIsLostNearTheSmallestMaximum) {
  for (const std::string spec : {"int8", "int8,stochastic", "int4", "2bit", "topk:1,int8", "topk:1,int4"}) {
    SCOPED_TRACE(spec);
    for (float x = 3.6e-37f; x < 3.8e-37f; x *= 1.0005f) {
      const float decoded = round_trip(spec, {x, -x / 3})[0];
      ASSERT_LE(std::abs(static_cast<double>(decoded) - x), x) << x;
      ASSERT_GE(decoded, 0.0f) << x;
    }
  }
}

TEST(Quantizers, StochasticRoundingIsUnbiased) {
  // 102,400 draws of each value; a mean further off than 5 standard deviations has a chance below
  // 1 in a million, and the seed is fixed.
  constexpr size_t kBlock = 256;
  constexpr size_t kBlocks = 400;
  for (const int bits : {8, 4, 2}) {
    const double scale = 1.0 / (bits == 8 ? 127 : bits == 4 ? 7 : 1);
    for (const float value : {0.3f, -0.3f, 0.001f, 0.77f, -0.999f}) {
      SCOPED_TRACE(concat("int", bits, " ", value));
      std::vector<float> x(kBlock * kBlocks, value);
      for (size_t i = 0; i < x.size(); i += kBlock) {
        x[i] = 1.0f;
      }
      const std::vector<float> decoded = round_trip(quantizer(bits) + ",stochastic", x);
      double mean = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        mean += i % kBlock == 0 ? 0.0 : decoded[i];
        ASSERT_LE(std::abs(decoded[i] - x[i]), scale * 1.0001);
      }
      const double draws = (kBlock - 1) * kBlocks;
      const double fraction = std::abs(value) / scale - std::floor(std::abs(value) / scale);
      const double deviation = scale * std::sqrt(fraction * (1 - fraction) / draws);
      EXPECT_NEAR(mean / draws, value, 5 * deviation + scale * 0x1p-17);
    }
  }
}

TEST(Signs, DecodeToTheMeanMagnitudeOfTheBlock) {
  for (const size_t block : {8, 256, 4096}) {
    for (const auto& x : {normal(9001, kSeed), heavy_tailed(9001, kSeed), layered(9001, kSeed)}) {
      const std::vector<float> decoded = round_trip(concat("1bit,block=", block), x);
      for (size_t begin = 0; begin < x.size(); begin += block) {
        const size_t end = std::min({begin + block, x.size(), (begin / kChunk + 1) * kChunk});
        double sum = 0;
        for (size_t i = begin; i < end; ++i) {
          sum += std::abs(static_cast<double>(x[i]));
        }
        const double mean = sum / static_cast<double>(end - begin);
        for (size_t i = begin; i < end; ++i) {
          ASSERT_NEAR(decoded[i], x[i] < 0 ? -mean : mean, 1e-5 * mean) << i << " by " << block;
        }
      }
    }
  }
}

TEST(Signs, OfChosenElementsDecodeToTheirMeanMagnitude) {
  for (const auto& x : {normal(9001, kSeed), heavy_tailed(9001, kSeed), layered(9001, kSeed)}) {
    for (const size_t k : {size_t{41}, size_t{400}}) {
      const std::vector<float> decoded = round_trip(concat("chunktopk:", k, "/4096,1bit"), x);
      for (size_t begin = 0; begin < x.size(); begin += kChunk) {
        const auto first = x.begin() + static_cast<ptrdiff_t>(begin);
        const size_t len = std::min(kChunk, x.size() - begin);
        const std::vector<float> chunk(first, first + static_cast<ptrdiff_t>(len));
        const std::vector<size_t> chosen = reference::top_k(chunk, (k * len + kChunk - 1) / kChunk);
        double mean = 0;
        for (const size_t i : chosen) {
          mean += std::abs(static_cast<double>(chunk[i])) / static_cast<double>(chosen.size());
        }
        std::vector<bool> sent(len);
        for (const size_t i : chosen) {
          sent[i] = true;
          // bf16 has eight bits.
          ASSERT_NEAR(decoded[begin + i], chunk[i] < 0 ? -mean : mean, mean * 0x1.02p-8) << i;
        }
        for (size_t i = 0; i < len; ++i) {
          ASSERT_TRUE(sent[i] || decoded[begin + i] == 0) << i;
        }
      }
    }
  }
}

TEST(Signs, Contract) {
  // Karimireddy et al., lemma 8: |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|_2^2)) |x|^2 within a block.
  for (const auto& x : {normal(4096, kSeed), heavy_tailed(4096, kSeed)}) {
    const std::vector<float> sent = round_trip("1bit,block=4096", x);
    double error = 0;
    double norm = 0;
    double magnitudes = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(x[i]) - sent[i], 2);
      norm += std::pow(static_cast<double>(x[i]), 2);
      magnitudes += std::abs(static_cast<double>(x[i]));
    }
    EXPECT_NEAR(error, norm - magnitudes * magnitudes / 4096, 1e-5 * norm);
  }
}

TEST(AllCompressors, ZerosDecodeToZeros) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const std::vector<float> zero(5000);
    EXPECT_TRUE(all_equal(round_trip(spec, zero), zero));
    const std::vector<float> tiny(5000, 1e-40f);
    for (const float x : round_trip(spec, tiny)) {
      ASSERT_LE(std::abs(x), 1e-7f);
    }
  }
}

TEST(AllCompressors, LargestFloatsStayFinite) {
  for (const std::string& spec : all_specs()) {
    for (const float large : {kLargest, 3.3e38f, 3.4e38f, 2.9999e38f}) {
      SCOPED_TRACE(concat(spec, " ", large));
      std::vector<float> x = normal(5000, kSeed);
      x[11] = large;
      x[4097] = -large;
      Rig rig(spec, {.numel = x.size(), .seed = kSeed});
      OwnedTensor g = tensor_of(x, DType::kFloat32);
      const auto payload = rig.compress(g, {}, {});
      EXPECT_EQ(flags_of(payload), 0);
      for (const float value : rig.decompress({payload}).floats()) {
        ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(AllCompressors, NonFiniteValuesAreFlaggedAndHarmless) {
  for (const std::string& spec : all_specs()) {
    for (const DType dtype : kDTypes) {
      for (const float bad : {kNaN, kInfinity, -kInfinity}) {
        SCOPED_TRACE(concat(spec, " ", to_string(dtype), " ", bad));
        std::vector<float> x = normal(2 * kChunk + 3, kSeed);
        x[kChunk + 1] = bad;
        Rig rig(spec, {.numel = x.size(), .dtype = dtype, .seed = kSeed});
        OwnedTensor g = tensor_of(x, dtype);
        const std::vector<float> e(x.size());
        std::vector<float> e_next(x.size());
        const auto payload = rig.compress(g, e, e_next);
        EXPECT_EQ(flags_of(payload), kFlagNonFinite);
        EXPECT_EQ(rig.decompress({payload}).numel(), x.size());
        const auto slice = rig.slice(payload, {0, kChunk});
        EXPECT_EQ(flags_of(slice), kFlagNonFinite) << "a slice carries the flag";
        EXPECT_EQ(flags_of(rig.merge({slice, slice}, {0, kChunk}, 0.5f, {})), kFlagNonFinite);
      }
    }
  }
}

TEST(AllCompressors, ResidualThatIsNotFiniteIsFlaggedToo) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    OwnedTensor g = tensor_of(normal(300, kSeed), DType::kFloat32);
    std::vector<float> e(300);
    e[299] = kInfinity;
    std::vector<float> e_next(300);
    Rig rig(spec, {.numel = 300});
    EXPECT_EQ(flags_of(rig.compress(g, e, e_next)), kFlagNonFinite);
  }
}

TEST(AllCompressors, ElementsNoPartCoversBecomeZero) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = 2 * kChunk + 10;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
    const auto payload = rig.compress(g, {}, {});
    std::vector<float> expected = rig.decompress({payload}).floats();
    const auto middle = rig.slice(payload, {kChunk, 2 * kChunk});
    std::fill(expected.begin(), expected.begin() + kChunk, 0.0f);
    std::fill(expected.begin() + 2 * kChunk, expected.end(), 0.0f);
    EXPECT_TRUE(all_equal(rig.decompress({middle}).floats(), expected));
    EXPECT_TRUE(all_equal(rig.decompress({}).floats(), std::vector<float>(numel)));
  }
}

}  // namespace
}  // namespace gradwire::testing
