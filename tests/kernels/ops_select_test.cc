// Selection against a sort, on every instruction set this machine has and for several threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/select.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

using cpu::Isa;

constexpr uint64_t kSeed = 4711;

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

/// A selection with the memory it lies in turned into plain vectors.
struct Chosen {
  std::vector<size_t> places;
  std::vector<uint32_t> values;  // bits
  std::vector<float> e_next;
  bool finite = true;
  bool sampled = true;
};

/// `offset`: where e_next begins after a line of 64 bytes, in floats.
Chosen choose_from(cpu::SelectInput input, bool in_place, int threads = 1, size_t offset = 0) {
  Workspace workspace;
  Workspace::Frame frame(workspace);
  ThreadPool pool(threads);
  constexpr float kGuard = 12345.0f;
  Buffer memory((input.g.numel + 64) * sizeof(float));
  std::ranges::fill(memory.as<float>(), kGuard);
  const size_t numel = in_place ? input.g.numel : input.e.size();
  const std::span<float> e_next = memory.as<float>().subspan(offset + 16, numel);
  input.e_next = e_next;
  if (in_place) {
    std::ranges::copy(input.g.as<float>(), e_next.begin());
    input.g = view_of(std::span<const float>(e_next));
  }
  const cpu::Selection selection = cpu::select_largest(input, frame, pool);
  EXPECT_EQ(memory.as<float>()[offset + 15], kGuard);
  EXPECT_EQ(memory.as<float>()[offset + 16 + numel], kGuard);
  Chosen chosen;
  chosen.e_next.assign(e_next.begin(), e_next.end());
  chosen.finite = selection.finite;
  chosen.sampled = selection.sampled;
  for (size_t chunk = 0; chunk < selection.chunks.size(); ++chunk) {
    const auto [first, count] = selection.chunks[chunk];
    for (size_t i = first; i < first + count; ++i) {
      chosen.places.push_back(chunk * cpu::kSelectChunk + selection.indices[i]);
      chosen.values.push_back(bits_of(selection.values[i]));
    }
  }
  EXPECT_EQ(chosen.places.size(), selection.total);
  return chosen;
}

Chosen choose(OwnedTensor& g, const std::vector<float>& e, size_t k, int threads = 1) {
  return choose_from({.g = g.view(), .e = e, .k = k}, false, threads);
}

/// Selects from x itself, from g + e, and from x in place, and compares with a sort. @returns
/// whether the sample was enough everywhere.
bool expect_as_sorted(const std::vector<float>& x, size_t k, DType dtype = DType::kFloat32,
                      size_t offset = 0) {
  OwnedTensor g = tensor_of(x, dtype);
  std::vector<float> e = normal(x.size(), kSeed, 1e-2f);
  for (size_t i = 0; i < e.size(); i += 2) {
    e[i] = 0.0f;
  }
  bool sampled = true;
  enum Form { kPlain, kFeedback, kInPlace };
  for (const Form form : {kPlain, kFeedback, kInPlace}) {
    if (form == kInPlace && dtype != DType::kFloat32) {
      continue;
    }
    const bool feedback = form == kFeedback;
    std::vector<float> sum = g.floats();
    for (size_t i = 0; feedback && i < sum.size(); ++i) {
      sum[i] += e[i];
    }
    const std::vector<size_t> expected = reference::top_k(sum, k);
    std::vector<float> rest = sum;
    for (const size_t i : expected) {
      rest[i] = 0.0f;
    }
    for (const Isa level : isa_paths()) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(concat(name_of(level), ", threads ", threads, ", form ", form));
        const cpu::IsaLimit limit(level);
        const ConstResidual residual = feedback ? ConstResidual(e) : ConstResidual();
        const Chosen chosen =
            choose_from({.g = g.view(), .e = residual, .k = k}, form == kInPlace, threads, offset);
        EXPECT_TRUE(chosen.finite);
        EXPECT_EQ(chosen.places, expected);
        for (size_t i = 0; i < std::min(chosen.places.size(), expected.size()); ++i) {
          EXPECT_EQ(chosen.values[i], bits_of(sum[expected[i]])) << i;
        }
        if (form != kPlain) {
          EXPECT_TRUE(std::ranges::equal(chosen.e_next, rest, {}, bits_of, bits_of));
        }
        sampled &= chosen.sampled;
        if (::testing::Test::HasFailure()) {
          return sampled;
        }
      }
    }
  }
  return sampled;
}

