// Tall-skinny products against plain loops in the order that lowrank.h gives, bit for bit, with the
// registers of every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gradwire/kernels/ops/lowrank.h"
#include "tests/support/isa_paths.h"

namespace gradwire::testing {
namespace {

constexpr uint32_t kSeed = 20260731;
constexpr uint32_t kRanks[] = {1, 2, 3, 4, 5, 7, 8, 16, 33};

struct Case {
  uint32_t rows, cols, rank;
  std::vector<float> x, left, right;

  Case(uint32_t n, uint32_t m, uint32_t r)
      : rows(n), cols(m), rank(r), x(size_t{n} * m), left(size_t{n} * r), right(size_t{m} * r) {
    std::mt19937 random(kSeed + n + 7 * m + 31 * r);
    std::normal_distribution<float> normal;
    for (auto* values : {&x, &left, &right}) {
      for (float& v : *values) {
        v = normal(random);
      }
    }
  }
  LowRankMatrix matrix() const { return {.rows = rows, .cols = cols}; }

  /// In 32 lanes, element j in lane j % 32; lanes l and l + 16, l + 8, .., l + 1.
  std::vector<float> times_right() const {
    std::vector<float> out(left.size());
    for (uint32_t r = 0; r < rank; ++r) {
      for (uint32_t i = 0; i < rows; ++i) {
        float lanes[32] = {};
        for (uint32_t j = 0; j < cols; ++j) {
          lanes[j % 32] += x[size_t{i} * cols + j] * right[size_t{r} * cols + j];
        }
        for (int apart = 16; apart > 0; apart /= 2) {
          for (int l = 0; l < apart; ++l) {
            lanes[l] += lanes[l + apart];
          }
        }
        out[size_t{r} * rows + i] = lanes[0];
      }
    }
    return out;
  }
  /// The rows of a tile in order, then the tiles.
  std::vector<float> times_left() const {
    std::vector<float> out(right.size());
    for (uint32_t r = 0; r < rank; ++r) {
      for (uint32_t j = 0; j < cols; ++j) {
        float total = 0;
        for (uint32_t tile = 0; tile < rows; tile += rows_of_tile(rank)) {
          float sum = 0;
          for (uint32_t i = tile; i < std::min(rows, tile + rows_of_tile(rank)); ++i) {
            sum += x[size_t{i} * cols + j] * left[size_t{r} * rows + i];
          }
          total += sum;
        }
        out[size_t{r} * cols + j] = total;
      }
    }
    return out;
  }
  /// The terms in order of the vectors.
  std::vector<float> product() const {
    std::vector<float> out(x.size());
    for (uint32_t i = 0; i < rows; ++i) {
      for (uint32_t j = 0; j < cols; ++j) {
        float sum = left[i] * right[j];
        for (uint32_t r = 1; r < rank; ++r) {
          sum += left[size_t{r} * rows + i] * right[size_t{r} * cols + j];
        }
        out[size_t{i} * cols + j] = sum;
      }
    }
    return out;
  }
};

/// Of a bit more than blocks and lanes, a bit less, and a few.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const uint32_t rank : kRanks) {
    all.emplace_back(67, 65, rank);
    all.emplace_back(6, 2100, rank);
    all.emplace_back(150, 31, rank);
    all.emplace_back(1 + 2 * rank, 16, rank);
  }
  return all;
}

/// What the verbs write.
struct Results {
  std::vector<float> left, right, product, rest, basis;
};

Results run(const Case& c) {
  const std::vector<LowRankMatrix> matrices{c.matrix()};
  const cpu::LowRankInput input{view_of(std::span<const float>(c.x)), {}, matrices, c.rank};
  ThreadPool pool(2);
  Workspace workspace;
  Results made{.left = std::vector<float>(c.left.size()),
               .right = std::vector<float>(c.right.size()),
               .product = std::vector<float>(c.x.size()),
               .rest = std::vector<float>(c.x.size()),
               .basis = c.right};
  EXPECT_TRUE(cpu::multiply_right(input, c.right.data(), made.left.data(), {}, pool));
  EXPECT_TRUE(cpu::multiply_left(input, c.left.data(), made.right.data(), workspace, pool));
  const cpu::FactorPair factors{c.left.data(), c.right.data()};
  cpu::write_product(matrices, c.rank, factors, {view_of(std::span(made.product))}, pool);
  EXPECT_TRUE(cpu::subtract_product(input, factors, made.rest, pool));
  if (c.rank < c.cols) {
    cpu::orthonormalise(matrices, c.rank, FactorSide::kRight, made.basis.data(), pool);
  }
  return made;
}

TEST(LowRankProducts, AddUpInTheOrderGivenWithEveryInstructionSet) {
  RecordProperty("seed", static_cast<int>(kSeed));
  for (const cpu::Isa level : isa_paths()) {
    const cpu::IsaLimit limit(level);
    for (const Case& c : cases()) {
      SCOPED_TRACE(
          concat(name_of(level), ": ", c.rows, " x ", c.cols, ", rank ", c.rank, ", seed ", kSeed));
      const Results made = run(c);
      EXPECT_EQ(made.left, c.times_right());
      EXPECT_EQ(made.right, c.times_left());
      const std::vector<float> product = c.product();
      EXPECT_EQ(made.product, product);
      for (size_t i = 0; i < c.x.size(); ++i) {
        ASSERT_EQ(made.rest[i], c.x[i] - product[i]);
      }
    }
  }
}

TEST(LowRankProducts, BasesHaveTheSameBitsWithEveryInstructionSet) {
  for (const Case& c : cases()) {
    if (c.rank >= c.cols) {
      continue;
    }
    std::vector<float> first;
    for (const cpu::Isa level : isa_paths()) {
      SCOPED_TRACE(concat(name_of(level), ": ", c.cols, " elements, rank ", c.rank));
      const cpu::IsaLimit limit(level);
      const std::vector<float> basis = run(c).basis;
      for (uint32_t a = 0; a < c.rank; ++a) {
        for (uint32_t b = 0; b <= a; ++b) {
          double dot = 0;
          for (uint32_t j = 0; j < c.cols; ++j) {
            dot += double{basis[size_t{a} * c.cols + j]} * basis[size_t{b} * c.cols + j];
          }
          ASSERT_NEAR(dot, a == b, 2e-6);
        }
      }
      first = first.empty() ? basis : first;
      EXPECT_EQ(basis, first);
    }
  }
}

// A sum is not finite where a term is not, also beside a factor's zero.
TEST(LowRankProducts, SayWhereAnElementIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ThreadPool pool(1);
  Workspace workspace;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const uint32_t rank : {1u, 4u, 5u}) {
      for (const size_t at : {size_t{0}, size_t{67 * 65 - 1}, size_t{1000}}) {
        Case c(67, 65, rank);
        c.x[at] = bad;
        std::ranges::fill(c.left, 0.0f);
        std::ranges::fill(c.right, 0.0f);
        const std::vector<LowRankMatrix> matrices{c.matrix()};
        const cpu::LowRankInput input{view_of(std::span<const float>(c.x)), {}, matrices, rank};
        std::vector<float> left(c.left.size()), right(c.right.size());
        EXPECT_FALSE(cpu::multiply_right(input, c.right.data(), left.data(), {}, pool));
        EXPECT_FALSE(cpu::multiply_left(input, c.left.data(), right.data(), workspace, pool));
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
