// The casts on every instruction set against kernels/core/dtype.h, whose own test is independent;
// and Philox numbers on every instruction set.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/random.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST(CastPaths, WidenEveryPattern) {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<uint16_t>(i);
  }
  for (const cpu::Isa path : isa_paths()) {
    SCOPED_TRACE(name_of(path));
    const cpu::IsaLimit limit(path);
    std::vector<float> wide(patterns.size());
    cpu::widen({patterns.data(), patterns.size(), DType::kFloat16}, wide);
    for (size_t i = 0; i < patterns.size(); ++i) {
      ASSERT_EQ(bits_of(wide[i]), bits_of(to_float(float16{patterns[i]}))) << i;
    }
    cpu::widen({patterns.data(), patterns.size(), DType::kBFloat16}, wide);
    for (size_t i = 0; i < patterns.size(); ++i) {
      ASSERT_EQ(bits_of(wide[i]), static_cast<uint32_t>(i) << 16) << i;
    }
  }
}

/// Every upper half (sign, exponent, 7 bits) with mantissas at and around the ties of both types, in
/// runs of 16 of one upper half, so that few runs hold a value that takes the slow way; a walk
/// through all floats; and all patterns around the values where the rule changes.
std::vector<float> narrowed_values() {
  std::vector<float> x;
  for (uint32_t top = 0; top < 0x10000; ++top) {
    for (const uint32_t low : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x1FFFu, 0x2000u, 0x2FFFu, 0x3000u,
                               0x3001u, 0x5000u, 0x7000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>(top << 16 | low));
    }
  }
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1021) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const uint32_t edge : {0x00000000u, 0x33000000u, 0x33800000u, 0x38800000u, 0x477FE000u,
                              0x477FF000u, 0x7F7F0000u, 0x7F7F8000u, 0x7F800000u}) {
    for (uint32_t near = 0; near < 64; ++near) {
      x.push_back(std::bit_cast<float>(edge + near));
      x.push_back(std::bit_cast<float>((edge - near) | 0x80000000u));
    }
  }
  return x;
}

TEST(CastPaths, NarrowAsTheDefinitionDoes) {
  const std::vector<float> x = narrowed_values();
  for (const cpu::Isa path : isa_paths()) {
    SCOPED_TRACE(name_of(path));
    const cpu::IsaLimit limit(path);
    std::vector<uint16_t> narrow(x.size());
    cpu::narrow(x, {narrow.data(), narrow.size(), DType::kFloat16, {}});
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(narrow[i], to_float16(x[i]).bits) << std::hexfloat << x[i];
    }
    cpu::narrow(x, {narrow.data(), narrow.size(), DType::kBFloat16, {}});
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(narrow[i], to_bfloat16(x[i]).bits) << std::hexfloat << x[i];
    }
  }
}

/// One call with `numel` elements at an address `offset` bytes behind a multiple of 64.
void narrow_at(const std::vector<float>& x, DType dtype, size_t offset, cpu::Caching caching) {
  const size_t width = size_of(dtype);
  std::vector<std::byte> memory(x.size() * width + 200, std::byte{0xA5});
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const size_t begin = (64 - address % 64) % 64 + offset;
  bool finite = true;
  for (const float value : x) {
    finite = finite && std::isfinite(value);
  }
  EXPECT_EQ(cpu::narrow_finite(x, {memory.data() + begin, x.size(), dtype, {}}, caching), finite);
  OwnedTensor expected = tensor_of(x, dtype);
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i >= begin && i < begin + x.size() * width;
    ASSERT_EQ(memory[i], inside ? expected.bytes[i - begin] : std::byte{0xA5}) << "byte " << i;
  }
}

TEST(CastPaths, NarrowAnySizeToAnyAddress) {
  for (const cpu::Isa path : isa_paths()) {
    const cpu::IsaLimit limit(path);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const size_t numel : {0, 1, 15, 16, 17, 31, 32, 33, 48, 255, 256, 257, 4095, 4096, 4097,
                                 70001}) {
        for (const size_t offset : {0, 2, 16, 32, 36}) {
          SCOPED_TRACE(concat(name_of(path), " ", to_string(dtype), " ", numel, " at ", offset));
          narrow_at(normal(numel, 50), dtype, offset, cpu::Caching::kStreaming);
          narrow_at(normal(numel, 51), dtype, offset, cpu::Caching::kNormal);
        }
      }
    }
  }
}

TEST(CastPaths, SeeEveryValueThatIsNotFinite) {
  for (const cpu::Isa path : isa_paths()) {
    const cpu::IsaLimit limit(path);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (size_t at = 0; at < 53; ++at) {
        SCOPED_TRACE(concat(name_of(path), " ", to_string(dtype), " at ", at));
        const float tie = std::bit_cast<float>(0x7F7F8000u);  // of the largest bf16 and infinity
        for (const float value : {std::nanf(""), -INFINITY, INFINITY, tie, 65520.0f, -7e4f}) {
          std::vector<float> x = normal(53, 52);
          x[at] = value;
          narrow_at(x, dtype, 32, cpu::Caching::kStreaming);
        }
      }
    }
  }
}

