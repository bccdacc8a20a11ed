// Laws that every compressor keeps, whatever it does and on whatever device: tests/simt compiles this
// file once more, with a Rig on an emulated GPU.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"
#include "tests/support/sampling.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed;

/// e - D == e_next, bit for bit where g + e == D + what is left is; of a velocity eta g was taken.
void expect_sent_is_kept(const std::string& spec, const Sample& s) {
  const double eta = parse_spec(spec).feedback.eta;
  for (size_t i = 0; i < s.g.size(); ++i) {
    const double left = std::abs(eta * double{s.g[i]} + double{s.e[i]} - double{s.decoded[i]});
    const double exact = double{s.e[i]} - double{s.decoded[i]};
    if (is_exact(spec)) {
      ASSERT_EQ(s.e_next[i], s.e[i] - s.decoded[i]) << "element " << i;
    }
    ASSERT_NEAR(s.e_next[i], exact, 0x1p-23 * (left + std::abs(exact) + std::abs(s.decoded[i])))
        << "element " << i;
  }
}

void expect_nothing_lost(const std::string& spec, const Sample& s) {
  if (parse_spec(spec).feedback.ef21) {
    expect_sent_is_kept(spec, s);
    return;
  }
  const bool exact = is_exact(spec);
  const std::vector<float> sums =
      sum_of(s.g, s.e, static_cast<float>(parse_spec(spec).feedback.decay));
  for (size_t i = 0; i < s.g.size(); ++i) {
    const float x = sums[i];
    const double sum = static_cast<double>(s.decoded[i]) + static_cast<double>(s.e_next[i]);
    if (exact) {
      ASSERT_EQ(static_cast<float>(sum), x) << "element " << i;
      ASSERT_EQ(s.decoded[i] + s.e_next[i], x) << "element " << i;
    }
    // In double the two sides differ at most by the rounding of e_next.
    ASSERT_LE(std::abs(sum - x), std::abs(s.e_next[i]) * 0x1p-24) << "element " << i;
  }
}

TEST(CompressorLaws, NothingIsLost) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    for (const DType dtype : kDTypes) {
      for (const size_t numel : odd_sizes()) {
        SCOPED_TRACE(concat(spec, " ", to_string(dtype), " ", numel));
        expect_nothing_lost(spec, make_sample(spec, dtype, normal(numel, kSeed)));
        expect_nothing_lost(spec, make_sample(spec, dtype, heavy_tailed(numel, kSeed)));
        expect_nothing_lost(spec, make_sample(spec, dtype, layered(numel, kSeed)));
      }
    }
  }
}

TEST(CompressorLaws, WithoutFeedbackThePayloadIsThatOfAZeroResidual) {
  for (const std::string& spec : all_specs()) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(spec, " ", to_string(dtype)));
      const size_t numel = 3 * kChunk + 5;
      Rig rig(spec, {.numel = numel, .dtype = dtype, .seed = kSeed});
      OwnedTensor g = tensor_of(normal(numel, kSeed), dtype);
      const std::vector<float> zero(numel);
      std::vector<float> e_next(numel);
      EXPECT_EQ(rig.compress(g, {}, {}), rig.compress(g, zero, e_next));
    }
  }
}

TEST(CompressorLaws, SameSeedSameBytes) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = 2 * kChunk + 100;
    OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    Rig other_rank(spec, {.numel = numel, .seed = kSeed, .rank = 1});
    Rig other_seed(spec, {.numel = numel, .seed = kSeed + 1});
    const auto first = rig.compress(g, {}, {});
    EXPECT_EQ(first, rig.compress(g, {}, {}));
    const bool drawn = is_stochastic(spec) || draws_elements(spec);
    EXPECT_EQ(first == other_rank.compress(g, {}, {}), !is_stochastic(spec));
    EXPECT_EQ(first == other_seed.compress(g, {}, {}), !drawn);
    rig.commit();
    EXPECT_EQ(first == rig.compress(g, {}, {}), !drawn && !keeps_velocity(spec) && !alternates(spec));
    rig.set_step(0);
    EXPECT_EQ(first, rig.compress(g, {}, {}));
  }
}

TEST(CompressorLaws, ARoundingFollowsItsParameterIntoAnotherBucket) {
  const size_t numel = 3 * kChunk;
  std::vector<float> values(numel);
  for (size_t i = 0; i < numel; ++i) {  // each block has the maximum 1, so all scales are equal
    values[i] = i % 100 == 0 ? 1.0f : std::sin(static_cast<float>(i));
  }
  // The parameter alone; then elements 40 and on of it, behind eleven of another parameter.
  std::vector<float> shifted(11);
  shifted.insert(shifted.end(), values.begin() + 40, values.end());
  for (const char* spec : {"int8,stochastic,block=4096", "int4,stochastic,block=4096",
                           "2bit,stochastic,block=4096", "e4m3,stochastic,block=4096", "ternary,block=4096",
                           "natural,block=4096", "topk:100%,int8,stochastic", "topk:100%,qsgd:7",
                           "topk:100%,natural"}) {
    SCOPED_TRACE(spec);
    Rig alone(spec, {.numel = numel, .segments = {{9, 0, numel}}, .seed = kSeed});
    Rig behind(
        spec,
        {.numel = shifted.size(), .segments = {{4, 3, 11}, {9, 40, numel - 40}}, .seed = kSeed});
    OwnedTensor a = tensor_of(values, DType::kFloat32);
    OwnedTensor b = tensor_of(shifted, DType::kFloat32);
    const auto first = alone.decompress({alone.compress(a, {}, {})}).floats();
    const auto second = behind.decompress({behind.compress(b, {}, {})}).floats();
    EXPECT_TRUE(all_equal(std::span(first).subspan(40), std::span(second).subspan(11)));
  }
}

