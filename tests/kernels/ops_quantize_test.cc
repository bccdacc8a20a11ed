// The fused quantizers on every instruction set against a scalar loop written from the definition.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/random.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

/// Every kind of number that could be treated differently somewhere.
std::vector<std::vector<float>> inputs(size_t numel) {
  std::vector<std::vector<float>> all = {normal(numel, 1), heavy_tailed(numel, 2),
                                         layered(numel, 3), std::vector<float>(numel),
                                         std::vector<float>(numel, -0.0f),
                                         std::vector<float>(numel, 2.5f),
                                         normal(numel, 4, 1e-41f), normal(numel, 5, 1e38f)};
  // Maxima around the smallest one, whose reciprocal leaves the floats, block by block.
  std::vector<float> small = normal(numel, 6, 1e-38f);
  for (size_t i = 0; i < numel; ++i) {
    const float limit = 3.74e-37f * (1.0f + 1e-6f * static_cast<float>(int(i / 256 % 5) - 2));
    small[i] = i % 256 == 17 ? -limit : std::clamp(small[i], -limit, limit);
  }
  all.push_back(small);
  std::vector<float> ties(numel);  // multiples of half a step, up to the largest code
  for (size_t i = 0; i < numel; ++i) {
    ties[i] = i % 256 == 0 ? 127.0f : 0.5f * static_cast<float>(int(i * 7 % 509) - 254);
  }
  all.push_back(ties);
  std::vector<float> large = normal(numel, 7, 1e37f);
  for (size_t i = 3; i < numel; i += 300) {
    large[i] = i % 2 == 0 ? kLargest : std::nextafter(-kLargest, 0.0f);
  }
  all.push_back(large);
  std::vector<float> broken = normal(numel, 8);
  for (size_t i = 11; i < numel; i += 700) {
    broken[i] = i % 3 == 0 ? std::nanf("") : i % 3 == 1 ? INFINITY : -INFINITY;
  }
  all.push_back(broken);
  return all;
}

struct Result {
  std::vector<uint32_t> scales;  // bits
  std::vector<uint8_t> codes;
  std::vector<uint32_t> e_next;  // bits
  bool finite = true;
  bool operator==(const Result&) const = default;
};

/// Element i's code in the packed bytes: by bit arithmetic alone.
void put_code(std::vector<uint8_t>& bytes, size_t i, int bits, int code) {
  const uint32_t field = static_cast<uint32_t>(code) & ((1u << bits) - 1);
  bytes[i * bits / 8] |= static_cast<uint8_t>(field << (i * bits % 8));
}

Result reference(const std::vector<float>& x, int bits, size_t block,
                 const std::vector<uint16_t>& random, bool feedback) {
  Result r;
  r.codes.resize((x.size() * bits + 7) / 8);
  r.scales.resize((x.size() + block - 1) / block);
  r.e_next.resize(feedback ? x.size() : 0);
  const float q = std::ldexp(1.0f, bits - 1) - 1;
  for (size_t begin = 0; begin < x.size(); begin += block) {
    const size_t end = std::min(begin + block, x.size());
    float maximum = 0;
    bool finite = true;
    for (size_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(x[i]);
      maximum = std::fmax(maximum, std::fabs(x[i]));
    }
    r.finite = r.finite && finite;
    float scale = 0;
    const bool sent = finite && maximum >= 3.74e-37f;
    if (sent) {
      scale = maximum / q;
      scale = std::isinf(q * scale) ? std::nextafter(scale, 0.0f) : scale;
    }
    r.scales[begin / block] = std::bit_cast<uint32_t>(scale);
    for (size_t i = begin; i < end; ++i) {
      float code = 0;
      if (sent && random.empty()) {
        code = std::nearbyint(x[i] * (q / maximum));
      } else if (sent) {
        const float uniform = (static_cast<float>(random[i]) + 0.5f) / 65536.0f;
        const float product = x[i] * (q / maximum);
        code = std::clamp(std::floor(product + uniform), -q, q);
      }
      put_code(r.codes, i, bits, static_cast<int>(code));
      if (feedback) {
        const float decoded = code * scale;
        r.e_next[i] = std::bit_cast<uint32_t>(std::isfinite(x[i]) ? x[i] - decoded : 0.0f);
      }
    }
  }
  return r;
}

