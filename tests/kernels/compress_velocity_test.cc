// Velocities in the gradient's place, over all rows, on whatever device (compress_laws_test.cc):
// momentum with masking, and EF21-SGDM.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 230515155;

/// The rows that take a momentum of any kind, with feedback and `options`.
std::vector<std::string> rows_with(const std::string& options) {
  std::vector<std::string> specs;
  for (const CompressorRow& row : all_rows()) {
    if (!row.keeps_velocity()) {
      specs.push_back(with_feedback(row) + options);
    }
  }
  return specs;
}

bool selects(const std::string& spec) { return find_compressor(parse_spec(spec).name).selector(); }

std::vector<std::byte> body_of(const std::vector<std::byte>& payload) {
  return {payload.begin() + sizeof(PayloadHeader), payload.end()};
}

TEST(VelocitySpec, SaysWhatItCannotBe) {
  const auto parse_error = [](const char* text) -> std::string {
    try {
      parse_spec(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(parse_error("int8,momentum=-0.1"), "int8: momentum is -0.1, must be in [0, 1)");
  EXPECT_EQ(parse_error("fp16,momentum=0.9"),
            "fp16: momentum is 0.9, must be 0 without error feedback: there is no residual that "
            "accumulates a velocity");
  EXPECT_EQ(parse_error("topk:1%,ef21,momentum=0.5"),
            "topk: momentum is 0.5, must be 0 with ef21, whose velocity has an eta");
  EXPECT_EQ(parse_error("topk:1%,eta=0.5"), "topk: eta is 0.5, must be 1 without ef21");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=0"), "topk: eta is 0, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=nan"), "topk: eta is nan, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,momentum=0.99999999999999"),
            "topk: momentum is 0.99999999999999 and 1 as float32, must be in [0, 1)");
  EXPECT_EQ(parse_error("topk:1%,momentum=1e-50"),
            "topk: momentum is 1e-50 and 0 as float32, must stay above 0 or be 0");
  EXPECT_EQ(parse_error("topk:1%,decay=1e-50"),
            "topk: decay is 1e-50 and 0 as float32, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=1e-50"),
            "topk: eta is 1e-50 and 0 as float32, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=1e-9"),
            "topk: eta is 1e-09 and 1 - eta is 1 as float32, must be below 1");
  EXPECT_EQ(parse_error("topk:1%,decay=0.99999999999999"), "no error");
  EXPECT_EQ(parse_error("topk:1%,momentum=0.9999999"), "no error");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=1e-7"), "no error");
  EXPECT_EQ(parse_error("topk:1%,ef21,eta=0.5,eta=0.4"),
            "topk: option 'eta=0.4' decides again what an earlier option decided");
}

// u = M u + g, e + u = D + e_next, u = 0 where a selector sent, as a loop in float64.
TEST(VelocityLaws, MomentumIsAccumulatedAndForgottenWhereItWasSent) {
  for (const char* options : {",momentum=0.8", ",momentum=0.8,decay=0.9"}) {
    for (const std::string& spec : rows_with(options)) {
      SCOPED_TRACE(spec);
      const size_t numel = kChunk + 77;
      const double decay = parse_spec(spec).feedback.decay;
      Rig rig(spec, {.numel = numel, .segments = {{0, 0, 4000, 40}, {1, 0, 173}}, .seed = kSeed});
      std::vector<float> e(numel), e_next(numel);
      std::vector<double> u(numel), left(numel), size(numel);
      for (int step = 0; step < 6; ++step) {
        const std::vector<float> g = normal(numel, kSeed + static_cast<uint64_t>(step));
        const auto payload = rig.compress(tensor_of(g, DType::kFloat32), e, e_next);
        const std::vector<float> sent = rig.decompress({payload}).floats();
        for (size_t i = 0; i < numel; ++i) {
          u[i] = double{0.8f} * u[i] + double{g[i]};
          left[i] = static_cast<float>(decay) * left[i] + u[i] - double{sent[i]};
          size[i] += std::abs(u[i]) + std::abs(double{sent[i]}) + std::abs(left[i]);
          ASSERT_NEAR(e_next[i], left[i], 8 * 0x1p-24 * size[i]) << "step " << step << ", " << i;
          u[i] = selects(spec) && sent[i] != 0 ? 0 : u[i];
        }
        std::swap(e, e_next);
        rig.commit();
        const std::vector<float> velocity = rig.velocity();
        for (size_t i = 0; i < numel; ++i) {
          ASSERT_NEAR(velocity[i], u[i], 8 * 0x1p-24 * size[i]) << "step " << step << ", " << i;
          ASSERT_EQ(velocity[i] == 0, u[i] == 0) << "step " << step << ", " << i;
        }
      }
    }
  }
}