/// x = g + e by the definition, what is sent of it, and what is left.
void expect_sum_narrowed(DType gradient, DType sent, const std::vector<float>& values,
                         size_t offset, cpu::Caching caching) {
  const size_t n = values.size();
  OwnedTensor g = tensor_of(values, gradient);
  const std::vector<float> e = normal(n, 77, 0.3f);
  std::vector<std::byte> memory(2 * n + 2, std::byte{0x5A});
  Buffer room((n + 32) * sizeof(float));
  std::ranges::fill(room.as<float>(), 9.0f);
  const std::span<float> left = room.as<float>().subspan(16 + offset, n);
  std::byte* const out = memory.data() + 1;
  const bool finite = cpu::narrow_sum(g.view(), e, {{out, n, sent, {}}, left}, caching);
  cpu::finish_streaming();
  const std::vector<float> summands = g.floats();
  bool expected_finite = true;
  for (size_t i = 0; i < n; ++i) {
    const float x = summands[i] + e[i];
    expected_finite = expected_finite && std::isfinite(x);
    uint16_t bits;
    std::memcpy(&bits, out + 2 * i, sizeof bits);
    const uint16_t expected =
        sent == DType::kFloat16 ? from_float<float16>(x).bits : from_float<bfloat16>(x).bits;
    ASSERT_EQ(bits, expected) << i;
    const float said =
        sent == DType::kFloat16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
    if (std::isfinite(x)) {
      ASSERT_EQ(bits_of(left[i]), bits_of(x - said)) << i;
    }
  }
  EXPECT_EQ(finite, expected_finite);
  EXPECT_EQ(memory.front(), std::byte{0x5A});
  EXPECT_EQ(memory.back(), std::byte{0x5A});
  EXPECT_EQ(room.as<float>()[15 + offset], 9.0f);
  EXPECT_EQ(room.as<float>()[16 + offset + n], 9.0f);
}

TEST(CastPaths, SumsAreNarrowedWithWhatIsLeft) {
  for (const cpu::Isa path : isa_paths()) {
    for (const DType gradient : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const DType sent : {DType::kFloat16, DType::kBFloat16}) {
        for (const size_t n : {0, 1, 15, 16, 17, 100, 1000}) {
          for (const size_t offset : {0, 1, 4}) {
            SCOPED_TRACE(concat(name_of(path), " ", to_string(gradient), " ", to_string(sent), " ",
                                n, " ", offset));
            const cpu::IsaLimit limit(path);
            std::vector<float> x = normal(n, n, 100.0f);
            for (size_t i = 7; i < n; i += 90) {
              x[i] *= 1e4f;  // some saturate
            }
            expect_sum_narrowed(gradient, sent, x, offset, cpu::Caching::kStreaming);
            expect_sum_narrowed(gradient, sent, x, offset, cpu::Caching::kNormal);
            if (n == 100) {
              x[40] = std::nanf("");
              expect_sum_narrowed(gradient, sent, x, offset, cpu::Caching::kStreaming);
              x[40] = 1.0f;
              x[99] = -std::numeric_limits<float>::infinity();
              expect_sum_narrowed(gradient, sent, x, offset, cpu::Caching::kStreaming);
            }
          }
        }
      }
    }
  }
}

TEST(CastPaths, SumsAddInTheOrderOfTheParts) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const size_t numel : {0, 1, 63, 64, 65, 255, 256, 257, 4095, 4096}) {
      for (const size_t ranks : {0, 1, 3, 65}) {
        SCOPED_TRACE(concat(to_string(dtype), " ", numel, " of ", ranks));
        std::vector<OwnedTensor> owned;
        std::vector<ConstTensorView> parts;
        std::vector<float> expected(numel);
        for (size_t rank = 0; rank < ranks; ++rank) {
          owned.push_back(tensor_of(heavy_tailed(numel, 60 + rank), dtype));
          const std::vector<float> values = owned.back().floats();
          for (size_t i = 0; i < numel; ++i) {
            expected[i] = expected[i] + values[i];
          }
        }
        for (OwnedTensor& tensor : owned) {
          parts.emplace_back(tensor.view());
        }
        for (const cpu::Isa path : isa_paths()) {
          const cpu::IsaLimit limit(path);
          for (const cpu::Caching caching : {cpu::Caching::kNormal, cpu::Caching::kStreaming}) {
            std::vector<float> out(numel, -1.0f);
            cpu::sum_widened(parts, 0.3f, out, caching);
            for (size_t i = 0; i < numel; ++i) {
              const float value = 0.3f * expected[i];
              ASSERT_EQ(bits_of(out[i]), bits_of(value)) << name_of(path) << ", element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(RandomPaths, BatchesAreTheScalarPhilox) {
  const cpu::RoundingStream stream{
      .seed = 0x123456789ABCDEFull, .step = 7, .parameter = 3, .rank_stage = 9};
  for (const cpu::Isa path : isa_paths()) {
    const cpu::IsaLimit limit(path);
    // The last one: the counter's word wraps around within the batch.
    for (const uint64_t first : {0ull, 1ull, 8ull, 1000003ull, (1ull << 35) - 100}) {
      for (const size_t count : {1, 255, 256, 257, 1000}) {
        std::vector<uint16_t> halves(count);
        cpu::random_halves(stream, first, halves);
        for (size_t i = 0; i < count; ++i) {
          const uint64_t element = first + i;
          const PhiloxCounter drawn = philox(rounding_counter(element, 7, 3, 9), stream.seed);
          const uint32_t word = drawn.word[element % 8 / 2];
          ASSERT_EQ(halves[i], static_cast<uint16_t>(element % 2 == 0 ? word : word >> 16))
              << name_of(path) << ", " << first << " + " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
