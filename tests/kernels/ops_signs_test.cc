// Signs with a scale per block, on every instruction set, against a scalar loop written from the
// definition.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "gradwire/kernels/ops/signs.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

float sum_of_magnitudes(const std::vector<float>& x, float factor) {
  std::vector<float> lane(32);
  for (size_t i = 0; i < x.size(); ++i) {
    const float magnitude = std::fabs(x[i]) * factor;
    lane[i % 32] = lane[i % 32] + magnitude;
  }
  for (size_t width = 16; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) {
      lane[l] = lane[l] + lane[l + width];
    }
  }
  return lane[0];
}

float scale_of(const std::vector<float>& block) {
  for (const float x : block) {
    if (!std::isfinite(x)) {
      return 0;
    }
  }
  const auto count = static_cast<float>(block.size());
  const float sum = sum_of_magnitudes(block, 1);
  if (std::isfinite(sum)) {
    return sum / count;
  }
  const float mean = sum_of_magnitudes(block, 1.0f / 4096) / count * 4096;
  return std::min(mean, kLargest);
}

struct Result {
  std::vector<uint32_t> scales;  // bits
  std::vector<uint8_t> signs;
  std::vector<uint32_t> e_next;  // bits; 0 where x is not finite, since it is not committed
  bool finite = true;
};

Result reference(const std::vector<float>& x, size_t block, bool feedback) {
  Result r;
  r.signs.resize((x.size() + 7) / 8);
  for (size_t begin = 0; begin < x.size(); begin += block) {
    const size_t end = std::min(begin + block, x.size());
    const std::vector<float> elements(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                      x.begin() + static_cast<std::ptrdiff_t>(end));
    const float scale = scale_of(elements);
    r.scales.push_back(std::bit_cast<uint32_t>(scale));
    for (size_t i = begin; i < end; ++i) {
      const bool negative = x[i] < 0 && scale > 0;
      r.signs[i / 8] |= static_cast<uint8_t>(negative << (i % 8));
      r.finite = r.finite && std::isfinite(x[i]);
      if (feedback) {
        const float left = x[i] - (negative ? -scale : scale);
        r.e_next.push_back(std::isfinite(x[i]) ? std::bit_cast<uint32_t>(left) : 0);
      }
    }
  }
  return r;
}

struct Setting {
  size_t block = 256;
  DType dtype = DType::kFloat32;
  bool feedback = true;
  bool streaming = false;
  size_t misalignment = 0;
};

void check(const std::vector<float>& values, const Setting& s) {
  const size_t numel = values.size();
  OwnedTensor g = tensor_of(values, s.dtype);
  const std::vector<float> e = s.feedback ? normal(numel, 99, 0.1f) : std::vector<float>();
  std::vector<float> x = g.floats();
  for (size_t i = 0; i < e.size(); ++i) {
    x[i] += e[i];
  }
  const Result expected = reference(x, s.block, s.feedback);
  const size_t scale_bytes = 4 * expected.scales.size();
  for (const cpu::Isa path : isa_paths()) {
    SCOPED_TRACE(name_of(path));
    const cpu::IsaLimit limit(path);
    std::vector<std::byte> record(s.misalignment + scale_bytes + (numel + 7) / 8 + 1,
                                  std::byte{0xEE});
    std::byte* const body = record.data() + s.misalignment;
    std::vector<float> memory(e.size() + 32, 12345.0f);
    const size_t begin = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64 / 4;
    const std::span<float> e_next = std::span(memory).subspan(begin + s.misalignment, e.size());
    EXPECT_EQ(cpu::encode_signs({g.view(), e}, s.block,
                                {body, body + scale_bytes, e_next, s.streaming}),
              expected.finite);
    const auto scales = std::as_bytes(std::span(expected.scales));
    const auto signs = std::as_bytes(std::span(expected.signs));
    EXPECT_TRUE(std::equal(scales.begin(), scales.end(), body));
    EXPECT_TRUE(std::equal(signs.begin(), signs.end(), body + scale_bytes));
    EXPECT_EQ(record.back(), std::byte{0xEE});
    EXPECT_EQ(memory.back(), 12345.0f);
    for (size_t i = 0; i < e.size(); ++i) {
      const uint32_t found = std::isfinite(x[i]) ? std::bit_cast<uint32_t>(e_next[i]) : 0;
      ASSERT_EQ(found, expected.e_next[i]) << "element " << i << ", x " << std::hexfloat << x[i];
    }
  }
}