// The definitions: u, or v, in the gradient's place, and nothing else changes.
TEST(VelocityLaws, AVelocityTakesTheGradientsPlace) {
  for (const auto& [with, without, kept, taken] :
       {std::tuple{",momentum=0.7", "", 0.7f, 1.0f}, {",ef21,eta=0.25", ",ef21", 0.75f, 0.25f}}) {
    for (const CompressorRow& row : all_rows()) {
      if (row.keeps_velocity()) {
        continue;
      }
      const std::string base =
          std::string(without).empty() ? with_feedback(row) : std::string(row.example);
      const std::string spec = base + with;
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        if (dtype != DType::kFloat32 && row.codec.values == ValueCodec::kRaw) {
          continue;  // which sends the gradient's own type
        }
        SCOPED_TRACE(concat(spec, " ", to_string(dtype)));
        const size_t numel = 2 * kChunk + 300;
        Rig rig(spec, {.numel = numel, .dtype = dtype, .seed = kSeed});
        const OwnedTensor g = tensor_of(layered(numel, kSeed), dtype);
        const std::vector<float> e = normal(numel, kSeed + 1, 0.5f), u = normal(numel, kSeed + 2);
        std::vector<float> e_next(numel), expected(numel), next(numel);
        rig.set_velocity(u);
        for (size_t i = 0; i < numel; ++i) {
          const float grown = kept * u[i], added = taken * g.floats()[i];
          next[i] = grown + added;
        }
        Rig reference(base + without, {.numel = numel, .seed = kSeed});
        EXPECT_EQ(body_of(rig.compress(g, e, e_next)),
                  body_of(reference.compress(tensor_of(next, DType::kFloat32), e, expected)));
        EXPECT_TRUE(all_equal(e_next, expected));
      }
    }
  }
}

TEST(VelocityLaws, AnAverageOfEf21IsNotMasked) {
  for (const char* spec :
       {"topk:1%,ef21,eta=0.5", "randomk:1%,ef21,eta=0.5", "int4,ef21,eta=0.5"}) {
    const size_t numel = 5000;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    const std::vector<float> g = normal(numel, kSeed), zero(numel);
    std::vector<float> e_next(numel);
    rig.compress(tensor_of(g, DType::kFloat32), zero, e_next);
    rig.commit();
    const std::vector<float> velocity = rig.velocity();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(velocity[i], 0.5f * g[i]) << spec << " " << i;
    }
  }
}

TEST(VelocityLaws, AStepThatDoesNotCommitLeavesTheVelocity) {
  for (const char* options : {",momentum=0.8", ",momentum=0.8,decay=0.9"}) {
    for (const std::string& spec : rows_with(options)) {
      SCOPED_TRACE(spec);
      const size_t numel = kChunk + 500;
      Rig rig(spec, {.numel = numel, .seed = kSeed}), other(spec, {.numel = numel, .seed = kSeed});
      std::vector<float> e(numel), e_next(numel), unused(numel);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> bad = normal(numel, kSeed + 50);
        other.compress(tensor_of(bad, DType::kFloat32), e, unused);  // a step that fails later
        bad[5] = std::numeric_limits<float>::infinity();
        EXPECT_EQ(flags_of(other.compress(tensor_of(bad, DType::kFloat32), e, unused)),
                  kFlagNonFinite);
        const OwnedTensor g =
            tensor_of(normal(numel, kSeed + static_cast<uint64_t>(step)), DType::kFloat32);
        EXPECT_EQ(rig.compress(g, e, e_next), other.compress(g, e, unused));
        EXPECT_TRUE(all_equal(e_next, unused));
        std::swap(e, e_next);
        rig.commit();
        other.commit();
        EXPECT_TRUE(all_equal(rig.velocity(), other.velocity()));
      }
      EXPECT_EQ(rig.compressor().kept_bytes() -
                    Rig(spec.substr(0, spec.find(",momentum")), {.numel = numel})
                        .compressor()
                        .kept_bytes(),
                8 * numel);
    }
  }
}

// A checkpoint: step, residual and velocity in another compressor, after odd and even numbers of
// commits.
TEST(VelocityLaws, AVelocityThatIsRestoredGoesOn) {
  std::vector<std::string> specs = rows_with(",momentum=0.8");
  specs.insert(specs.end(), {"dgc:1%", "topk:1%,ef21,eta=0.3", "int4,stochastic,ef21,eta=0.3"});
  for (const std::string& spec : specs) {
#if defined(GRADWIRE_LAWS_ON_DEVICE)  // set_step() forgets there what these have learned beside it
    if (spec.starts_with("threshold") || spec.starts_with("powersgd")) {
      continue;
    }
#endif
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 41;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    std::vector<float> e(numel), e_next(numel), unused(numel);
    EXPECT_TRUE(all_equal(rig.velocity(), std::vector<float>(numel)));
    for (uint32_t step = 0; step < 3; ++step) {
      const OwnedTensor g = tensor_of(normal(numel, kSeed + step), DType::kFloat32);
      const auto payload = rig.compress(g, e, e_next);
      if (step > 0) {
        Rig resumed(spec, {.numel = numel, .seed = kSeed});
        resumed.compress(g, e, unused);  // of which nothing stays
        resumed.commit();
        resumed.set_step(step);
        EXPECT_TRUE(all_equal(resumed.velocity(), std::vector<float>(numel))) << "it is forgotten";
        resumed.compressor().set_state(rig.compressor().state());
        resumed.set_velocity(rig.velocity());
        EXPECT_TRUE(all_equal(resumed.velocity(), rig.velocity()));
        EXPECT_EQ(resumed.compress(g, e, unused), payload);
        EXPECT_TRUE(all_equal(unused, e_next));
        resumed.commit();
        rig.commit();
        EXPECT_TRUE(all_equal(resumed.velocity(), rig.velocity()));
      } else {
        rig.commit();
      }
      std::swap(e, e_next);
    }
  }
}

