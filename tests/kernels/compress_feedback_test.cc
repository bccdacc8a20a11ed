// What becomes of a residual, over all rows, on whatever device (compress_laws_test.cc).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "tests/kernels/compress_cases.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed + 100;

/// All rows, each with feedback and `options`.
std::vector<std::string> rows_with(const std::string& options) {
  std::vector<std::string> specs;
  for (const CompressorRow& row : all_rows()) {
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

// The residual is -s: the same sum is compressed, and D is taken from the residual itself.
TEST(FeedbackLaws, Ef21SendsWhatPlainFeedbackDoesAndKeepsTheSumOfIt) {
  for (const std::string& plain : rows_with("")) {
    if (keeps_velocity(plain)) {
      continue;
    }
    const std::string example(find_compressor(parse_spec(plain).name).example);
    SCOPED_TRACE(example);
    const size_t numel = kChunk + 77;
    const OwnedTensor g = tensor_of(layered(numel, kSeed), DType::kFloat32);
    const std::vector<float> e = normal(numel, kSeed + 1, 0.5f);
    std::vector<float> e_next(numel), left(numel);
    Rig rig(example + ",ef21", {.numel = numel, .seed = kSeed});
    Rig reference(plain, {.numel = numel, .seed = kSeed});
    const auto payload = reference.compress(g, e, left);
    EXPECT_EQ(body_of(rig.compress(g, e, e_next)), body_of(payload));
    const std::vector<float> sent = reference.decompress({payload}).floats();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_NEAR(e_next[i], double{e[i]} - double{sent[i]},
                  0x1p-23 * (std::abs(e[i]) + std::abs(sent[i]) + std::abs(left[i])))
          << "element " << i;
    }
  }
}

/// g and e that are finite, and g + e too, but e - D need not be where D is more than that.
struct NearTheLargest {
  std::vector<float> g, e;

  NearTheLargest(size_t numel, size_t every) : g(numel), e(normal(numel, kSeed + 1, 0.2f)) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    for (size_t i = 0; i < numel; ++i) {
      const float share = std::fmin(std::abs(e[i]) + 0.4f, 1.0f);
      const float large = i % every == 0 ? std::copysign(kLargest, e[i]) : 0.0f;
      g[i] = large;
      e[i] = -share * large;
    }
  }
};

