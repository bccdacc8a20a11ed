// Selection within every chunk against a sort of that chunk, on every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "gradwire/kernels/ops/select.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/generators.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 815;
constexpr size_t kLen = cpu::kSelectChunk;

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

/// Places of what a sort of each chunk chooses; `k` of a whole one.
std::vector<size_t> sorted_choice(const std::vector<float>& x, size_t k) {
  std::vector<size_t> places;
  for (size_t begin = 0; begin < x.size(); begin += kLen) {
    const size_t len = std::min(kLen, x.size() - begin);
    const std::vector<float> chunk(x.begin() + static_cast<ptrdiff_t>(begin),
                                   x.begin() + static_cast<ptrdiff_t>(begin + len));
    const auto exact = static_cast<double>(k * len) / 4096.0;
    for (const size_t i :
         reference::top_k(chunk, std::max<size_t>(1, static_cast<size_t>(std::ceil(exact))))) {
      places.push_back(begin + i);
    }
  }
  return places;
}

void expect_as_sorted(const std::vector<float>& x, size_t k, DType dtype = DType::kFloat32,
                      size_t offset = 0) {
  OwnedTensor g = tensor_of(x, dtype);
  const std::vector<float> residual = normal(x.size(), kSeed + 1, 1e-2f);
  for (const bool feedback : {false, true}) {
    const std::vector<float> e = feedback ? residual : std::vector<float>();
    std::vector<float> sum = g.floats();
    for (size_t i = 0; i < e.size(); ++i) {
      sum[i] += e[i];
    }
    const std::vector<size_t> expected = sorted_choice(sum, k);
    std::vector<float> rest = sum;
    for (const size_t i : expected) {
      rest[i] = 0.0f;
    }
    for (const cpu::Isa level : isa_paths()) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(concat(name_of(level), ", threads ", threads, ", feedback ", feedback));
        const cpu::IsaLimit limit(level);
        Workspace workspace;
        Workspace::Frame frame(workspace);
        ThreadPool pool(threads);
        Buffer memory((e.size() + 32) * sizeof(float));
        const std::span<float> e_next = memory.as<float>().subspan(offset, e.size());
        const cpu::Selection chosen = cpu::select_largest_in_chunks(
            {.g = g.view(), .e = e, .e_next = e_next, .k = k}, frame, pool);
        EXPECT_TRUE(chosen.finite);
        ASSERT_EQ(chosen.total, expected.size());
        size_t at = 0;
        for (size_t chunk = 0; chunk < chosen.chunks.size(); ++chunk) {
          const auto [first, count] = chosen.chunks[chunk];
          for (size_t i = first; i < first + count; ++i, ++at) {
            ASSERT_EQ(chunk * kLen + chosen.indices[i], expected[at]);
            ASSERT_EQ(bits_of(chosen.values[i]), bits_of(sum[expected[at]]));
          }
        }
        if (feedback) {
          ASSERT_TRUE(std::ranges::equal(e_next, rest, {}, bits_of, bits_of));
        }
      }
    }
  }
}

TEST(SelectInChunks, ChoosesWhatASortOfEachChunkChooses) {
  for (const size_t n : {0, 1, 99, 100, 4095, 4096, 4097, 70001}) {
    for (const size_t k : {1, 5, 41, 64, 1229, 4095, 4096}) {
      SCOPED_TRACE(concat(k, " of ", n));
      for (const auto& x : {normal(n, kSeed), heavy_tailed(n, kSeed), layered(n, kSeed)}) {
        expect_as_sorted(x, k);
      }
    }
  }
}

TEST(SelectInChunks, WhereTheScaleJumpsFromChunkToChunk) {
  std::vector<float> x = normal(40 * kLen + 9, kSeed);
  for (size_t i = 0; i < x.size(); ++i) {  // no chunk tells anything about the next
    x[i] = std::ldexp(x[i], static_cast<int>(i / kLen * 71 % 140) - 70);
  }
  expect_as_sorted(x, 41);
  std::fill(x.begin() + 5 * kLen, x.begin() + 20 * kLen, 0.0f);
  x[7 * kLen + 3] = std::numeric_limits<float>::denorm_min();
  expect_as_sorted(x, 41);
}

TEST(SelectInChunks, TiesGoToTheSmallerIndex) {
  std::vector<float> x(5 * kLen + 100, -2.5f);
  expect_as_sorted(x, 41);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 50 == 3 ? 2.5f : i % 7 == 0 ? -0.1f : i % 3 == 0 ? 0.1f : 0.0f;
  }
  expect_as_sorted(x, 41);    // within the largest
  expect_as_sorted(x, 100);   // all of those, and some of the next
  expect_as_sorted(x, 3000);  // more than there are but zeros
}

TEST(SelectInChunks, OfHalvesToo) {
  expect_as_sorted(normal(70001, kSeed), 41, DType::kFloat16);  // many ties
  expect_as_sorted(normal(70001, kSeed), 41, DType::kBFloat16);
}

TEST(SelectInChunks, WhereverTheResidualLies) {
  const std::vector<float> x = heavy_tailed(cpu::kStreamingNumel + 7, kSeed);
  for (const size_t offset : {0, 1, 15}) {
    expect_as_sorted(x, 41, DType::kFloat32, offset);
  }
}

TEST(SelectInChunks, NothingIsChosenWhereNotAllIsFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = normal(3 * kLen, kSeed);
    x[2 * kLen + 5] = bad;
    std::vector<float> in_place = x;
    OwnedTensor g = tensor_of(x, DType::kFloat32);
    for (const size_t k : {1, 41, 4096}) {
      Workspace workspace;
      Workspace::Frame frame(workspace);
      ThreadPool pool(1);
      const cpu::Selection chosen =
          cpu::select_largest_in_chunks({.g = g.view(), .k = k}, frame, pool);
      EXPECT_FALSE(chosen.finite);
      EXPECT_EQ(chosen.total, 0u);
      for (const cpu::Selection::Chunk& chunk : chosen.chunks) {
        EXPECT_EQ(chunk.count, 0u);
      }
      const auto kept = cpu::select_largest_in_chunks(
          {.g = view_of(std::span<const float>(in_place)), .e_next = in_place, .k = k}, frame,
          pool);
      EXPECT_FALSE(kept.finite);
      EXPECT_EQ(kept.total, 0u);
      EXPECT_TRUE(std::ranges::equal(in_place, x, {}, bits_of, bits_of));
    }
  }
}

TEST(KeptInChunk, RoundsUp) {
  EXPECT_EQ(kept_in_chunk(41, 4096), 41u);
  EXPECT_EQ(kept_in_chunk(41, 0), 0u);
  EXPECT_EQ(kept_in_chunk(41, 1), 1u);
  EXPECT_EQ(kept_in_chunk(41, 99), 1u);
  EXPECT_EQ(kept_in_chunk(41, 100), 2u);
  EXPECT_EQ(kept_in_chunk(41, 4095), 41u);
  EXPECT_EQ(kept_in_chunk(4096, 4095), 4095u);
}

}  // namespace
}  // namespace gradwire::testing