TEST(SignOps, MatchTheDefinitionForAnySize) {
  for (const size_t numel : {0, 1, 2, 7, 8, 9, 31, 33, 255, 256, 257, 511, 1000, 4095, 4096}) {
    SCOPED_TRACE(numel);
    check(normal(numel, 1), {});
    check(heavy_tailed(numel, 2), {.feedback = false});
    check(heavy_tailed(numel, 3), {.streaming = true});
    for (const size_t block : {8, 64, 512, 4096}) {
      check(heavy_tailed(numel, 4), {.block = block});
    }
    check(normal(numel, 5), {.misalignment = 1});
    check(normal(numel, 6), {.dtype = DType::kFloat16, .streaming = true, .misalignment = 3});
    check(normal(numel, 7), {.dtype = DType::kBFloat16});
  }
}

TEST(SignOps, MatchTheDefinitionForAnyValues) {
  constexpr size_t kNumel = 1500;
  std::vector<std::vector<float>> all = {
      std::vector<float>(kNumel),         std::vector<float>(kNumel, -0.0f),
      std::vector<float>(kNumel, -2.5f),  layered(kNumel, 10),
      normal(kNumel, 11, 1e-41f),         std::vector<float>(kNumel, kLargest),
      std::vector<float>(kNumel, -1e-45f)};
  // Sums that overflow in some blocks alone.
  std::vector<float> large = normal(kNumel, 12, 1e37f);
  for (size_t i = 0; i < 400; ++i) {
    large[i] = i % 2 == 0 ? kLargest : -0.9f * kLargest;
  }
  all.push_back(large);
  std::vector<float> broken = normal(kNumel, 13);
  broken[5] = std::nanf("");
  broken[300] = INFINITY;
  broken[600] = -INFINITY;
  broken[1499] = -INFINITY;
  all.push_back(broken);
  for (size_t i = 0; i < all.size(); ++i) {
    for (const size_t block : {256, 4096}) {
      SCOPED_TRACE(concat("input ", i, ", block ", block));
      check(all[i], {.block = block});
      check(all[i], {.block = block, .feedback = false});
    }
  }
}

TEST(SignOps, SumsAddInRankOrder) {
  std::mt19937_64 random(20);
  for (const size_t numel : {0, 1, 7, 8, 255, 256, 257, 1000, 4095, 4096}) {
    for (const size_t block : {256, 64}) {
      for (const size_t ranks : {0, 1, 3, 5}) {
        SCOPED_TRACE(concat(numel, " by ", block, ", ", ranks, " ranks"));
        const size_t scales = (numel + block - 1) / block;
        std::vector<std::vector<uint8_t>> records(ranks);
        std::vector<cpu::EncodedBlocks> parts;
        std::vector<float> expected(numel);
        for (std::vector<uint8_t>& record : records) {
          record.resize(scales * 4 + (numel + 7) / 8);
          std::ranges::generate(record, [&] { return static_cast<uint8_t>(random()); });
          for (size_t i = 0; i < scales; ++i) {
            const float scale = i % 3 == 0 ? 0.0f : std::ldexp(1.0f + float(i) / 7, -int(i));
            std::memcpy(record.data() + 4 * i, &scale, 4);
          }
          for (size_t i = 0; i < numel; ++i) {
            float scale;
            std::memcpy(&scale, record.data() + i / block * 4, 4);
            const bool negative = record[scales * 4 + i / 8] >> (i % 8) & 1;
            expected[i] = expected[i] + (negative ? -scale : scale);
          }
          const auto* bytes = reinterpret_cast<const std::byte*>(record.data());
          parts.push_back({bytes, bytes + 4 * scales});
        }
        for (const cpu::Isa path : isa_paths()) {
          const cpu::IsaLimit limit(path);
          for (const bool streaming : {false, true}) {
            std::vector<float> out(numel, -1.0f);
            cpu::sum_signs(
                parts, {.bits = 1, .block = block, .factor = 0.3f, .streaming = streaming}, out);
            for (size_t i = 0; i < numel; ++i) {
              const float value = 0.3f * expected[i];
              ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(value))
                  << name_of(path) << ", element " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
