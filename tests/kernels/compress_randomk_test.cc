// randomk: which elements are drawn, against a draw written naively; that they are drawn evenly, by
// all ranks alike; and that bodies add up as values do.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "tests/kernels/compress_cases.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 90210;

std::vector<float> values_of(const std::vector<std::byte>& payload) {
  std::vector<float> values((payload.size() - sizeof(PayloadHeader)) / sizeof(float));
  std::memcpy(values.data(), payload.data() + sizeof(PayloadHeader), values.size() * sizeof(float));
  return values;
}

TEST(RandomK, SendsWhatANaiveDrawChooses) {
  struct Case {
    size_t numel;
    std::vector<Segment> segments;
    uint32_t parameter, offset_low, offset_high;
  };
  const Case cases[] = {{1, {}, 0, 0, 0},
                        {300, {}, 0, 0, 0},
                        {2 * kChunk + 77, {}, 0, 0, 0},
                        {kChunk + 10, {{7, 0x300000005, 100}, {8, 0, kChunk - 90}}, 7, 5, 3}};
  for (const Case& c : cases) {
    for (const size_t k : {1, 41, 2000, 4096}) {
      SCOPED_TRACE(concat(c.numel, " elements, ", k));
      Rig rig(concat("randomk:", k, "/4096"),
              {.numel = c.numel, .segments = c.segments, .seed = kSeed});
      std::vector<float> x(c.numel);
      std::iota(x.begin(), x.end(), 1.0f);
      OwnedTensor g = tensor_of(x, DType::kFloat32);
      for (uint32_t step = 0; step < 3; ++step) {
        const uint32_t draw = reference::philox_word(
            {c.offset_low, step, c.parameter, c.offset_high * 4 + 2}, kSeed, 0);
        std::vector<float> expected;
        for (size_t begin = 0; begin < c.numel; begin += kChunk) {
          const size_t len = std::min(kChunk, c.numel - begin);
          const auto kept = static_cast<size_t>(
              std::ceil(static_cast<double>(k) * static_cast<double>(len) / 4096));
          for (const size_t i : reference::drawn_elements(
                   draw, static_cast<uint32_t>(begin / kChunk), len, kept)) {
            expected.push_back(x[begin + i]);
          }
        }
        const auto payload = rig.compress(g, {}, {});
        EXPECT_EQ(read_header(payload).variant, draw);
        EXPECT_EQ(payload.size(), rig.compressor().capacity_bytes());
        EXPECT_TRUE(all_equal(values_of(payload), expected)) << "step " << step;
        rig.commit();
      }
    }
  }
}

TEST(RandomK, SendsTheSameElementsInEveryValueCodec) {
  struct Codec {
    const char* name;
    double of_value, of_largest;  // the most by which a value may be off
  };
  const Codec codecs[] = {{"fp16", 0x1p-11, 1e-7},  {"bf16", 0x1p-8, 0},
                          {"int8", 0, 0.51 / 127},  {"int4", 0, 0.51 / 7},
                          {"e4m3", 0x1p-4, 1e-5},   {"e5m2", 0x1p-3, 1e-6}};
  const size_t numel = 2 * kChunk + 77;
  const std::vector<float> x = normal(numel, kSeed);
  OwnedTensor g = tensor_of(x, DType::kFloat32);
  Rig exact("randomk:41/4096", {.numel = numel, .seed = kSeed});
  const std::vector<float> chosen = exact.decompress({exact.compress(g, {}, {})}).floats();
  for (const Codec& codec : codecs) {
    SCOPED_TRACE(codec.name);
    Rig rig(concat("randomk:41/4096,", codec.name), {.numel = numel, .seed = kSeed});
    std::vector<float> e(numel), e_next(numel);
    const std::vector<float> sent = rig.decompress({rig.compress(g, e, e_next)}).floats();
    size_t differ = 0;
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_NEAR(sent[i], chosen[i],
                  codec.of_value * std::abs(chosen[i]) +
                      (chosen[i] == 0 ? 0 : codec.of_largest * 5)) << i;
      ASSERT_EQ(e_next[i], x[i] - sent[i]) << i;
      differ += sent[i] != chosen[i] ? 1 : 0;
    }
    EXPECT_GT(differ, 20u) << "as many as lie between two codes";
  }
}

