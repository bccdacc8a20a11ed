// dgc against the algorithm of Lin et al. as a loop in float64, over many steps; and what commits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/compress_cases.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 1712;

/// Algorithms 3 and 4 of the paper for one of `ranks` nodes.
struct NaiveDgc {
  double momentum, clip, density;
  int warmup, ranks;
  std::vector<double> u, v;
  std::vector<double> moved = {};  ///< of each element: what float32 rounds, since it was last sent
  std::vector<bool> sent_last = {};
  int step = 0;

  /// What is sent; zeros elsewhere.
  std::vector<double> send(const std::vector<float>& g) {
    double norm = 0;
    for (const float x : g) {
      norm += double{x} * double{x};
    }
    const double limit = clip * std::pow(ranks, -0.5);
    const double factor = clip > 0 && std::sqrt(norm) > limit ? limit / std::sqrt(norm) : 1;
    for (size_t i = 0; i < g.size(); ++i) {
      u[i] = momentum * u[i] + factor * double{g[i]};
      v[i] += u[i];
    }
    const auto k = static_cast<size_t>(std::ceil(share() * static_cast<double>(g.size())));
    moved.resize(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      moved[i] = (sent_last[i] ? 0 : moved[i]) + std::abs(u[i]) + std::abs(v[i]);
    }
    std::vector<float> rounded(v.begin(), v.end());
    std::vector<double> sent(g.size());
    sent_last.assign(g.size(), false);
    for (const size_t i : reference::top_k(rounded, k)) {
      sent_last[i] = true;
      sent[i] = v[i];
      u[i] = v[i] = 0;
    }
    ++step;
    return sent;
  }
  double share() const {
    const double schedule[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625};
    const int stage = warmup > 0 ? std::min(step / warmup, 4) : 4;
    return std::max(schedule[stage], density);
  }
};

/// A gradient with a direction of its own beside noise, so that velocities grow.
std::vector<float> gradient(size_t numel, int step) {
  std::vector<float> g = normal(numel, kSeed + static_cast<uint64_t>(step));
  const std::vector<float> steady = heavy_tailed(numel, kSeed);
  for (size_t i = 0; i < numel; ++i) {
    g[i] += 0.3f * steady[i];
  }
  return g;
}

void expect_as_the_paper(const std::string& spec, NaiveDgc naive, size_t numel, int steps) {
  SCOPED_TRACE(concat(spec, " of ", numel));
  Rig rig(spec, {.numel = numel, .world_size = naive.ranks}, 2);
  naive.u = naive.v = std::vector<double>(numel);
  naive.sent_last.resize(numel);
  std::vector<float> e(numel), e_next(numel);
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> g = gradient(numel, step);
    const auto payload = rig.compress(tensor_of(g, DType::kFloat32), e, e_next);
    EXPECT_EQ(payload, rig.compress(tensor_of(g, DType::kFloat32), e, e_next));
    const std::vector<float> sent = rig.decompress({payload}).floats();
    const std::vector<double> expected = naive.send(g);
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(sent[i] != 0, expected[i] != 0) << "step " << step << ", element " << i;
      const double rounding = 8 * 0x1p-24 * naive.moved[i];
      ASSERT_NEAR(sent[i], expected[i], rounding) << "step " << step << ", element " << i;
      ASSERT_NEAR(e_next[i], naive.v[i], rounding) << "step " << step << ", element " << i;
    }
    std::swap(e, e_next);
    rig.commit();
  }
}

TEST(Dgc, FollowsThePaper) {
  for (const size_t numel : {700, 3 * 4096 + 55}) {
    expect_as_the_paper("dgc:2%", {0.9, 0, 0.02, 0, 1, {}, {}}, numel, 40);
    expect_as_the_paper("dgc:2%,momentum=0.5", {0.5, 0, 0.02, 0, 1, {}, {}}, numel, 20);
    expect_as_the_paper("dgc:1%,clip=7", {0.9, 7, 0.01, 0, 1, {}, {}}, numel, 20);
    expect_as_the_paper("dgc:1%,clip=90", {0.9, 90, 0.01, 0, 4, {}, {}}, numel, 20);
    expect_as_the_paper("dgc:0.1%,warmup=5,clip=9", {0.9, 9, 0.001, 5, 2, {}, {}}, numel, 30);
    expect_as_the_paper("dgc:2%,warmup=3", {0.9, 0, 0.02, 3, 1, {}, {}}, numel, 15);
  }
}

TEST(Dgc, WithoutMomentumItIsTopK) {
  const size_t numel = 2 * kChunk + 9;
  Rig dgc("dgc:3%,momentum=0", {.numel = numel}), topk("topk:3%", {.numel = numel});
  std::vector<float> e(numel), e_next(numel), other(numel);
  for (int step = 0; step < 5; ++step) {
    OwnedTensor g = tensor_of(gradient(numel, step), DType::kBFloat16);
    OwnedTensor wide = tensor_of(g.floats(), DType::kFloat32);
    const auto a = dgc.compress(wide, e, e_next), b = topk.compress(wide, e, other);
    EXPECT_TRUE(std::equal(a.begin() + 32, a.end(), b.begin() + 32, b.end()));
    EXPECT_TRUE(all_equal(e_next, other));
    std::swap(e, e_next);
    dgc.commit();
  }
}