size_t one_percent(size_t n) { return std::max<size_t>(1, n / 100); }

TEST(Select, ChoosesWhatASortChooses) {
  for (const size_t n : {0, 1, 63, 64, 65, 4095, 4096, 4097, 70001}) {
    for (const size_t k : {one_percent(n), n / 3 + 1, n}) {
      SCOPED_TRACE(concat(k, " of ", n));
      for (const auto& x : {normal(n, kSeed), heavy_tailed(n, kSeed), layered(n, kSeed)}) {
        expect_as_sorted(x, k);
      }
    }
  }
}

TEST(Select, ChoosesWhatASortChoosesOfAMillion) {
  const size_t n = 1'000'001;
  EXPECT_TRUE(expect_as_sorted(normal(n, kSeed), n / 100));
  EXPECT_TRUE(expect_as_sorted(heavy_tailed(n, kSeed), n / 1000));
}

TEST(Select, OfHalvesToo) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const size_t n : {65, 4097, 70001}) {
      SCOPED_TRACE(concat(to_string(dtype), " ", n));
      expect_as_sorted(normal(n, kSeed), one_percent(n), dtype);
      expect_as_sorted(normal(n, kSeed, 1e-6f), one_percent(n), dtype);  // subnormal halves
    }
  }
}

TEST(Select, WhereverTheResidualLies) {
  // Large enough that e_next is written past the caches, in lines of 64 bytes.
  const std::vector<float> x = normal(cpu::kStreamingNumel + 7, kSeed);
  for (const size_t offset : {0, 1, 15}) {
    SCOPED_TRACE(offset);
    EXPECT_TRUE(expect_as_sorted(x, 3000, DType::kFloat32, offset));
  }
}

TEST(Select, ZerosAreNeverChosen) {
  for (const size_t n : {100, 5000, 70001}) {
    SCOPED_TRACE(n);
    std::vector<float> x(n);
    OwnedTensor zero = tensor_of(x, DType::kFloat32);
    EXPECT_EQ(choose(zero, {}, n / 10).places.size(), 0u);
    x[7] = -0.0f;
    x[n / 2] = -std::numeric_limits<float>::denorm_min();
    x[n - 1] = 1.0f;  // one large element beside a subnormal one
    OwnedTensor g = tensor_of(x, DType::kFloat32);
    for (const Isa level : isa_paths()) {
      const cpu::IsaLimit limit(level);
      const Chosen chosen = choose(g, {}, n / 10);
      EXPECT_EQ(chosen.places, (std::vector<size_t>{n / 2, n - 1}));
      EXPECT_TRUE(chosen.sampled);
    }
  }
}

TEST(Select, TiesGoToTheSmallerIndexAcrossChunks) {
  const size_t n = 70001;
  std::vector<float> x(n, -2.5f);
  expect_as_sorted(x, n / 100);  // a constant
  expect_as_sorted(x, n / 2 + 7);
  for (size_t i = 0; i < n; ++i) {
    x[i] = i % 3 == 0 ? 2.5f : 0.1f;
  }
  expect_as_sorted(x, n / 100);
  expect_as_sorted(x, n / 3 - 5);
  x = normal(n, kSeed);
  for (size_t i = 0; i < n; i += 50) {
    x[i] = std::fabs(x[i]) > 1.0f ? 2.3f : x[i];  // ties around the k-th place
  }
  expect_as_sorted(x, n / 100);
  std::vector<float> subnormal(n);
  for (size_t i = 0; i < n; ++i) {
    subnormal[i] = static_cast<float>(i % 977) * std::numeric_limits<float>::denorm_min();
  }
  expect_as_sorted(subnormal, n / 100);
}

