// Gradients accumulated straight into the residual, on whatever device (compress_laws_test.cc).

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"
#include "tests/support/isa_paths.h"
#include "tests/support/sampling.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed;

std::vector<cpu::Isa> paths() {
#if defined(GRADWIRE_LAWS_ON_DEVICE)
  return {cpu::Isa::kPlain};
#else
  const auto all = isa_paths();
  return {all.begin(), all.end()};
#endif
}

/// Bit for bit where the law of error feedback is exact, else to one rounding of what was added.
void expect_given_back(const std::string& spec, std::span<const float> x,
                       std::span<const float> before, std::span<const float> taken) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (is_exact(spec)) {
      ASSERT_EQ(x[i], before[i]) << "element " << i;
    } else {
      ASSERT_NEAR(x[i], before[i], 0x1p-23 * (std::abs(taken[i]) + std::abs(before[i])))
          << "element " << i;
    }
  }
}

TEST(AccumulatedLaws, AccumulatedGradientsGiveTheSamePayloadAndResidual) {
  for (const std::string& spec : sample_of_each(accumulating_specs())) {
    for (const size_t numel : odd_sizes()) {
      for (const cpu::Isa path : paths()) {
        SCOPED_TRACE(concat(spec, " ", numel, " ", name_of(path)));
        const cpu::IsaLimit limit(path);
        Rig rig(spec, {.numel = numel, .seed = kSeed});
        OwnedTensor g = tensor_of(layered(numel, kSeed), DType::kFloat32);
        const std::vector<float> e = normal(numel, kSeed + 1, 0.1f);
        std::vector<float> e_next(numel);
        const auto expected = rig.compress(g, e, e_next);
        const std::vector<float> before = sum_of(g.floats(), e);
        std::vector<float> memory(numel + 2, 7.0f);
        const auto x = std::span(memory).subspan(1, numel);
        std::ranges::copy(before, x.begin());
        const auto payload = rig.compress_accumulated(x);
        EXPECT_EQ(payload, expected);
        EXPECT_TRUE(all_equal(x, e_next));
        const std::vector<float> left(x.begin(), x.end());
        rig.restore(payload, x);
        expect_given_back(spec, x, before, left);
        EXPECT_EQ(memory.front(), 7.0f);
        EXPECT_EQ(memory.back(), 7.0f);
      }
    }
  }
}

TEST(AccumulatedLaws, SlicesRestoreTheirRegions) {
  for (const std::string& spec : accumulating_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = 5 * kChunk + 33;
    Rig rig(spec, {.numel = numel, .seed = kSeed}, 3);
    const std::vector<float> before = heavy_tailed(numel, kSeed);
    std::vector<float> whole = before;
    const auto payload = rig.compress_accumulated(whole);
    std::vector<float> parts = whole;
    rig.restore(payload, whole);
    for (const Region region : tiles(numel, 2)) {
      rig.restore(rig.slice(payload, region), parts);
    }
    EXPECT_TRUE(all_equal(parts, whole));
  }
}

TEST(AccumulatedLaws, AccumulatedNonFiniteGradientsStay) {
  for (const std::string& spec : accumulating_specs()) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      SCOPED_TRACE(concat(spec, " ", bad));
      const size_t numel = 3 * kChunk + 300;
      Rig rig(spec, {.numel = numel, .seed = kSeed});
      std::vector<float> before = normal(numel, kSeed);
      before[kChunk + 700] = bad;
      before[numel - 1] = -bad;
      std::vector<float> x = before;
      const auto payload = rig.compress_accumulated(x);
      EXPECT_EQ(flags_of(payload), kFlagNonFinite);
      rig.restore(payload, x);
      for (const size_t i : {kChunk + 700, numel - 1}) {
#if defined(GRADWIRE_LAWS_ON_DEVICE)  // a GPU's additions have one NaN of their own
        EXPECT_TRUE(std::isnan(before[i]) ? std::isnan(x[i]) : x[i] == before[i]) << x[i];
#else
        EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(before[i]));
#endif
        x[i] = before[i] = 0.0f;
      }
      const std::vector<float> at_most(numel, 4.0f);  // was left for a moment
      expect_given_back(spec, x, before, at_most);
    }
  }
}

TEST(AccumulatedLaws, WhatDecaysCannotBeAccumulated) {
  Rig rig("topk:5%,decay=0.5", {.numel = 100});
  std::vector<float> x(100, 1.0f);
  for (const bool restoring : {false, true}) {
    try {
      restoring ? rig.restore(std::vector<std::byte>(64), x) : (void)rig.compress_accumulated(x);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), "topk: decay is 0.5, must be 1 where gradients are accumulated "
                                 "into the residual, which cannot decay then");
    }
  }
  EXPECT_EQ(x, std::vector<float>(100, 1.0f));
}

TEST(AccumulatedLaws, WhatWasSentCannotBeAccumulated) {
  Rig rig("int8,ef21", {.numel = 100});
  std::vector<float> x(100, 1.0f);
  try {
    static_cast<void>(rig.compress_accumulated(x));
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "int8: ef21 is on, must be off where gradients are accumulated into "
                               "the residual");
  }
}

TEST(AccumulatedLaws, WhatIsKeptInFewerBitsCannotBeAccumulated) {
  Rig rig("int8,residual=bf16", {.numel = 100});
  std::vector<float> x(100, 1.0f);
  try {
    static_cast<void>(rig.compress_accumulated(x));
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "int8: residual is bfloat16, must be float32 where gradients are "
                 "accumulated into the residual");
  }
  EXPECT_EQ(x, std::vector<float>(100, 1.0f));
}

/// A velocity needs the gradient apart from what is accumulated.
bool refuses(Rig& rig, std::span<float> x) {
  try {
    static_cast<void>(rig.compress_accumulated(x));
    return false;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(": keeps a velocity"), std::string::npos);
    return true;
  }
}

TEST(AccumulatedLaws, AccumulatingWithoutFeedbackIsRefused) {
  for (const CompressorRow& row : all_rows()) {
    Rig rig(std::string(row.example) + ",noef", {.numel = 100});
    std::vector<float> x(100);
    const std::string expected =
        std::string(row.name) +
        ": error feedback is off, must be on where gradients are accumulated into the residual";
    for (const bool restoring : {false, true}) {
      try {
        restoring ? rig.restore(std::vector<std::byte>(64), x) : (void)rig.compress_accumulated(x);
        ADD_FAILURE() << "no error";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.what(), expected);
      }
    }
    if (!row.keeps_velocity()) {
      Rig with(with_feedback(row) + ",momentum=0.5", {.numel = 100});
      EXPECT_TRUE(refuses(with, x));
    }
    if (row.feedback.on) {
      Rig with(std::string(row.example), {.numel = 100});
      EXPECT_EQ(refuses(with, x), row.keeps_velocity());
      EXPECT_THROW(with.compress_accumulated(std::span(x).first(99)), InvalidArgument);
      EXPECT_THROW(with.compress_accumulated({}), InvalidArgument);
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