TEST(RandomK, WithoutFeedbackTheMeanOfManyChoicesIsTheGradient) {
  const size_t numel = kChunk + 90;  // the last 90 of them keep ceil(0.9 * 90 / 90) = 1 or 9
  for (const char* density : {"10%", "1%"}) {
    SCOPED_TRACE(density);
    Rig rig(concat("randomk:", density, ",noef"), {.numel = numel, .seed = kSeed});
    const std::vector<float> x = normal(numel, kSeed);
    OwnedTensor g = tensor_of(x, DType::kFloat32);
    std::vector<double> mean(numel);
    constexpr int kSteps = 4000;
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> sent = rig.decompress({rig.compress(g, {}, {})}).floats();
      for (size_t i = 0; i < numel; ++i) {
        mean[i] += static_cast<double>(sent[i]) / kSteps;
      }
      rig.commit();
    }
    const auto k =
        static_cast<double>(kept_elements(rig.compressor().spec().choice.density, kChunk));
    for (size_t i = 0; i < numel; ++i) {
      const double len = i < kChunk ? 4096.0 : 90.0;
      const double kept = std::ceil(k * len / 4096);
      // A sum of kSteps draws that are x len / kept with probability kept / len, else 0.
      const double deviation = std::abs(x[i]) * std::sqrt((len / kept - 1) / kSteps);
      ASSERT_NEAR(mean[i], x[i], 5 * deviation + 1e-6) << i;
    }
  }
}

TEST(RandomK, EveryElementIsDrawnEquallyOften) {
  // Chi-square over 64 runs of 64 elements; its expectation is about 63, 63 + 5 sqrt(126) = 119.
  constexpr size_t kBins = 64;
  Rig rig("randomk:41/4096", {.numel = kChunk, .seed = kSeed});
  std::vector<float> x(kChunk);
  std::iota(x.begin(), x.end(), 0.0f);
  OwnedTensor g = tensor_of(x, DType::kFloat32);
  std::vector<double> seen(kBins);
  constexpr int kSteps = 2000;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> drawn = values_of(rig.compress(g, {}, {}));
    EXPECT_EQ(std::set<float>(drawn.begin(), drawn.end()).size(), 41u) << "none twice";
    for (const float i : drawn) {
      seen[static_cast<size_t>(i) / (kChunk / kBins)] += 1;
    }
    rig.commit();
  }
  const double expected = 41.0 * kSteps / kBins;
  double chi_square = 0;
  for (const double count : seen) {
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 119);
  EXPECT_GT(chi_square, 20) << "too even to be random";
}

TEST(RandomK, BodiesOfRanksAddUp) {
  const size_t numel = 2 * kChunk + 500;
  std::vector<std::vector<std::byte>> payloads;
  for (const int rank : {0, 1, 2}) {
    Rig rig("randomk:1%", {.numel = numel, .seed = kSeed, .rank = rank});
    payloads.push_back(rig.compress(
        tensor_of(heavy_tailed(numel, static_cast<uint64_t>(rank)), DType::kFloat32), {}, {}));
  }
  std::vector<std::byte> sum = payloads[0];
  std::vector<float> values = values_of(sum);
  for (const size_t rank : {1, 2}) {
    const std::vector<float> more = values_of(payloads[rank]);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += more[i];
    }
  }
  std::memcpy(sum.data() + sizeof(PayloadHeader), values.data(), values.size() * sizeof(float));
  Rig reader("randomk:1%", {.numel = numel});  // needs no seed: the payload says what was drawn
  EXPECT_TRUE(
      all_equal(reader.decompress({sum}).floats(), reader.decompress(payloads).floats()));
  EXPECT_EQ(reader.compressor().combine(), Combine::kSum);
}