TEST(CompressorLaws, SumOfRanksIsSumOfParts) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(spec, " ", to_string(dtype)));
      const size_t numel = 3 * kChunk + 1;
      std::vector<double> expected(numel), magnitude(numel);
      std::vector<std::vector<std::byte>> payloads;
      constexpr int kRanks = 4;
      for (int rank = 0; rank < kRanks; ++rank) {
        const Sample s = make_sample(spec, dtype, normal(numel, kSeed + 10 + rank), 1, rank);
        payloads.push_back(s.payload);
        for (size_t i = 0; i < numel; ++i) {
          expected[i] += static_cast<double>(s.decoded[i]) / kRanks;
          magnitude[i] += std::abs(static_cast<double>(s.decoded[i]));
        }
      }
      Rig rig(spec, {.numel = numel, .dtype = dtype});
      const std::vector<float> mean = rig.decompress(payloads, 1.0f / kRanks).floats();
      const double rounding = dtype == DType::kFloat32   ? 0x1p-24
                              : dtype == DType::kFloat16 ? 0x1p-11
                                                         : 0x1p-8;
      for (size_t i = 0; i < numel; ++i) {
        ASSERT_NEAR(mean[i], expected[i],
                    rounding * std::abs(expected[i]) + kRanks * 0x1p-24 * magnitude[i] + 0x1p-25)
            << "element " << i;
      }
    }
  }
}

TEST(CompressorLaws, SlicesTileThePayload) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    for (const size_t numel : odd_sizes()) {
      SCOPED_TRACE(concat(spec, " ", numel));
      Rig rig(spec, {.numel = numel, .seed = kSeed});
      OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
      const auto payload = rig.compress(g, {}, {});
      std::vector<std::vector<std::byte>> slices;
      for (const Region region : tiles(numel, 2)) {
        slices.push_back(rig.slice(payload, region));
        const PayloadHeader header = read_header(slices.back());
        EXPECT_EQ(header.first_chunk * kChunk, region.begin);
        EXPECT_EQ(header.numel, region.numel());
      }
      const std::vector<float> decoded = rig.decompress({payload}).floats();
      EXPECT_TRUE(all_equal(decoded, rig.decompress(slices).floats()));
      EXPECT_EQ(rig.slice(payload, {0, numel}), payload) << "the whole is a slice of itself";
    }
  }
}

TEST(CompressorLaws, MergeKeepsWhatItDrops) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    SCOPED_TRACE(spec);
    constexpr int kRanks = 3;
    constexpr float kScale = 1.0f / kRanks;
    const size_t numel = 5 * kChunk + 33;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    std::vector<std::vector<std::byte>> payloads;
    std::vector<double> sent(numel), magnitude(numel);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Sample s =
          make_sample(spec, DType::kFloat32, heavy_tailed(numel, kSeed + rank), 1, rank);
      payloads.push_back(s.payload);
      for (size_t i = 0; i < numel; ++i) {
        sent[i] += s.decoded[i];
        magnitude[i] += std::abs(s.decoded[i]);
      }
    }
    const std::vector<float> before = normal(numel, kSeed + 7, 0.01f);
    std::vector<float> e_next = before;
    std::vector<std::vector<std::byte>> merged;
    for (const Region region : tiles(numel, 2)) {
      std::vector<std::vector<std::byte>> slices;
      for (const auto& payload : payloads) {
        slices.push_back(rig.slice(payload, region));
      }
      merged.push_back(rig.merge(slices, region, kScale, e_next));
    }
    const std::vector<float> mean = rig.decompress(merged).floats();
    for (size_t i = 0; i < numel; ++i) {
      const double put_back = static_cast<double>(e_next[i]) - before[i];
      ASSERT_NEAR(static_cast<double>(mean[i]) / kScale + put_back, sent[i],
                  0x1p-22 * (magnitude[i] + std::abs(before[i]) + std::abs(e_next[i]) +
                             std::abs(mean[i]) / kScale))
          << "element " << i;
    }
  }
}

TEST(CompressorLaws, MergeOfPartsAlreadyMergedIsPossible) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = 2 * kChunk + 9;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
    const auto payload = rig.compress(g, {}, {});
    const auto once = rig.merge({payload, payload}, {0, numel}, 0.5f, {});
    const auto twice = rig.merge({once, once}, {0, numel}, 0.5f, {});
    EXPECT_LE(twice.size(), rig.compressor().capacity_bytes());
  }
}

TEST(CompressorLaws, PayloadNeverExceedsCapacity) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    for (const size_t numel : odd_sizes()) {
      SCOPED_TRACE(concat(spec, " ", numel));
      Rig rig(spec, {.numel = numel, .seed = kSeed});
      // Spikes spread so that the chunks' counts are odd as often as possible.
      std::vector<float> spikes(numel);
      for (size_t i = 0; i < numel; i += 97) {
        spikes[i] = 1.0f + static_cast<float>(i % kChunk);
      }
      for (const std::vector<float>& values :
           {normal(numel, kSeed), spikes, std::vector<float>(numel, 1.0f)}) {
        OwnedTensor g = tensor_of(values, DType::kFloat32);
        const size_t bytes = rig.compress(g, {}, {}).size();  // cut to the header's length
        EXPECT_LE(bytes, rig.compressor().capacity_bytes());
        if (rig.compressor().fixed_length()) {
          EXPECT_EQ(bytes, rig.compressor().capacity_bytes());
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
