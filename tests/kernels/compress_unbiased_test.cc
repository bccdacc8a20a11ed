// What is rounded by chance: right on the average, and with the variance that theory has.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/kernels/compress_cases.h"

namespace gradwire::testing {
namespace {

constexpr size_t kBlock = 256;
constexpr size_t kBlocks = 400;

std::vector<float> round_trip(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kLawSeed});
  return rig.decompress({rig.compress(tensor_of(values, DType::kFloat32), {}, {})}).floats();
}

/// What 102,000 draws of `value` decode to, beside one element of 1 in every block.
struct Draws {
  Draws(const std::string& spec, float value) {
    std::vector<float> x(kBlock * kBlocks, value);
    for (size_t i = 0; i < x.size(); i += kBlock) {
      x[i] = 1.0f;
    }
    const std::vector<float> decoded = round_trip(spec, x);
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % kBlock != 0) {
        all.push_back(decoded[i]);
        mean += decoded[i];
        square_error += std::pow(double{decoded[i]} - value, 2);
      }
    }
    mean /= static_cast<double>(all.size());
    square_error /= static_cast<double>(all.size());
    low = *std::ranges::min_element(all);
    high = *std::ranges::max_element(all);
  }
  std::vector<double> all;
  double mean = 0, square_error = 0, low, high;
};

struct Claim {
  const char* spec;
  double variance;  // E |Q(x) - x|^2 <= variance * x^2 where x is a value's own size
};

// Neighbours k and k + 1 units of x's binade: (k + 1 - x)(x - k) / x^2 is at most 1 / (4 k (k + 1)),
// and k is 2^mantissa bits or more.
// Of powers of two: 1 / 8 (Horvath et al., arXiv:1905.10988).
constexpr Claim kClaims[] = {
    {"e4m3,stochastic", 1.0 / 288}, {"e5m2,stochastic", 1.0 / 80}, {"natural", 1.0 / 8}};

constexpr float kValues[] = {0.3f, -0.3f, 0.013f, 0.77f, -0.999f, 0.0417f, 1.0f / 3};

/// Of every row that rounds by chance, or can: what it rounds so.
std::vector<std::string> rounding_specs() {
  std::vector<std::string> specs;
  for (const CompressorRow& row : compressor_registry()) {
    const std::string name(row.name);
    if (row.takes_rounding) {
      specs.push_back(name + ",stochastic");
    } else if (row.takes_levels) {  // codes of 2, 4 and 8 bits
      specs.insert(specs.end(), {name + ":1", name + ":5", name + ":100,block=4096"});
    } else if (row.codec.rounding == Rounding::kStochastic) {
      specs.push_back(name);
    }
  }
  return specs;
}

/// Those, and rows that choose elements by chance and scale them up.
std::vector<std::string> unbiased_specs() {
  std::vector<std::string> specs = rounding_specs();
  for (const CompressorRow& row : compressor_registry()) {
    if (row.shared_choice()) {
      specs.push_back(concat(row.name, ":30%,noef"));
    }
  }
  return specs;
}

TEST(StochasticCodes, AreUnbiased) {
  std::vector<std::string> specs = rounding_specs();
  specs.insert(specs.end(), {"topk:100%,int8,stochastic", "topk:100%,ternary", "topk:100%,natural",
                             "topk:100%,qsgd:5", "topk:100%,e4m3,stochastic",
                             "randomk:4096/4096,int4,stochastic"});
  for (const std::string& spec : specs) {
    for (const float value : kValues) {
      SCOPED_TRACE(concat(spec, " ", value));
      const Draws draws(spec, value);
      for (const double x : draws.all) {  // the two neighbours of the value, and nothing else
        ASSERT_TRUE(x == draws.low || x == draws.high) << x;
      }
      ASSERT_LE(draws.low, value);
      ASSERT_GE(draws.high, value);
      // Five standard deviations: a chance below 1 in a million for each, and the seed is fixed. The
      // numbers drawn have 16 bits.
      const double variance = (draws.high - value) * (value - draws.low);
      EXPECT_NEAR(draws.mean, value,
                  5 * std::sqrt(variance / static_cast<double>(draws.all.size())) +
                      (draws.high - draws.low) * 0x1p-16);
    }
  }
}