TEST(RandomK, ErrorFeedbackSendsEverythingInTheEnd) {
  const size_t numel = kChunk + 700;
  Rig rig("randomk:25%", {.numel = numel, .seed = kSeed});
  OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
  OwnedTensor none = zeros(numel, DType::kFloat32);
  std::vector<float> e(numel), e_next(numel), total(numel);
  for (int step = 0; step < 80; ++step) {  // 0.75^80 of 4796 elements are left, 5e-7 of one
    const std::vector<float> sent =
        rig.decompress({rig.compress(step == 0 ? g : none, e, e_next)}).floats();
    for (size_t i = 0; i < numel; ++i) {
      total[i] += sent[i];
    }
    std::swap(e, e_next);
    rig.commit();
  }
  EXPECT_TRUE(all_equal(total, g.floats()));
}

TEST(RandomK, GroupsAndStepsDrawAnew) {
  const size_t numel = kChunk;
  std::vector<float> x(numel);
  std::iota(x.begin(), x.end(), 0.0f);
  OwnedTensor g = tensor_of(x, DType::kFloat32);
  std::set<std::vector<float>> seen;
  for (const Segment& segment :
       {Segment{0, 0, numel}, Segment{1, 0, numel}, Segment{1, kChunk, numel}}) {
    for (const uint64_t seed : {kSeed, kSeed + 1}) {
      Rig rig("randomk:1%", {.numel = numel, .segments = {segment}, .seed = seed});
      for (const uint32_t step : {0, 1}) {
        rig.set_step(step);
        seen.insert(values_of(rig.compress(g, {}, {})));
      }
    }
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST(RandomK, PayloadsOfOtherDrawsDoNotMerge) {
  Rig rig("randomk:1%", {.numel = 500, .seed = kSeed});
  OwnedTensor g = tensor_of(normal(500, kSeed), DType::kFloat32);
  const auto first = rig.compress(g, {}, {});
  rig.commit();
  const auto second = rig.compress(g, {}, {});
  try {
    rig.merge({first, second}, {0, 500}, 0.5f, {});
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), concat("payload part 1: variant is ", read_header(second).variant,
                                   ", must be ", read_header(first).variant,
                                   " as of payload part 0: the same elements"));
  }
  const std::vector<float> a = rig.decompress({first}).floats();
  const std::vector<float> b = rig.decompress({second}).floats();
  const std::vector<float> both = rig.decompress({first, second}).floats();  // may be added up
  for (size_t i = 0; i < 500; ++i) {
    ASSERT_EQ(both[i], a[i] + b[i]);
  }
}

TEST(RandomK, FlagsWhatAMergeCannotKeepWithoutOverflow) {
  Rig rig("randomk:4096/4096,int4", {.numel = kChunk, .seed = kSeed});
  OwnedTensor g = tensor_of(normal(kChunk, kSeed, 1e37f), DType::kFloat32);
  OwnedTensor h = tensor_of(normal(kChunk, kSeed + 1, 1e37f), DType::kFloat32);
  const auto one = rig.compress(g, {}, {}), other = rig.compress(h, {}, {});
  for (const float kept : {0.0f, 3.4e38f}) {
    std::vector<float> e_next(kChunk, kept);
    const auto merged = rig.merge({one, other}, {0, kChunk}, 0.5f, e_next);
    EXPECT_EQ(flags_of(merged), kept == 0 ? 0 : kFlagNonFinite);
    const bool finite = std::ranges::all_of(e_next, [](float e) { return std::isfinite(e); });
    EXPECT_EQ(finite, kept == 0);
  }
}

TEST(RandomK, WhatIsScaledUpStaysFinite) {
  Rig rig("randomk:1/4096,noef", {.numel = kChunk, .seed = kSeed});
  OwnedTensor g = tensor_of(std::vector<float>(kChunk, -3e38f), DType::kFloat32);
  const auto payload = rig.compress(g, {}, {});
  EXPECT_EQ(flags_of(payload), 0);
  EXPECT_EQ(values_of(payload), std::vector<float>{-std::numeric_limits<float>::max()});
}

}  // namespace
}  // namespace gradwire::testing