/// The numbers of a run, one scalar Philox call each.
std::vector<uint16_t> numbers_of(const cpu::RandomRun& run, size_t count) {
  std::vector<uint16_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t at = run.first + i;
    const cpu::RoundingStream& s = run.stream;
    const PhiloxCounter drawn =
        philox(rounding_counter(at, s.step, s.parameter, s.rank_stage), s.seed);
    const uint32_t word = drawn.word[at % 8 / 2];
    numbers[i] = static_cast<uint16_t>(at % 2 == 0 ? word : word >> 16);
  }
  return numbers;
}

struct Setting {
  int bits = 8;
  size_t block = 256;
  DType dtype = DType::kFloat32;
  bool feedback = true;
  bool streaming = false;
  size_t misalignment = 0;  // of e_next and the payload
};

/// What quantize_sum() makes of g + e; bytes around its output stay as they were.
Result encode(OwnedTensor& g, const std::vector<float>& e, const Setting& s,
              std::span<const uint16_t> random, const cpu::RandomRun* run) {
  constexpr float kGuard = 12345.0f;
  const size_t numel = g.numel();
  const size_t kept = s.feedback ? numel : 0;
  const size_t scale_bytes = (numel + s.block - 1) / s.block * 4;
  const size_t code_bytes = (numel * s.bits + 7) / 8;
  std::vector<float> memory(numel + 64, kGuard);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const size_t begin = (64 - address % 64) % 64 / 4 + s.misalignment;
  const std::span<float> e_next = std::span(memory).subspan(begin, kept);
  std::vector<std::byte> record(s.misalignment + scale_bytes + code_bytes + 1, std::byte{0xEE});
  std::byte* const body = record.data() + s.misalignment;
  Result r;
  r.finite = cpu::quantize_sum({g.view(), std::span(e).first(kept)},
                               {.bits = s.bits, .block = s.block, .random = random}, run,
                               {body, body + scale_bytes, e_next, s.streaming});
  r.scales.resize(scale_bytes / 4);
  const auto scale_record = std::as_writable_bytes(std::span(r.scales));
  std::copy_n(body, scale_bytes, scale_record.begin());
  r.codes.resize(code_bytes);
  std::copy_n(body + scale_bytes, code_bytes, std::as_writable_bytes(std::span(r.codes)).begin());
  const std::vector<float> values = g.floats();
  for (size_t i = 0; i < kept; ++i) {
    const bool finite = std::isfinite(values[i] + e[i]);  // else e_next is not committed
    r.e_next.push_back(finite ? std::bit_cast<uint32_t>(e_next[i]) : 0);
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_TRUE((i >= begin && i < begin + kept) || memory[i] == kGuard) << "around e_next: " << i;
  }
  EXPECT_EQ(record.back(), std::byte{0xEE});
  return r;
}

void expect_same(const Result& found, const Result& expected) {
  EXPECT_EQ(found.finite, expected.finite);
  EXPECT_EQ(found.scales, expected.scales);
  EXPECT_EQ(found.codes, expected.codes);
  EXPECT_EQ(found.e_next, expected.e_next);
}

/// One input on every path: nearest, stochastic from numbers given, and from runs of them.
void check(const std::vector<float>& values, const Setting& s) {
  const size_t numel = values.size();
  OwnedTensor g = tensor_of(values, s.dtype);
  const std::vector<float> e = s.feedback ? normal(numel, 99, 0.1f) : std::vector<float>();
  std::vector<float> x = g.floats();
  for (size_t i = 0; i < e.size(); ++i) {
    x[i] += e[i];
  }
  const cpu::RoundingStream stream{
      .seed = 0xFEDCBA9876543210ull, .step = 9, .parameter = 4, .rank_stage = 13};
  const cpu::RandomRun aligned{stream, (uint64_t{1} << 35) - 256};  // counters wrap inside
  const cpu::RandomRun skewed{stream, 1003};
  const std::vector<uint16_t> numbers = numbers_of(aligned, numel);
  const std::vector<uint16_t> skewed_numbers = numbers_of(skewed, numel);
  const Result nearest = reference(x, s.bits, s.block, {}, s.feedback);
  const Result drawn = reference(x, s.bits, s.block, numbers, s.feedback);
  const Result drawn_skewed = reference(x, s.bits, s.block, skewed_numbers, s.feedback);
  for (const cpu::Isa path : isa_paths()) {
    SCOPED_TRACE(name_of(path));
    const cpu::IsaLimit limit(path);
    expect_same(encode(g, e, s, {}, nullptr), nearest);
    if (numel > 0) {  // an empty span of numbers means nearest
      expect_same(encode(g, e, s, numbers, nullptr), drawn);
      expect_same(encode(g, e, s, {}, &aligned), drawn);
      expect_same(encode(g, e, s, {}, &skewed), drawn_skewed);
    }
  }
}

