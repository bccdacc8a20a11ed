// The verbs against naive loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/random.h"
#include "gradwire/kernels/ops/sparse.h"
#include "tests/support/close.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST(Random, BatchesAreTheScalarPhilox) {
  const cpu::RoundingStream stream{
      .seed = 0x123456789ABCDEFull, .step = 7, .parameter = 3, .rank_stage = 9};
  for (const size_t first : {0, 1, 7, 8, 255, 1000003}) {
    for (const size_t count : {1, 8, 255, 256, 257, 1000}) {
      std::vector<uint16_t> halves(count);
      cpu::random_halves(stream, first, halves);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t element = first + i;
        const PhiloxCounter drawn = philox(rounding_counter(element, 7, 3, 9), stream.seed);
        const uint32_t word = drawn.word[element % 8 / 2];
        ASSERT_EQ(halves[i], static_cast<uint16_t>(element % 2 == 0 ? word : word >> 16)) << i;
      }
    }
  }
}

TEST(Quantize, RoundsTiesToEven) {
  const std::vector<float> x = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 125.5f};
  std::vector<float> scales(1), decoded(x.size());
  std::vector<int8_t> codes(x.size());
  ASSERT_TRUE(cpu::quantize(x, {.bits = 8, .block = 256, .random = {}}, {scales, codes, decoded}));
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(codes, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 126, 126}));
  EXPECT_EQ(decoded[3], 2.0f);
}

TEST(Quantize, StochasticIsFloorOfTheSumAsDefined) {
  const std::vector<float> x = normal(1000, 3);
  std::vector<uint16_t> random(x.size());
  cpu::random_halves({.seed = 5}, 0, random);
  for (const int bits : {8, 4}) {
    std::vector<float> scales(8), decoded(x.size());
    std::vector<int8_t> codes(x.size());
    cpu::quantize(x, {.bits = bits, .block = 128, .random = random}, {scales, codes, decoded});
    const float limit = bits == 8 ? 127.0f : 7.0f;
    for (size_t i = 0; i < x.size(); ++i) {
      float maximum = 0;
      for (size_t j = i / 128 * 128; j < std::min(x.size(), i / 128 * 128 + 128); ++j) {
        maximum = std::max(maximum, std::fabs(x[j]));
      }
      const float uniform = (static_cast<float>(random[i]) + 0.5f) / 65536.0f;
      const float code = std::floor(x[i] * (limit / maximum) + uniform);
      ASSERT_EQ(codes[i], std::clamp(code, -limit, limit)) << i;
      ASSERT_EQ(decoded[i], static_cast<float>(codes[i]) * (maximum / limit)) << i;
    }
  }
}

TEST(Quantize, TheLargestElementNeverRoundsPastTheLargestCode) {
  const std::vector<uint16_t> highest(2, 65535);  // the sum with x * (q / max) may reach q + 1
  std::vector<float> scales(1);
  std::vector<int8_t> codes(2);
  for (float maximum = 1.0f; maximum < 2.0f; maximum += 0.0007f) {
    const std::vector<float> x = {maximum, -maximum};
    for (const int bits : {8, 4}) {
      cpu::quantize(x, {.bits = bits, .block = 8, .random = highest}, {scales, codes, {}});
      ASSERT_EQ(codes[0], bits == 8 ? 127 : 7) << std::hexfloat << maximum;
      ASSERT_LE(codes[1], bits == 8 ? -126 : -6) << std::hexfloat << maximum;
    }
  }
}

TEST(Quantize, NibblesRoundTrip) {
  for (const size_t count : {1, 2, 3, 4095, 4096}) {
    std::vector<int8_t> codes(count), back(count);
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<int8_t>(static_cast<int>(i * 5 % 16) - 8);
    }
    std::vector<std::byte> packed(cpu::nibble_bytes(count));
    cpu::pack_nibbles(codes, packed.data());
    cpu::unpack_nibbles(packed.data(), back);
    EXPECT_EQ(codes, back) << count;
  }
}