TEST(VelocityLaws, WhatKeepsNoneRefusesToReadOrWriteIt) {
  const auto error_of = [](const std::string& spec, size_t numel) -> std::string {
    Rig rig(spec, {.numel = 100});
    Context context = rig.context();
    std::vector<float> values(numel);
    std::string first;
    for (const bool writing : {false, true}) {
      try {
        writing ? rig.compressor().write_velocity(values, context)
                : rig.compressor().read_velocity(values, context);
        return "no error";
      } catch (const InvalidArgument& error) {
        first = writing ? first : error.what();
      }
    }
    return first;
  };
  EXPECT_EQ(error_of("int8", 100),
            "int8: the spec is 'int8', which keeps no velocity, expected one that does");
  EXPECT_EQ(error_of("int8,momentum=0.5", 99), "int8: velocity to has 99 elements, must have 100");
}

#if !defined(GRADWIRE_LAWS_ON_DEVICE)  // many small steps
/// Algorithm 1 of Fatkhullin et al. in float64, begun at zero, of the two largest of ten elements;
/// and the same with a compressor. Gradients are x - c_r and noise. @returns the mean squared
/// distance to the minimum over the last half of the steps.
double distance_with(double eta, bool naive) {
  constexpr size_t kRanks = 4, kNumel = 10;
  constexpr int kSteps = 4000;
  constexpr double kStep = 0.02;
  std::vector<std::vector<float>> c;
  std::vector<std::unique_ptr<Rig>> rigs;
  const std::string spec = concat("topk:20%,ef21,eta=", eta);
  for (size_t r = 0; r < kRanks; ++r) {
    c.push_back(normal(kNumel, kSeed + r, 3.0f));
    rigs.push_back(std::make_unique<Rig>(spec, CompressorShape{.numel = kNumel}));
  }
  std::vector<std::vector<float>> e(kRanks, std::vector<float>(kNumel));
  std::vector<std::vector<double>> v(kRanks, std::vector<double>(kNumel)), s = v;
  std::vector<double> x(kNumel), estimate(kNumel);
  double squares = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<std::byte>> payloads;
    for (size_t r = 0; r < kRanks; ++r) {
      std::vector<float> g =
          normal(kNumel, kSeed + 1000 + static_cast<uint64_t>(step) * kRanks + r, 5.0f);
      for (size_t i = 0; i < kNumel; ++i) {
        g[i] += static_cast<float>(x[i] - double{c[r][i]});
        v[r][i] = (1 - eta) * v[r][i] + eta * double{g[i]};
      }
      if (!naive) {
        std::vector<float> e_next(kNumel);
        payloads.push_back(rigs[r]->compress(tensor_of(g, DType::kFloat32), e[r], e_next));
        rigs[r]->commit();
        e[r] = e_next;
        continue;
      }
      for (int kept = 0; kept < 2; ++kept) {
        size_t largest = 0;
        for (size_t i = 0; i < kNumel; ++i) {
          largest =
              std::abs(v[r][i] - s[r][i]) > std::abs(v[r][largest] - s[r][largest]) ? i : largest;
        }
        estimate[largest] += (v[r][largest] - s[r][largest]) / kRanks;
        s[r][largest] = v[r][largest];
      }
    }
    const std::vector<float> mean =
        naive ? std::vector<float>(kNumel) : rigs[0]->decompress(payloads, 1.0f / kRanks).floats();
    for (size_t i = 0; i < kNumel; ++i) {
      estimate[i] += double{mean[i]};
      x[i] -= kStep * estimate[i];
      double minimum = 0;
      for (size_t r = 0; r < kRanks; ++r) {
        minimum += double{c[r][i]} / kRanks;
      }
      squares += 2 * step >= kSteps ? (x[i] - minimum) * (x[i] - minimum) / (kSteps / 2) : 0;
    }
  }
  return squares;
}

TEST(Ef21Sgdm, AveragesNoiseAwayAsTheNaiveLoopDoes) {
  const double noisy = distance_with(1, false), averaged = distance_with(0.1, false);
  EXPECT_NEAR(noisy / distance_with(1, true), 1, 1e-3);
  EXPECT_NEAR(averaged / distance_with(0.1, true), 1, 1e-3);
  EXPECT_LT(averaged, 0.7 * noisy);
}
#endif

}  // namespace
}  // namespace gradwire::testing