TEST(QuantizeSum, MatchesTheDefinitionForAnySize) {
  for (const int bits : {8, 4, 2}) {
    for (const size_t numel : {0, 1, 2, 3, 5, 255, 256, 257, 511, 513, 1000, 4095, 4096}) {
      SCOPED_TRACE(concat(bits, " bits, ", numel, " elements"));
      check(heavy_tailed(numel, 20), {.bits = bits});
      check(normal(numel, 21), {.bits = bits, .feedback = false});
    }
  }
}

TEST(QuantizeSum, MatchesTheDefinitionForAnyValues) {
  for (const int bits : {8, 4, 2}) {
    for (const bool feedback : {true, false}) {
      const auto all = inputs(2 * 256 * 5 + 19);
      for (size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE(concat(bits, " bits, input ", i, feedback ? ", feedback" : ""));
        check(all[i], {.bits = bits, .feedback = feedback});
      }
    }
  }
}

TEST(QuantizeSum, MatchesTheDefinitionForAnyTypeBlockAndAddress) {
  for (const int bits : {8, 4, 2}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      check(heavy_tailed(2000, 30), {.bits = bits, .dtype = dtype});
      check(normal(4096, 31), {.bits = bits, .dtype = dtype, .feedback = false});
    }
    for (const size_t block : {8, 64, 128, 512, 4096}) {
      check(heavy_tailed(3001, 32), {.bits = bits, .block = block});
    }
    for (const size_t misalignment : {0, 1, 3, 8}) {
      check(heavy_tailed(1500, 33),
            {.bits = bits, .streaming = true, .misalignment = misalignment});
      check(heavy_tailed(1500, 34), {.bits = bits, .misalignment = misalignment});
      check(heavy_tailed(1500, 35), {.bits = bits, .feedback = false, .streaming = true});
    }
  }
}

/// The sum as a scalar loop: from 0 on, in the order of the parts.
std::vector<float> sum_of(const std::vector<std::vector<uint8_t>>& records, int bits, size_t block,
                          float factor, size_t numel) {
  const size_t scale_bytes = (numel + block - 1) / block * 4;
  std::vector<float> sum(numel);
  for (size_t i = 0; i < numel; ++i) {
    for (const std::vector<uint8_t>& record : records) {
      float scale;
      std::memcpy(&scale, record.data() + i / block * 4, 4);
      const int field = record[scale_bytes + i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
      const int code = field >= 1 << (bits - 1) ? field - (1 << bits) : field;
      const float value = static_cast<float>(code) * scale;
      sum[i] = sum[i] + value;
    }
    sum[i] = sum[i] * factor;
  }
  return sum;
}

TEST(DequantizeSum, AddsInRankOrder) {
  std::mt19937_64 random(40);
  for (const int bits : {8, 4, 2}) {
    for (const size_t numel : {0, 1, 7, 255, 256, 257, 1000, 4095, 4096}) {
      for (const size_t block : {256, 64}) {
        for (const size_t ranks : {0, 1, 2, 5}) {
          SCOPED_TRACE(concat(bits, " bits, ", numel, " by ", block, ", ", ranks, " ranks"));
          const size_t scales = (numel + block - 1) / block;
          std::vector<std::vector<uint8_t>> records(ranks);
          std::vector<cpu::EncodedBlocks> parts;
          for (std::vector<uint8_t>& record : records) {
            record.resize(scales * 4 + (numel * bits + 7) / 8);
            std::ranges::generate(record, [&] { return static_cast<uint8_t>(random()); });
            for (size_t i = 0; i < scales; ++i) {
              const float scale = i % 3 == 0 ? 0.0f : std::ldexp(1.0f + float(i) / 7, -int(i));
              std::memcpy(record.data() + 4 * i, &scale, 4);
            }
            const auto* bytes = reinterpret_cast<const std::byte*>(record.data());
            parts.push_back({bytes, bytes + 4 * scales});
          }
          const std::vector<float> expected = sum_of(records, bits, block, 0.3f, numel);
          for (const cpu::Isa path : isa_paths()) {
            const cpu::IsaLimit limit(path);
            for (const bool streaming : {false, true}) {
              std::vector<float> out(numel, -1.0f);
              cpu::dequantize_sum(
                  parts,
                  {.bits = bits, .block = block, .factor = 0.3f, .streaming = streaming}, out);
              for (size_t i = 0; i < numel; ++i) {
                ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
                    << name_of(path) << ", element " << i;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