TEST(Dgc, AStepThatDoesNotCommitLeavesTheVelocity) {
  const size_t numel = kChunk + 100;
  Rig rig("dgc:1%", {.numel = numel}), other("dgc:1%", {.numel = numel});
  std::vector<float> e(numel), e_next(numel), unused(numel);
  for (int step = 0; step < 6; ++step) {
    std::vector<float> bad = gradient(numel, 100 + step);
    other.compress(tensor_of(bad, DType::kFloat32), e, unused);  // a step that fails later
    bad[5] = step % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    EXPECT_EQ(flags_of(other.compress(tensor_of(bad, DType::kFloat32), e, unused)),
              kFlagNonFinite);
    OwnedTensor g = tensor_of(gradient(numel, step), DType::kFloat32);
    EXPECT_EQ(rig.compress(g, e, e_next), other.compress(g, e, unused));
    EXPECT_TRUE(all_equal(e_next, unused));
    EXPECT_TRUE(all_equal(rig.compressor().velocity(), other.compressor().velocity()))
        << "compress() changes none";
    std::swap(e, e_next);
    rig.commit();
    other.commit();
    EXPECT_TRUE(all_equal(rig.compressor().velocity(), other.compressor().velocity()));
  }
  const auto velocity = rig.compressor().velocity();
  const std::vector<float> before(velocity.begin(), velocity.end());
  rig.commit();  // nothing was compressed for it
  EXPECT_TRUE(all_equal(rig.compressor().velocity(), before));
}

TEST(Dgc, ContinuesFromItsVelocity) {
  for (const size_t numel : {1, 300, 4097}) {
    SCOPED_TRACE(numel);
    Rig rig("dgc:5%,warmup=2", {.numel = numel}), resumed("dgc:5%,warmup=2", {.numel = numel});
    std::vector<float> e(numel), e_next(numel);
    for (int step = 0; step < 6; ++step) {
      OwnedTensor g = tensor_of(gradient(numel, step), DType::kFloat32);
      resumed.set_step(static_cast<uint32_t>(step));
      std::ranges::copy(rig.compressor().velocity(), resumed.compressor().velocity().begin());
      EXPECT_EQ(rig.compress(g, e, e_next), resumed.compress(g, e, e_next)) << step;
      std::swap(e, e_next);
      rig.commit();
    }
    rig.set_step(3);
    EXPECT_TRUE(all_equal(rig.compressor().velocity(), std::vector<float>(numel)))
        << "set_step() forgets";
  }
}

TEST(Dgc, TheWarmUpSendsWhatItsStageSays) {
  const size_t numel = 64 * kChunk;
  Rig rig("dgc:0.1%,fp16,warmup=2", {.numel = numel});
  const std::vector<float> zero(numel);
  std::vector<float> e_next(numel);
  OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
  // Counts, then a bitmap while that is smaller than 12 bits an entry, then values.
  const size_t first = 32 + 128 + numel / 8 + 2 * (numel / 4);
  EXPECT_EQ(rig.compressor().capacity_bytes(), first);
  for (uint32_t step = 0; step < 12; ++step) {
    rig.set_step(step);
    const auto payload = rig.compress(g, zero, e_next);
    const uint32_t stage = std::min(step / 2, 4u);
    EXPECT_EQ(read_header(payload).variant, stage);
    size_t entries = 0;
    for (const float x : rig.decompress({payload}).floats()) {
      entries += x != 0 ? 1 : 0;
    }
    const size_t expected[] = {numel / 4, numel / 16, numel / 64, numel / 256,
                               static_cast<size_t>(std::ceil(0.001 * numel))};
    EXPECT_EQ(entries, expected[stage]) << step;
    if (stage == 0) {
      EXPECT_EQ(payload.size(), first);
    } else {
      EXPECT_NEAR(static_cast<double>(payload.size()),
                  32.0 + 128 + 3.5 * static_cast<double>(entries), 64 + 4);
    }
    EXPECT_LE(payload.size(), rig.compressor().capacity_bytes());
  }
}

TEST(Dgc, PayloadsOfTwoStagesMerge) {
  const size_t numel = 3 * kChunk;
  Rig rig("dgc:0.5%,warmup=1", {.numel = numel});
  OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
  std::vector<std::vector<std::byte>> payloads;
  std::vector<float> sum(numel);
  for (const uint32_t step : {3, 0}) {
    rig.set_step(step);
    payloads.push_back(rig.compress(g, {}, {}));
    const std::vector<float> sent = rig.decompress({payloads.back()}).floats();
    for (size_t i = 0; i < numel; ++i) {
      sum[i] += sent[i];
    }
  }
  EXPECT_TRUE(all_equal(rig.decompress(payloads).floats(), sum));
  const auto merged = rig.merge(payloads, {0, numel}, 1.0f, {});
  EXPECT_EQ(read_header(merged).variant, 0u) << "that of more entries";
  EXPECT_TRUE(all_equal(rig.decompress({merged}).floats(), sum));
}

}  // namespace
}  // namespace gradwire::testing
