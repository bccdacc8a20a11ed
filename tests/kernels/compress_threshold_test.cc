// threshold against its rule written naively, over many steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/threshold_state.h"
#include "tests/kernels/compress_cases.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

/// The rule, with a set of places for what is chosen.
class NaiveThreshold {
 public:
  NaiveThreshold(size_t n, size_t k) : n_(n), k_(k), most_(std::min(n, k + (k + 3) / 4)) {}

  std::vector<bool> choose(const std::vector<float>& x, uint32_t step) {
    std::vector<bool> chosen(n_);
    next_tau_ = tau_;
    next_age_ = age_;
    if (std::any_of(x.begin(), x.end(), [](float v) { return !std::isfinite(v); })) {
      return chosen;
    }
    exact = tau_ == 0 || age_ >= 32;
    overflow = false;
    if (exact) {
      const std::vector<size_t> largest = reference::top_k(x, k_);
      next_tau_ = std::numeric_limits<float>::max();
      for (const size_t i : largest) {
        chosen[i] = true;
        next_tau_ = std::min(next_tau_, std::fabs(x[i]));
      }
      next_tau_ = largest.empty() || largest.size() < k_ ? 0.0f : next_tau_;
      next_age_ = 1;
      return chosen;
    }
    const size_t chunks = (n_ + 4095) / 4096;
    const size_t first = static_cast<size_t>(uint64_t{step} * 2654435761u % chunks);
    size_t count = 0;
    for (size_t c = 0; c < chunks; ++c) {
      const size_t begin = (first + c) % chunks * 4096;
      for (size_t i = begin; i < std::min(n_, begin + 4096); ++i) {
        if (std::fabs(x[i]) >= tau_) {
          chosen[i] = count < most_;
          ++count;
        }
      }
    }
    overflow = count > most_;
    if (4 * count > 5 * k_) {
      next_tau_ = std::min(tau_ * 1.025f, std::numeric_limits<float>::max());
    } else if (5 * count < 4 * k_) {
      next_tau_ = tau_ / 1.025f;
    }
    next_age_ = count > 2 * k_ || 2 * count < k_ ? 32 : age_ + 1;
    return chosen;
  }
  void commit() {
    tau_ = next_tau_;
    age_ = next_age_;
  }
  void forget() { tau_ = 0; }

  bool exact = false;  // what the last choice was
  bool overflow = false;

 private:
  const size_t n_, k_, most_;
  float tau_ = 0, next_tau_ = 0;
  uint32_t age_ = 0, next_age_ = 0;
};

struct Seen {
  int exact = 0, reused = 0, overflows = 0;
};

/// Steps with error feedback whose gradients `gradient(step)` gives; each is compressed twice
/// before it is committed.
template <class Gradient>
Seen expect_as_ruled(const std::string& density, size_t numel, int steps, const Gradient& gradient,
                     int threads = 1) {
  Seen seen;
  Rig rig("threshold:" + density, {.numel = numel}, threads);
  NaiveThreshold rule(numel, kept_elements(rig.compressor().spec().choice.density, numel));
  std::vector<float> e(numel), e_next(numel), again(numel);
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(step);
    OwnedTensor g = tensor_of(gradient(step), DType::kFloat32);
    const auto payload = rig.compress(g, e, e_next);
    EXPECT_EQ(payload, rig.compress(g, e, again));
    const std::vector<float> x = sum_of(g.floats(), e);
    const std::vector<bool> chosen = rule.choose(x, rig.compressor().step());
    const std::vector<float> decoded = rig.decompress({payload}).floats();
    const bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
    EXPECT_EQ(flags_of(payload), finite ? 0 : kFlagNonFinite);
    for (size_t i = 0; i < numel; ++i) {
      if (decoded[i] != (chosen[i] ? x[i] : 0.0f)) {
        ADD_FAILURE() << "element " << i << " is " << decoded[i] << ", chosen " << chosen[i];
        return seen;
      }
    }
    if (!finite) {
      continue;  // nothing is committed
    }
    EXPECT_TRUE(all_equal(e_next, again));
    rig.compressor().commit();
    rule.commit();
    e = e_next;
    ++(rule.exact ? seen.exact : seen.reused);
    seen.overflows += rule.overflow ? 1 : 0;
  }
  return seen;
}

TEST(Threshold, FollowsItsRule) {
  for (const size_t numel : {1, 100, 4096, 70001}) {
    SCOPED_TRACE(numel);
    const Seen seen = expect_as_ruled("1%", numel, 80, [&](int step) {
      return heavy_tailed(numel, static_cast<uint64_t>(step));
    });
    EXPECT_GT(seen.exact, 1);
    EXPECT_GT(seen.reused, 40);
  }
}