// D is read from the payload: e - D must fit into float32, or nothing may commit.
TEST(FeedbackLaws, Ef21FlagsASumOfWhatWasSentThatOverflows) {
  constexpr double kTooLarge = 0x1.ffffffp127;  // rounds to infinity
  size_t overflows = 0;
  for (const CompressorRow& row : all_rows()) {
    if (row.keeps_velocity()) {
      continue;  // which no ef21 is for
    }
    for (const std::string options : {",ef21", ",ef21,eta=0.9999"}) {
      for (const size_t every : {size_t{1}, size_t{97}, size_t{1500}}) {
        const std::string spec = std::string(row.example) + options;
        SCOPED_TRACE(concat(spec, ", every ", every));
        const size_t numel = kChunk + 500;
        const NearTheLargest near(numel, every);
        std::vector<float> e_next(numel);
        Rig rig(spec, {.numel = numel, .seed = kSeed});
        const auto payload = rig.compress(tensor_of(near.g, DType::kFloat32), near.e, e_next);
        const std::vector<float> sent = rig.decompress({payload}).floats();
        bool fits = true;
        for (size_t i = 0; i < numel; ++i) {
          fits = fits && std::abs(double{near.e[i]} - double{sent[i]}) < kTooLarge;
        }
        const bool finite = std::ranges::all_of(e_next, [](float e) { return std::isfinite(e); });
        EXPECT_EQ(flags_of(payload), fits ? 0 : kFlagNonFinite);
        EXPECT_EQ(finite, fits);
        overflows += fits ? 0 : 1;
        const auto after = rig.compress(tensor_of(normal(numel, kSeed), DType::kFloat32),
                                        std::vector<float>(numel), e_next);
        EXPECT_EQ(flags_of(after), 0) << "a flag stays with its call";
      }
    }
  }
  EXPECT_GT(overflows, all_rows().size());
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

#if !defined(GRADWIRE_LAWS_ON_DEVICE)  // many small steps
/// Ranks that want different things: f_r(x) = sum a (x - c)^2 / 2, whose sum has its minimum where
/// sum a (x - c) = 0.
struct Quadratic {
  static constexpr size_t kRanks = 4, kNumel = 60;
  static constexpr double kStep = 0.05;
  std::vector<std::vector<float>> a, c;
  std::vector<double> minimum = std::vector<double>(kNumel);

  Quadratic() {
    std::vector<double> weight(kNumel);
    for (size_t r = 0; r < kRanks; ++r) {
      a.push_back(normal(kNumel, kSeed + r, 0.2f));
      c.push_back(normal(kNumel, kSeed + 10 + r, 3.0f));
      for (size_t i = 0; i < kNumel; ++i) {
        a[r][i] = 0.5f + std::abs(a[r][i]);
        minimum[i] += double{a[r][i]} * double{c[r][i]};
        weight[i] += a[r][i];
      }
    }
    for (size_t i = 0; i < kNumel; ++i) {
      minimum[i] /= weight[i];
    }
  }
  std::vector<float> gradient(size_t r, const std::vector<double>& x) const {
    std::vector<float> g(kNumel);
    for (size_t i = 0; i < kNumel; ++i) {
      g[i] = static_cast<float>(double{a[r][i]} * (x[i] - double{c[r][i]}));
    }
    return g;
  }
  double distance(const std::vector<double>& x) const {
    double sum = 0;
    for (size_t i = 0; i < kNumel; ++i) {
      sum += (x[i] - minimum[i]) * (x[i] - minimum[i]);
    }
    return std::sqrt(sum);
  }
};

/// Algorithm 2 of Richtarik et al. in float64, sending the six largest; distances every 100 steps.
std::vector<double> naive_ef21(const Quadratic& f, int steps) {
  std::vector<double> x(f.kNumel), estimate(f.kNumel), distances;
  std::vector<std::vector<double>> sent(f.kRanks, std::vector<double>(f.kNumel));
  for (int step = 0; step < steps; ++step) {
    for (size_t r = 0; r < f.kRanks; ++r) {
      std::vector<float> difference = f.gradient(r, x);
      for (size_t i = 0; i < f.kNumel; ++i) {
        difference[i] = static_cast<float>(double{difference[i]} - sent[r][i]);
      }
      for (const size_t i : reference::top_k(difference, 6)) {
        sent[r][i] += double{difference[i]};
        estimate[i] += double{difference[i]} / f.kRanks;
      }
    }
    for (size_t i = 0; i < f.kNumel; ++i) {
      x[i] -= f.kStep * estimate[i];
    }
    if (step % 100 == 99) {
      distances.push_back(f.distance(x));
    }
  }
  return distances;
}

/// The same with a compressor, whose owner keeps the estimate where the spec has ef21.
std::vector<double> distances_with(const std::string& spec, const Quadratic& f, int steps) {
  const bool ef21 = parse_spec(spec).feedback.ef21, feedback = parse_spec(spec).feedback.on;
  std::deque<Rig> rigs;
  for (size_t r = 0; r < f.kRanks; ++r) {
    rigs.emplace_back(spec, CompressorShape{.numel = f.kNumel, .rank = static_cast<int>(r)});
  }
  const std::vector<float> none(feedback ? f.kNumel : 0);
  std::vector<std::vector<float>> e(f.kRanks, none);
  std::vector<double> x(f.kNumel), distances;
  std::vector<float> estimate(f.kNumel);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<std::byte>> payloads;
    for (size_t r = 0; r < f.kRanks; ++r) {
      std::vector<float> e_next = none;
      payloads.push_back(
          rigs[r].compress(tensor_of(f.gradient(r, x), DType::kFloat32), e[r], e_next));
      e[r] = e_next;
      rigs[r].commit();
    }
    const std::vector<float> mean = rigs[0].decompress(payloads, 1.0f / f.kRanks).floats();
    for (size_t i = 0; i < f.kNumel; ++i) {
      estimate[i] = ef21 ? estimate[i] + mean[i] : mean[i];
      x[i] -= f.kStep * double{estimate[i]};
    }
    if (step % 100 == 99) {
      distances.push_back(f.distance(x));
    }
  }
  return distances;
}

TEST(Ef21, ConvergesLinearlyToTheExactMinimumOfRanksThatDiffer) {
  const Quadratic f;
  const std::vector<double> naive = naive_ef21(f, 1000);
  const std::vector<double> ef21 = distances_with("topk:10%,ef21", f, 1000);
  for (size_t i = 0; i + 1 < naive.size(); ++i) {
    if (naive[i] > 1e-4) {  // gradients of float32 end it further down
      EXPECT_LT(naive[i + 1], 0.3 * naive[i]) << i;
      EXPECT_NEAR(ef21[i] / naive[i], 1, 0.1) << i;
    }
  }
  EXPECT_LT(ef21.back(), 1e-5);
  EXPECT_LT(distances_with("int4,ef21", f, 1000).back(), 1e-5);
  EXPECT_GT(distances_with("topk:10%,noef", f, 1000).back(), 0.1) << "a bias that stays";
  EXPECT_GT(distances_with("topk:10%", f, 1000).back(), 1e-3)
      << "a constant step with plain feedback stays at a distance of its size";
}
#endif

}  // namespace
}  // namespace gradwire::testing