TEST(Select, NothingIsChosenWhereSomethingIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const size_t n : {65, 70001}) {
    for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      for (const size_t share : {n, n / 3}) {  // one, or every third
        SCOPED_TRACE(concat(bad, " ", n));
        std::vector<float> x = normal(n, kSeed);
        for (size_t i = n - 1; i < n; i -= share) {
          x[i] = bad;
        }
        OwnedTensor g = tensor_of(x, DType::kFloat32);
        for (const Isa level : isa_paths()) {
          const cpu::IsaLimit limit(level);
          const Chosen chosen = choose(g, std::vector<float>(n), one_percent(n), 2);
          EXPECT_FALSE(chosen.finite);
          EXPECT_TRUE(chosen.places.empty());
          EXPECT_EQ(chosen.e_next[0], x[0]);
          const Chosen kept = choose_from({.g = g.view(), .k = one_percent(n)}, true, 2);
          EXPECT_FALSE(kept.finite);
          EXPECT_TRUE(kept.places.empty());
          EXPECT_TRUE(std::ranges::equal(kept.e_next, x, {}, bits_of, bits_of));
        }
      }
    }
  }
}

TEST(Select, AMisleadingSampleChangesNothing) {
  const size_t n = 400'000;
  const size_t k = n / 100;
  std::vector<float> sorted = heavy_tailed(n, kSeed);
  std::ranges::sort(sorted, std::greater<>(), [](float x) { return std::fabs(x); });
  expect_as_sorted(sorted, k);
  const std::vector<float> small = normal(n, kSeed, 1e-3f);
  // Large elements only where the sample looks, and fewer than k: it expects many more of them.
  // The places are those of select_sample_cpu.cc: 2048 lines of 16, each in a stride of 195.
  std::vector<float> seen = small;
  for (size_t line = 0; line < 2048; ++line) {
    const uint64_t hash = static_cast<uint32_t>(line * 2654435761u);
    seen[(line * 195 + (hash * (195 - 16) >> 32)) / 16 * 16] = 1.0f;
  }
  EXPECT_FALSE(expect_as_sorted(seen, k));
  // Equal elements, more than there is room for, right at the k-th place: counting must decide.
  std::vector<float> crowded = small;
  for (size_t i = 0; i < n; i += 3) {
    crowded[i] = 1.0f;
  }
  for (size_t i = 1; i < n; i += 1000) {
    crowded[i] = 2.0f;
  }
  std::vector<float> exact(n);  // no residual may break the ties
  OwnedTensor g = tensor_of(crowded, DType::kFloat32);
  for (const Isa level : isa_paths()) {
    const cpu::IsaLimit limit(level);
    for (const bool in_place : {false, true}) {
      const ConstResidual e = in_place ? ConstResidual() : ConstResidual(exact);
      const Chosen chosen = choose_from({.g = g.view(), .e = e, .k = k}, in_place, 3);
      EXPECT_FALSE(chosen.sampled);
      EXPECT_EQ(chosen.places, reference::top_k(crowded, k));
      for (const size_t i : chosen.places) {
        crowded[i] = 0.0f;
      }
      EXPECT_EQ(chosen.e_next, crowded);
      crowded = g.floats();
    }
  }
}

TEST(Select, KthLargestIsThatOfASort) {
  for (const size_t count : {1, 2, 1000, 50000}) {
    std::vector<uint32_t> magnitudes(count);
    const std::vector<float> x = heavy_tailed(count, 9);
    for (size_t i = 0; i < count; ++i) {
      magnitudes[i] = i % 7 == 0 ? 0x3F800000u : bits_of(std::fabs(x[i]));
    }
    std::vector<uint32_t> scratch(count);
    std::vector<uint32_t> sorted = magnitudes;
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t k = 1; k <= count; k += 1 + count / 97) {
      ASSERT_EQ(cpu::kth_largest(magnitudes, k, scratch), sorted[k - 1]) << k;
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