/// How far the mean of what `spec` makes of a gradient is off, in three directions: along the gradient
/// (does it shrink?), along random signs and along all ones.
struct Bias {
  double along[3], error[3];  ///< over |x|; and its standard error

  /// In standard errors; what is always the same is off by many or by none.
  double largest_z() const {
    double z = 0;
    for (int d = 0; d < 3; ++d) {
      z = std::max(z, std::abs(along[d]) / std::max(error[d], 1e-7));
    }
    return z;
  }
};

Bias bias_of(const std::string& spec) {
  constexpr int kRounds = 400;  // 204,800 draws
  const std::vector<float> x = normal(512, kLawSeed);
  const std::vector<float> random = normal(x.size(), kLawSeed + 1);
  const double norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  Rig rig(spec, {.numel = x.size(), .seed = kLawSeed});
  const OwnedTensor g = tensor_of(x, DType::kFloat32);
  double sum[3] = {}, squares[3] = {};
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<float> decoded = rig.decompress({rig.compress(g, {}, {})}).floats();
    rig.commit();
    double off[3] = {};
    for (size_t i = 0; i < x.size(); ++i) {
      const double by = (double{decoded[i]} - x[i]) / norm;
      off[0] += by * x[i] / norm;
      off[1] += random[i] > 0 ? by : -by;
      off[2] += by;
    }
    for (int d = 0; d < 3; ++d) {
      sum[d] += off[d];
      squares[d] += off[d] * off[d];
    }
  }
  Bias bias;
  for (int d = 0; d < 3; ++d) {
    bias.along[d] = sum[d] / kRounds;
    const double variance = std::max(0.0, squares[d] / kRounds - bias.along[d] * bias.along[d]);
    bias.error[d] = std::sqrt(variance / (kRounds - 1));
  }
  return bias;
}

/// What |z| exceeds by chance in one of `comparisons` with a probability of 0.1% (Bonferroni).
double bonferroni_z(size_t comparisons) {
  double z = 0;
  while (std::erfc(z / std::sqrt(2.0)) * static_cast<double>(comparisons) > 1e-3) {
    z += 0.001;
  }
  return z;
}

TEST(UnbiasedRows, GiveTheGradientInTheMean) {
  const std::vector<std::string> specs = unbiased_specs();
  const double z = bonferroni_z(3 * specs.size());
  for (const std::string& spec : specs) {
    const Bias bias = bias_of(spec);
    EXPECT_LE(bias.largest_z(), z) << spec;
    EXPECT_LE(z * bias.error[0], 0.06) << spec << ": a gradient 6% short would pass";
  }
}

TEST(UnbiasedRows, AreAllThatSayTheyAre) {
  const std::vector<std::string> specs = unbiased_specs();
  for (const CompressorRow& row : compressor_registry()) {
    if (row.summary.find("unbiased") != std::string_view::npos) {
      EXPECT_TRUE(std::ranges::any_of(specs, [&](const std::string& spec) {
        return parse_spec(spec).name == row.name;
      })) << row.name;
    }
  }
}

TEST(UnbiasedRows, AreToldFromBiasedOnes) {
  for (const char* spec : {"2bit", "int4", "1bit", "bf16", "topk:30%", "randomk:30%"}) {
    EXPECT_GT(bias_of(spec).largest_z(), bonferroni_z(100)) << spec;
  }
}

TEST(StochasticCodes, HaveTheVarianceOfTheory) {
  for (const Claim& claim : kClaims) {
    double worst = 0;
    for (float value = 0.3f; value < 0.6f; value += 0.0071f) {
      const Draws draws(claim.spec, value);
      const double relative = draws.square_error / (double{value} * value);
      EXPECT_LE(relative, 1.02 * claim.variance) << claim.spec << " " << value;
      worst = std::max(worst, relative);
    }
    EXPECT_GT(worst, 0.7 * claim.variance) << claim.spec << ": the bound says nothing";
  }
}

