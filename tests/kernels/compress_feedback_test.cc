// What becomes of a residual, over all rows, on whatever device (compress_laws_test.cc).

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed + 100;

/// The rows that the device has, each with feedback and `options`.
std::vector<std::string> rows_with(const std::string& options) {
  std::vector<std::string> specs;
  for (const CompressorRow& row : compressor_registry()) {
#if defined(GRADWIRE_LAWS_ON_DEVICE)
    if (!row.on_cuda) {
      continue;
    }
#endif
    specs.push_back(with_feedback(row) + options);
  }
  return specs;
}

std::vector<std::byte> body_of(const std::vector<std::byte>& payload) {
  return {payload.begin() + sizeof(PayloadHeader), payload.end()};
}

// The definition: decay e in the place of e, and nothing else changes.
TEST(FeedbackLaws, AResidualThatDecaysIsASmallerResidual) {
  const std::vector<std::string> plain = rows_with(""), decaying = rows_with(",decay=0.7");
  for (size_t row = 0; row < plain.size(); ++row) {
    for (const DType dtype : kDTypes) {
      for (const size_t numel : odd_sizes()) {
        SCOPED_TRACE(concat(decaying[row], " ", to_string(dtype), " ", numel));
        const OwnedTensor g = tensor_of(layered(numel, kSeed), dtype);
        const std::vector<float> e = normal(numel, kSeed + 1, 0.5f);
        const std::vector<float> less = sum_of(std::vector<float>(numel, -0.0f), e, 0.7f);
        std::vector<float> e_next(numel), expected(numel);
        Rig rig(decaying[row], {.numel = numel, .dtype = dtype, .seed = kSeed});
        Rig reference(plain[row], {.numel = numel, .dtype = dtype, .seed = kSeed});
        EXPECT_EQ(body_of(rig.compress(g, e, e_next)),
                  body_of(reference.compress(g, less, expected)));
        EXPECT_TRUE(all_equal(e_next, expected));
      }
    }
  }
}

// What is never sent decays geometrically, and what is sent over all steps plus what is left is the
// gradients' sum with the weights that decay gives them.
TEST(FeedbackLaws, DecayForgetsGeometrically) {
  for (const std::string& spec : rows_with(",decay=0.8")) {
    if (keeps_velocity(spec)) {
      continue;  // whose law has the velocity in the gradient's place
    }
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 77;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    std::vector<float> e(numel), e_next(numel);
    std::vector<double> left(numel), size(numel);
    for (int step = 0; step < 6; ++step) {
      const std::vector<float> g = normal(numel, kSeed + static_cast<uint64_t>(step));
      const auto payload = rig.compress(tensor_of(g, DType::kFloat32), e, e_next);
      const std::vector<float> sent = rig.decompress({payload}).floats();
      for (size_t i = 0; i < numel; ++i) {
        left[i] = double{g[i]} + double{0.8f} * left[i] - double{sent[i]};
        size[i] += std::abs(double{g[i]}) + std::abs(double{sent[i]});
        ASSERT_NEAR(e_next[i], left[i], 4 * 0x1p-24 * size[i]) << "step " << step << ", " << i;
      }
      std::swap(e, e_next);
      rig.commit();
    }
  }
}

TEST(FeedbackLaws, AnythingInfiniteIsFlaggedWhateverBecomesOfTheResidual) {
  for (const std::string& spec : rows_with(",decay=0.5")) {
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 500;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    std::vector<float> g = normal(numel, kSeed), e = normal(numel, kSeed + 1), e_next(numel);
    const auto good = rig.compress(tensor_of(g, DType::kFloat32), e, e_next);
    EXPECT_EQ(flags_of(good), 0);
    const std::vector<float> expected = e_next;
    g[4099] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(flags_of(rig.compress(tensor_of(g, DType::kFloat32), e, e_next)), kFlagNonFinite);
    g[4099] = normal(numel, kSeed)[4099];
    EXPECT_EQ(rig.compress(tensor_of(g, DType::kFloat32), e, e_next), good)
        << "what was not committed changes nothing";
    EXPECT_TRUE(all_equal(e_next, expected));
  }
}

}  // namespace
}  // namespace gradwire::testing
