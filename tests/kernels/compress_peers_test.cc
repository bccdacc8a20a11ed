// Mistakes that were found in other projects' compressors, as tests of these. The rest of them is in
// tests/comm/reducer_peers_test.cc.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

std::vector<std::byte> payload_of(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kLawSeed});
  return rig.compress(tensor_of(values, DType::kFloat32), {}, {});
}

std::vector<float> round_trip(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kLawSeed});
  return rig.decompress({rig.compress(tensor_of(values, DType::kFloat32), {}, {})}).floats();
}

// DeepSpeed's 1-bit optimizers scale signs by |x|_2 / sqrt(n), here 2.74. What is nearest to x among all
// multiples of its signs, and contracts, is the mean magnitude (Karimireddy et al., arXiv:1901.09847).
TEST(Peers, SignsAreScaledByTheMeanMagnitude) {
  const std::vector<std::byte> payload = payload_of("1bit", {-1, 2, 3, -4});
  ASSERT_EQ(payload.size(), 32u + 4 + 1);
  const std::byte expected[] = {std::byte{0}, std::byte{0}, std::byte{0x20}, std::byte{0x40},  // 2.5f
                                std::byte{0b1001}};  // the first and the fourth are minus
  EXPECT_TRUE(std::equal(payload.begin() + 32, payload.end(), std::begin(expected)));
  EXPECT_TRUE(all_equal(round_trip("1bit", {-1, 2, 3, -4}), std::vector<float>{-2.5, 2.5, 2.5, -2.5}));
}

// GRACE sends a sign, and a value of TernGrad, as a byte: its 1-bit and 2-bit methods compress to a quarter.
TEST(Peers, NarrowCodesArePackedOnTheWire) {
  for (const size_t numel : {size_t{1}, size_t{7}, size_t{4096}, size_t{100'003}}) {
    for (const auto& [spec, bits] :
         {std::pair{"1bit", 1}, {"2bit", 2}, {"ternary", 2}, {"qsgd:1", 2}, {"int4", 4}, {"qsgd:7", 4}}) {
      size_t bytes = 32;  // header; then for each chunk a scale per block of 256, and codes
      for (size_t begin = 0; begin < numel; begin += 4096) {
        const size_t len = std::min<size_t>(4096, numel - begin);
        bytes += 4 * ((len + 255) / 256) + (len * static_cast<size_t>(bits) + 7) / 8;
      }
      EXPECT_EQ(payload_of(spec, normal(numel, kLawSeed)).size(), bytes) << spec << " " << numel;
    }
  }
}

// GRACE's QSGD divides by the norm of a gradient that may be zero: its zeros arrive as NaN.
TEST(Peers, ABlockOfZerosArrivesAsZeros) {
  std::vector<float> x = normal(3 * 256, kLawSeed);
  std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    EXPECT_EQ(flags_of(payload_of(spec, x)), 0);
    const std::vector<float> decoded = round_trip(spec, x);
    const auto zeros = std::span(decoded).subspan(256, 256);
    if (parse_spec(spec).codec.block <= 256) {  // else the block holds others too
      EXPECT_TRUE(all_equal(zeros, std::vector<float>(256)));
    }
    for (const float value : decoded) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// Residuals of GRACE and of DDP's PowerSGD hook take in a NaN and keep it for ever; DeepSpeed's LoCo has
// to delete them when a loss scaler meets an overflow.
TEST(Peers, AStepThatIsNotCommittedLeavesNoTrace) {
  const size_t numel = 2 * kChunk + 5;
  const OwnedTensor good = tensor_of(normal(numel, kLawSeed), DType::kFloat32);
  const OwnedTensor other = tensor_of(heavy_tailed(numel, kLawSeed + 1), DType::kFloat32);
  std::vector<float> values = normal(numel, kLawSeed + 1);
  values[kChunk] = std::numeric_limits<float>::quiet_NaN();
  const OwnedTensor bad = tensor_of(values, DType::kFloat32);
  const std::vector<float> e = normal(numel, kLawSeed + 2, 0.1f);
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    std::vector<float> e_next(numel), expected_next(numel);
    Rig clean(spec, {.numel = numel, .seed = kLawSeed});
    Rig rig(spec, {.numel = numel, .seed = kLawSeed});
    for (int step = 0; step < 2; ++step) {
      const auto expected = clean.compress(good, e, expected_next);
      EXPECT_EQ(flags_of(rig.compress(bad, e, e_next)), kFlagNonFinite);
      EXPECT_EQ(flags_of(rig.compress(other, e, e_next)), 0);  // as if its exchange had failed
      EXPECT_EQ(rig.compress(good, e, e_next), expected) << "in step " << step;
      EXPECT_TRUE(all_equal(e_next, expected_next));
      clean.commit();
      rig.commit();
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