TEST(StochasticCodes, AreDrawnByTheElementWhateverElseIsChosen) {
  std::vector<float> x = normal(10 * kChunk, kLawSeed);
  for (size_t i = 0; i < x.size(); i += kChunk) {
    x[i] = 8.0f;  // all chunks have one scale
  }
  const std::vector<float> all = round_trip("topk:100%,int8,stochastic", x);
  for (const char* few : {"topk:0.1%,int8,stochastic", "topk:2%,int8,stochastic",
                          "chunktopk:3/4096,int8,stochastic"}) {
    const std::vector<float> sent = round_trip(few, x);
    size_t seen = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(sent[i] == 0 || sent[i] == all[i]) << few << " element " << i;
      seen += sent[i] != 0 ? 1 : 0;
    }
    EXPECT_GE(seen, 30u);
  }
}

TEST(StochasticCodes, AreTheSameForAllWhoMeet) {
  const size_t numel = 3 * kChunk;
  const char* const spec = "topk:50%,ternary";
  Rig one(spec, {.numel = numel, .seed = kLawSeed, .rank = 0});
  Rig two(spec, {.numel = numel, .seed = kLawSeed, .rank = 1});
  const OwnedTensor g = tensor_of(normal(numel, kLawSeed), DType::kFloat32);
  const std::vector<std::byte> a = one.compress(g, {}, {}), b = two.compress(g, {}, {});
  EXPECT_NE(a, b);
  const auto merged = [&](Rig& rig, uint32_t meeting) {
    std::vector<std::byte> out(rig.compressor().capacity_bytes());
    const ConstPayload parts[] = {a, b};
    Context context = rig.context();
    rig.compressor().merge({.slices = parts, .region = {0, numel}, .meeting = meeting}, {}, out,
                           context);
    context.stream.wait();
    out.resize(payload_bytes(out));
    return out;
  };
  EXPECT_EQ(merged(one, 7), merged(two, 7));
  EXPECT_NE(merged(one, 7), merged(one, 8));
  EXPECT_NE(merged(one, 0), merged(two, 0));
}

/// The mean of |Q(x) - x|^2 over `rounds` steps.
double square_error(const std::string& spec, const std::vector<float>& x, int rounds) {
  Rig rig(spec, {.numel = x.size(), .seed = kLawSeed});
  const OwnedTensor g = tensor_of(x, DType::kFloat32);
  double error = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::vector<float> decoded = rig.decompress({rig.compress(g, {}, {})}).floats();
    for (size_t j = 0; j < x.size(); ++j) {
      error += std::pow(double{decoded[j]} - x[j], 2) / rounds;
    }
    rig.commit();
  }
  return error;
}

/// The sum over elements whose neighbours are the multiples of `unit` around them.
double expected_error(std::span<const float> x, double unit) {
  double sum = 0;
  for (const float value : x) {
    const double units = std::abs(double{value}) / unit;
    sum += (units - std::floor(units)) * (std::floor(units) + 1 - units) * unit * unit;
  }
  return sum;
}

TEST(StochasticCodes, HaveTheVarianceOfTheirPapers) {
  constexpr int kRounds = 400;  // 204,800 draws
  const std::vector<float> x = normal(512, kLawSeed);
  double squares = 0, largest = 0;
  for (const float value : x) {
    squares += double{value} * value;
    largest = std::max(largest, std::abs(double{value}));
  }
  // TernGrad: sum of |x| (s - |x|).
  const double ternary = square_error("ternary,block=512", x, kRounds);
  EXPECT_NEAR(ternary / expected_error(x, largest), 1.0, 0.03);
  for (const int levels : {1, 3, 16, 100}) {
    const double error = square_error(concat("qsgd:", levels, ",block=512"), x, kRounds);
    EXPECT_NEAR(error / expected_error(x, std::sqrt(squares) / levels), 1.0, 0.03) << levels;
    const double n = 512.0;  // QSGD, lemma 3.1
    EXPECT_LE(error, std::min(n / (levels * levels), std::sqrt(n) / levels) * squares) << levels;
  }
}

}  // namespace
}  // namespace gradwire::testing