TEST(Threshold, FollowsItsRuleWhereTheScaleMoves) {
  const size_t numel = 9 * kChunk + 11;
  const auto drifting = [&](int step) {
    const float scale = step % 20 < 10 ? 1.0f + 0.1f * static_cast<float>(step % 20) : 0.3f;
    return normal(numel, static_cast<uint64_t>(step), scale);
  };
  const Seen seen = expect_as_ruled("2%", numel, 70, drifting, 3);
  EXPECT_GT(seen.overflows, 5);  // what finds no room stays, from another chunk on in each step
  EXPECT_GT(seen.exact, 3);
  EXPECT_GT(seen.reused, 40);
}

TEST(Threshold, KeepsItsStateThroughStepsThatAreNotCommitted) {
  const size_t numel = 3 * kChunk + 5;
  const auto sometimes_nan = [&](int step) {
    std::vector<float> g = normal(numel, static_cast<uint64_t>(step));
    if (step % 3 == 2) {
      g[numel - 1] = step % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
    }
    return g;
  };
  const Seen seen = expect_as_ruled("5%", numel, 30, sometimes_nan);
  EXPECT_EQ(seen.exact + seen.reused, 20);
  EXPECT_GT(seen.reused, 10);
}

TEST(Threshold, FewerThanWantedLeaveItUnknown) {
  const size_t numel = 2 * kChunk;
  const auto few = [&](int step) {
    std::vector<float> g(numel);
    for (int i = 0; i < 20; ++i) {
      g[static_cast<size_t>(i * 100 + step)] = 1.0f;
    }
    return g;
  };
  EXPECT_EQ(expect_as_ruled("1%", numel, 5, few).exact, 5);
  EXPECT_EQ(expect_as_ruled("1%", 0, 3, [](int) { return std::vector<float>(); }).exact, 3);
}

TEST(Threshold, IsForgottenWhenTheStepIsSet) {
  const size_t numel = 2 * kChunk;
  Rig rig("threshold:1%", {.numel = numel});
  OwnedTensor first = tensor_of(normal(numel, 1), DType::kFloat32);
  OwnedTensor larger = tensor_of(normal(numel, 2, 1.2f), DType::kFloat32);
  rig.compress(first, {}, {});
  rig.compressor().commit();
  const auto reused = rig.compress(larger, {}, {});
  rig.compressor().set_step(1);
  const auto searched = rig.compress(larger, {}, {});
  Rig fresh("threshold:1%", {.numel = numel});
  EXPECT_NE(reused, searched);
  EXPECT_EQ(searched, fresh.compress(larger, {}, {}));
}

// One element of 100 is wanted, and there is room for both that reach tau.
TEST(Threshold, WhatItLearnsOfTheLargestGradientsIsFinite) {
  const size_t numel = 100;
  const auto largest = [&](int step) {
    std::vector<float> g(numel);
    g[7] = step % 2 == 0 ? 3.4e38f : -std::numeric_limits<float>::max();
    g[93] = step == 0 ? 0.0f : std::numeric_limits<float>::max();
    return g;
  };
  const Seen seen = expect_as_ruled("1%", numel, 6, largest);
  EXPECT_EQ(seen.exact, 1);
  Rig rig("threshold:1%", {.numel = numel}), other("threshold:1%", {.numel = numel});
  for (const int step : {0, 1}) {
    rig.compress(tensor_of(largest(step), DType::kFloat32), {}, {});
    rig.compressor().commit();
  }
  EXPECT_EQ(rig.compressor().state(), (std::vector<uint64_t>{0x7F7FFFFF, 2}));
  other.compressor().set_step(2);
  other.compressor().set_state(rig.compressor().state());
  const OwnedTensor g = tensor_of(largest(2), DType::kFloat32);
  EXPECT_EQ(other.compress(g, {}, {}), rig.compress(g, {}, {}));
}

TEST(Threshold, AGroupWithoutElementsHasNoChunkToBeginAt) {
  Rig rig("threshold:1%", {.numel = 0});
  rig.compressor().set_state(std::vector<uint64_t>{0x3F800000, 5});
  const OwnedTensor nothing = tensor_of({}, DType::kFloat32);
  const auto payload = rig.compress(nothing, {}, {});
  EXPECT_EQ(payload, Rig("threshold:1%", {.numel = 0}).compress(nothing, {}, {}));
  EXPECT_EQ(first_chunk_taken(3, 0), 0u);
}

