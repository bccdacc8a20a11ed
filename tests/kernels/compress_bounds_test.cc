// How much of a gradient is lost at most: |x - C(x)|^2 <= bound |x|^2, for every row of the registry and
// in the mean over draws where it draws. The bounds are written here, from the papers or from what
// rounding can do, or in the row; inputs are random ones and the worst there are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/compress_cases.h"

namespace gradwire::testing {
namespace {

constexpr size_t kNumel = 2 * kChunk + 512;
constexpr int kDraws = 40;

/// n values of which none is off by more than `half` times the largest, nor by more than itself.
/// Their error is most where the largest stands alone and all others are off by `half`.
double off_by_half_a_step(double half, double n) {
  return n * half * half / (1 + (n - 1) * half * half);
}

/// Floats whose neighbours are apart by at most 2 u of their size, or 2 `smallest` of the largest.
double off_by_rounding(double u, double smallest, double n) {
  return u * u + n * smallest * smallest;
}

/// Multiples of 1 / q of the largest, drawn without bias. Within a cell between k and k + 1, k >= 1, the
/// variance is at most 1 / 8 of the square (k = 1), anywhere a quarter of the cell's; in the first cell
/// N = (n - 1) / q^2 decides. q = 1 is TernGrad, with (sqrt(n) - 1) / 2.
double drawn_variance(double q, double n) {
  const double cells = (n - 1) / (q * q);
  return std::min(cells / 4, std::max(0.125, (std::sqrt(1 + cells) - 1) / 2));
}

/// Of n values that share a scale.
double rounding_bound(const CompressorSpec& spec, double n) {
  const bool drawn = spec.codec.rounding == Rounding::kStochastic;
  const double rounded_up = find_compressor(spec.name).selector() ? 1.008 : 1;  // their scales, to bf16
  const double q = std::pow(2.0, value_bits(spec.codec.values, DType::kFloat32) - 1) - 1;
  if (spec.codec.levels > 0) {  // Alistarh et al., arXiv:1610.02132, lemma 3.1
    return std::min(n / std::pow(spec.codec.levels, 2), std::sqrt(n) / spec.codec.levels);
  }
  if (find_compressor(spec.name).most_lost > 0) {
    return find_compressor(spec.name).most_lost;
  }
  switch (spec.codec.values) {
    case ValueCodec::kRaw:
    case ValueCodec::kFloat32:
      return 0;
    case ValueCodec::kFloat16:  // IEEE 754: 11 bits
      return off_by_rounding(0x1p-11, 0, n);
    case ValueCodec::kBFloat16:
      return off_by_rounding(0x1p-8, 0, n);
    case ValueCodec::kE4M3:  // OFP8: 4 bits, subnormals 2^-9 apart below a largest of 448
      return off_by_rounding(drawn ? std::sqrt(1.0 / 288) : 0x1p-4, 1.01 * 0x1p-10 / 448, n);
    case ValueCodec::kE5M2:
      return off_by_rounding(drawn ? std::sqrt(1.0 / 80) : 0x1p-3, 1.01 * 0x1p-17 / 57344, n);
    case ValueCodec::kPowerOfTwo:  // Horvath et al., arXiv:1905.10988, theorem 2.1
      return 1.0 / 8;
    case ValueCodec::kSign:  // Karimireddy et al., arXiv:1901.09847, lemma 8, with |x|_1 >= |x|_2
      return 1 - 1 / n;
    case ValueCodec::kInt8:
    case ValueCodec::kInt4:
    case ValueCodec::kInt2:
      return drawn ? drawn_variance(q / rounded_up, n) : off_by_half_a_step(rounded_up / (2 * q), n);
  }
  ADD_FAILURE() << to_string(spec) << ": no bound is known for its values, expected one here";
  return 0;
}

/// Of |x|^2, for a payload with `entries` of `numel` elements.
double loss_bound(const CompressorSpec& spec, size_t numel, size_t entries) {
  const CompressorRow& row = find_compressor(spec.name);
  if (!row.selector()) {
    return rounding_bound(spec, spec.codec.block);
  }
  // Stich et al., arXiv:1809.07599, lemma A.1: 1 - k / n, of the largest as of random ones in the mean.
  // What threshold sends varies; as many of the largest would be the same elements.
  const double n = static_cast<double>(numel);
  const double kept =
      row.name == "threshold" ? static_cast<double>(entries) / n : spec.choice.density;
  const double in_a_chunk = std::min<double>(kChunk, std::ceil(1.25 * spec.choice.density * n));
  // What is left out is lost whole, what is sent by the rounding's share; of a share above 1 most is
  // lost where everything is sent.
  const double share = rounding_bound(spec, in_a_chunk);
  return share > 1 ? share : 1 - kept * (1 - share);
}

struct Loss {
  double mean = 0, error = 0;  ///< of |x - C(x)|^2 / |x|^2, and the standard error of that mean
  size_t entries = 0;          ///< non-zero elements, at least, of a payload
};

Loss measure(const std::string& spec, const std::vector<float>& x) {
  Rig rig(spec, {.numel = x.size(), .seed = kLawSeed});
  const OwnedTensor g = tensor_of(x, DType::kFloat32);
  const bool drawn = is_stochastic(spec) || draws_elements(spec);
  double norm = 0, sum = 0, squares = 0;
  for (const float value : x) {
    norm += double{value} * value;
  }
  Loss loss{.entries = x.size()};
  const int draws = drawn ? kDraws : 1;
  for (int i = 0; i < draws; ++i) {
    const std::vector<float> sent = rig.decompress({rig.compress(g, {}, {})}).floats();
    double lost = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      lost += std::pow(double{x[j]} - sent[j], 2) / norm;
    }
    sum += lost;
    squares += lost * lost;
    loss.entries = std::min<size_t>(loss.entries, sent.size() - std::ranges::count(sent, 0.0f));
    if (drawn) {
      rig.commit();
    }
  }
  loss.mean = sum / draws;
  loss.error = drawn ? std::sqrt(std::max(0.0, squares / draws - loss.mean * loss.mean) / (draws - 1)) : 0;
  return loss;
}

/// One element of each block is 1, all others are `rest`, signs alternating.
std::vector<float> spikes(size_t block, float rest) {
  std::vector<float> x(kNumel);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = (i % block == 0 ? 1.0f : rest) * (i % 2 == 0 ? 1.0f : -1.0f);
  }
  return x;
}