TEST(Sparse, IndicesRoundTrip) {
  for (const cpu::Isa level : isa_paths()) {
    const cpu::IsaLimit limit(level);
    for (const size_t count :
         {0, 1, 2, 3, 15, 16, 17, 21, 22, 23, 31, 32, 33, 64, 65, 1001, 4096}) {
      SCOPED_TRACE(concat(name_of(level), ", ", count));
      std::vector<uint16_t> indices(count), back(count);
      for (size_t i = 0; i < count; ++i) {
        indices[i] = static_cast<uint16_t>(i * 4096 / std::max<size_t>(count, 1));
      }
      std::vector<std::byte> packed(cpu::packed_index_bytes(count));
      cpu::pack_indices(indices, packed.data());
      cpu::unpack_indices(packed.data(), back);
      EXPECT_EQ(indices, back);
      std::vector<std::byte> bitmap(512);
      cpu::pack_bitmap(indices, bitmap);
      EXPECT_EQ(cpu::unpack_bitmap(bitmap, back), count);
      EXPECT_EQ(indices, back);
      const std::vector<float> values = normal(count, 3);
      std::vector<float> sum = normal(4096, 4);
      std::vector<float> expected = sum;
      for (size_t i = 0; i < count; ++i) {
        expected[indices[i]] += values[i];
      }
      cpu::accumulate_packed(packed.data(), std::as_bytes(std::span(values)).data(), count, sum);
      EXPECT_EQ(sum, expected);
    }
  }
}

TEST(Sparse, DisorderIsSeenAtEveryPlace) {
  for (const cpu::Isa level : isa_paths()) {
    const cpu::IsaLimit limit(level);
    for (const size_t count : {1, 2, 3, 32, 33, 65, 100}) {
      std::vector<uint16_t> indices(count);
      std::vector<std::byte> packed(cpu::packed_index_bytes(count));
      const auto ascend = [&](size_t numel) {
        cpu::pack_indices(indices, packed.data());
        return cpu::packed_indices_ascend(packed.data(), count, numel);
      };
      const auto reset = [&] {
        for (size_t i = 0; i < count; ++i) {
          indices[i] = static_cast<uint16_t>(i * 3 + 2);
        }
      };
      reset();
      const size_t largest = indices.back();
      EXPECT_TRUE(ascend(largest + 1));
      EXPECT_FALSE(ascend(largest));
      for (size_t i = 1; i < count; ++i) {
        SCOPED_TRACE(concat(name_of(level), ", ", i, " of ", count));
        reset();
        indices[i] = indices[i - 1];
        EXPECT_FALSE(ascend(4096));
        indices[i] = static_cast<uint16_t>(indices[i - 1] + 1);
        EXPECT_TRUE(ascend(4096));
      }
      reset();
      indices.back() = 4096;
      if (count % 2 == 1) {  // a single one has 16 bits
        EXPECT_FALSE(ascend(4096));
      }
    }
    EXPECT_TRUE(cpu::packed_indices_ascend(nullptr, 0, 1));
  }
}

TEST(Elementwise, MatchesNaiveLoops) {
  const std::vector<float> a = normal(1003, 1);
  const std::vector<float> b = normal(1003, 2);
  std::vector<float> added(1003), subtracted(1003), scaled(1003), residual = b;
  cpu::add(a, b, added);
  cpu::subtract(a, b, subtracted);
  cpu::multiply(a, 0.3f, scaled);
  cpu::put_back(a, scaled, 0.3f, residual);
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(added[i], a[i] + b[i]);
    ASSERT_EQ(subtracted[i], a[i] - b[i]);
    ASSERT_EQ(scaled[i], a[i] * 0.3f);
    ASSERT_EQ(residual[i], b[i] + (a[i] - scaled[i] / 0.3f));
    largest = std::max(largest, std::fabs(a[i]));
  }
  EXPECT_EQ(cpu::max_magnitude_bits(a), bits_of(largest));
}

TEST(Elementwise, MultipliesAndClearsWhereverTheOutputLies) {
  Buffer memory(4096);
  for (const cpu::Isa level : isa_paths()) {
    const cpu::IsaLimit limit(level);
    for (const size_t offset : {0, 1, 15}) {
      for (const size_t count : {0, 1, 16, 17, 500}) {
        const std::vector<float> a = normal(count, 1);
        std::vector<float> cleared = a;
        const std::span<float> out = memory.as<float>().subspan(offset, count);
        cpu::multiply_and_clear(cleared, 0.3f, out);
        cpu::finish_streaming();
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], a[i] * 0.3f);
          ASSERT_EQ(bits_of(cleared[i]), 0u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