TEST(Threshold, RefusesStatesThatNoStepLeaves) {
  const size_t numel = 2 * kChunk;
  const OwnedTensor g = tensor_of(normal(numel, 1), DType::kFloat32);
  Rig rig("threshold:1%", {.numel = numel});
  rig.compress(g, {}, {});
  rig.compressor().commit();
  const std::vector<uint64_t> before = rig.compressor().state();
  const auto payload = rig.compress(g, {}, {});
  constexpr uint64_t kOne = 0x3F800000, kTooLong = uint64_t{1} << 32;
  const std::vector<std::pair<std::vector<uint64_t>, std::string>> cases = {
      {{kOne}, "threshold: its state has 1 words, expected 2"},
      {{kTooLong | kOne, 1},
       "threshold: the state's word of tau is 5360320512, must be the bits of a float32, 0 or "
       "positive and finite: at most 2139095039"},
      {{0x7F800000, 1},
       "threshold: the state's word of tau is 2139095040, must be the bits of a float32, 0 or "
       "positive and finite: at most 2139095039"},
      {{0x7FC00000, 1},
       "threshold: the state's word of tau is 2143289344, must be the bits of a float32, 0 or "
       "positive and finite: at most 2139095039"},
      {{0xBF800000, 1},
       "threshold: the state's word of tau is 3212836864, must be the bits of a float32, 0 or "
       "positive and finite: at most 2139095039"},
      {{kOne, kTooLong | 1}, "threshold: the state's age is 4294967297 steps, must be at most 32"},
      {{kOne, 33}, "threshold: the state's age is 33 steps, must be at most 32"}};
  for (const auto& [state, message] : cases) {
    try {
      rig.compressor().set_state(state);
      ADD_FAILURE() << "taken, but expected: " << message;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), message);
    }
    EXPECT_EQ(rig.compressor().state(), before);
    EXPECT_EQ(rig.compress(g, {}, {}), payload);
  }
  rig.compressor().set_state(std::vector<uint64_t>{0x7F7FFFFF, 32});
  rig.compressor().set_state(std::vector<uint64_t>{0, 0});
}

TEST(Threshold, InstructionSetsAndThreadsDoNotChangeReuse) {
  const size_t numel = cpu::kStreamingNumel + 4711;  // e_next is written past the caches
  OwnedTensor first = tensor_of(heavy_tailed(numel, 3), DType::kFloat32);
  for (const float growth : {1.0f, 1.5f}) {  // the second does not find room for all
    std::vector<float> values = heavy_tailed(numel, 4);
    for (float& v : values) {
      v *= growth;
    }
    OwnedTensor second = tensor_of(values, DType::kFloat32);
    std::vector<std::byte> expected;
    std::vector<float> expected_rest;
    for (const cpu::Isa path : isa_paths()) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(concat(name_of(path), " ", threads));
        const cpu::IsaLimit limit(path);
        Rig rig("threshold:0.5%", {.numel = numel}, threads);
        const std::vector<float> e(numel);
        std::vector<float> e_next(numel);
        rig.compress(first, e, e_next);
        rig.compressor().commit();
        const auto payload = rig.compress(second, e, e_next);
        if (expected.empty()) {
          expected = payload;
          expected_rest = e_next;
        }
        EXPECT_EQ(payload, expected);
        EXPECT_TRUE(all_equal(e_next, expected_rest));
        std::vector<float> x = values;
        EXPECT_EQ(rig.compress_accumulated(x), expected);
        EXPECT_TRUE(all_equal(x, expected_rest));
      }
    }
  }
}

TEST(ThresholdState, MovesAndAges) {
  const ThresholdState known{1.0f, 5};
  EXPECT_EQ(after_reuse(known, 100, 100), (ThresholdState{1.0f, 6}));
  EXPECT_EQ(after_reuse(known, 125, 100), (ThresholdState{1.0f, 6}));
  EXPECT_EQ(after_reuse(known, 126, 100), (ThresholdState{1.025f, 6}));
  EXPECT_EQ(after_reuse(known, 80, 100), (ThresholdState{1.0f, 6}));
  EXPECT_EQ(after_reuse(known, 79, 100), (ThresholdState{1.0f / 1.025f, 6}));
  EXPECT_EQ(after_reuse(known, 200, 100).age, 6u);
  EXPECT_EQ(after_reuse(known, 201, 100).age, 32u);
  EXPECT_EQ(after_reuse(known, 50, 100).age, 6u);
  EXPECT_EQ(after_reuse(known, 49, 100).age, 32u);
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(after_reuse({kMost, 5}, 126, 100), (ThresholdState{kMost, 6}));
  EXPECT_EQ(after_reuse({kMost / 1.025f, 5}, 126, 100).tau, kMost / 1.025f * 1.025f);
  EXPECT_EQ(after_reuse({kLeast, 5}, 79, 100), (ThresholdState{kLeast, 6}));
  EXPECT_TRUE(searches_exactly({}));
  EXPECT_TRUE(searches_exactly({1.0f, 32}));
  EXPECT_FALSE(searches_exactly({1.0f, 31}));
  EXPECT_EQ(after_exact_search(0.5f, 9, 10), (ThresholdState{0.0f, 1}));
  EXPECT_EQ(after_exact_search(0.5f, 10, 10), (ThresholdState{0.5f, 1}));
  EXPECT_EQ(threshold_capacity(1000, 10), 13u);
  EXPECT_EQ(threshold_capacity(11, 10), 11u);
  EXPECT_EQ(first_chunk_taken(3, 7), size_t{7963307283} % 7);  // not modulo 2^32 before
}

}  // namespace
}  // namespace gradwire::testing