/// What is worst for something: half a step of 8, 4 and 2 bits, halfway between floats of 2, 3, 7 and 10
/// mantissa bits and between powers of two, what TernGrad is furthest from, all alike, one alone.
constexpr float kRests[] = {0.0f,     0.49f / 127, 0.49f / 7, 0.499f,          0.5625f,
                            0.53125f, 1.0f / 3,    0.0588f,   0.5f + 0x1p-9f, 0.5f + 0x1p-12f,
                            0.2615f,  0.01538f,    1.0f};

std::vector<std::vector<float>> inputs(const std::string& spec) {
  std::vector<std::vector<float>> all = {normal(kNumel, kLawSeed), heavy_tailed(kNumel, kLawSeed)};
  if (!spec.starts_with("fp16")) {  // whose smallest numbers are no smaller for smaller gradients
    all.push_back(layered(kNumel, kLawSeed));
  }
  for (const float rest : kRests) {
    all.push_back(spikes(parse_spec(spec).codec.block, rest));
  }
  return all;
}

TEST(Bounds, NoCompressorLosesMoreThanTheoryAllows) {
  for (const std::string& text : all_specs()) {
    SCOPED_TRACE(text);
    const CompressorSpec spec = parse_spec(text);
    if (keeps_velocity(text) && !find_compressor(spec.name).keeps_velocity()) {
      continue;  // what is sent is of the velocity
    }
    double closest = 0;
    for (const std::vector<float>& x : inputs(text)) {
      const Loss loss = measure(text, x);
      const double bound = loss_bound(spec, x.size(), loss.entries);
      // Five standard errors of what was drawn, and the float32 of scales and products.
      EXPECT_LE(loss.mean, bound * (1 + 1e-4) + 5 * loss.error + 1e-12);
      closest = std::max(closest, loss.mean / bound);
    }
    const bool both = find_compressor(spec.name).selector() && is_stochastic(text);
    if (loss_bound(spec, kNumel, 1) > 0 && !both) {  // no input is the worst for choice and rounding
      EXPECT_GT(closest, 0.2) << "the bound says nothing";
    }
  }
}

TEST(Bounds, AThresholdSendsAboutAsManyAsAskedFor) {  // Li and Hoefler, arXiv:2201.07598: 4/5 to 5/4
  for (const double density : {0.01, 0.3}) {
    const size_t sent = measure(concat("threshold:", density), normal(kNumel, kLawSeed)).entries;
    EXPECT_GE(static_cast<double>(sent), 0.8 * density * kNumel);
    EXPECT_LE(static_cast<double>(sent), 1.25 * density * kNumel + 1);
  }
}

}  // namespace
}  // namespace gradwire::testing
