// powersgd over matrices: against its equations in double precision, and what low rank alone
// promises. tests/simt compiles this file once more, on an emulated GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/low_rank_case.h"
#include "tests/reference/powersgd_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 1907;
#if defined(GRADWIRE_LAWS_ON_DEVICE)  // an emulator takes its time
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

/// rows x cols of the given singular values, between random bases.
std::vector<float> matrix_of(size_t rows, size_t cols, const std::vector<double>& values) {
  const auto left = reference::first_vectors(rows, values.size(), 1, 0, 77);
  const auto right = reference::first_vectors(cols, values.size(), 2, 1, 77);
  std::vector<float> m(rows * cols);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (size_t r = 0; r < values.size(); ++r) {
        sum += values[r] * left[r][i] * right[r][j];
      }
      m[i * cols + j] = static_cast<float>(sum);
    }
  }
  return m;
}

TEST(PowerSgd, SendsWhatItsEquationsSay) {
  constexpr size_t kRank = 4;
  const std::vector<Segment> segments = mixed_segments();
  LowRankRanks ranks("powersgd:4", segments, 2, kSeed);
  std::vector<reference::PowerSgd> expected;
  for (const Segment& s : segments) {
    const size_t cols = s.rows > 0 ? s.numel / s.rows : s.numel;
    expected.emplace_back(s.rows, cols,
                          is_sent_as_factors(s, kRank)
                              ? reference::first_vectors(cols, kRank, s.parameter, 1, kSeed)
                              : reference::Vectors{});
  }
  std::vector<std::vector<double>> kept(2, std::vector<double>(numel_of(segments)));
  for (uint64_t step = 0; step < 4; ++step) {
    const std::vector<std::vector<float>> g{normal(numel_of(segments), kSeed + 2 * step),
                                            normal(numel_of(segments), kSeed + 2 * step + 1)};
    const std::vector<float> mean = ranks.step(g);
    ranks.commit();
    size_t at = 0;
    for (size_t k = 0; k < segments.size(); ++k) {
      SCOPED_TRACE(concat("step ", step, ", segment ", k));
      const size_t numel = segments[k].numel;
      std::vector<std::vector<double>> x(2, std::vector<double>(numel));
      for (size_t r = 0; r < 2; ++r) {
        for (size_t i = 0; i < numel; ++i) {
          x[r][i] = kept[r][at + i] + double{g[r][at + i]};
        }
      }
      const bool factors = is_sent_as_factors(segments[k], kRank);
      for (size_t r = 0; r < 2; ++r) {
        const auto sent = factors ? expected[k].sent(x[r]) : x[r];
        for (size_t i = 0; i < numel; ++i) {
          kept[r][at + i] = x[r][i] - sent[i];
          ASSERT_NEAR(ranks.residual(r)[at + i], kept[r][at + i], 2e-4) << "element " << i;
        }
      }
      std::vector<double> result(numel);
      for (size_t i = 0; i < numel; ++i) {
        result[i] = (x[0][i] + x[1][i]) / 2;
      }
      result = factors ? expected[k].step(x) : result;
      for (size_t i = 0; i < numel; ++i) {
        ASSERT_NEAR(mean[at + i], result[i], 2e-4) << "element " << i;
      }
      at += numel;
    }
  }
}

// The floats of a payload, counted by hand: 19 + 35 + 1 elements of other parameters, and four
// vectors of 150 + 40 + 33 + 260 rows or of 37 + 300 + 33 + 9 columns.
TEST(PowerSgd, SendsRowsAndColumnsInTurn) {
  LowRankRanks ranks("powersgd:4", mixed_segments(), 1, kSeed);
  const std::vector<float> g = normal(numel_of(mixed_segments()), kSeed);
  for (const size_t vectors : {483, 379, 483, 379}) {
    ranks.step({g});
    EXPECT_EQ(ranks.payloads()[0].size(), 32 + 4 * (55 + 4 * vectors));
    EXPECT_EQ(read_header(ranks.payloads()[0]).variant, vectors == 483 ? 0u : 1u);
    ranks.commit();
  }
  EXPECT_EQ(ranks.rig(0).compressor().capacity_bytes(), 32u + 4 * (55 + 4 * 483));
  EXPECT_FALSE(ranks.rig(0).compressor().fixed_length());
}

TEST(PowerSgd, LosesNothingOfMatrices) {
  for (const DType dtype : kDTypes) {
    for (const char* spec : {"powersgd:1", "powersgd:4", "powersgd:9"}) {
      if (kSlow && spec != std::string_view("powersgd:4")) {
        continue;
      }
      const std::vector<Segment> segments = mixed_segments();
      const size_t numel = numel_of(segments);
      Rig rig(spec, shape_of(segments, kSeed, 0, dtype));
      Rig reader(spec, shape_of(segments, kSeed));
      std::vector<float> e = normal(numel, kSeed + 1, 0.1f), e_next(numel);
      for (uint64_t step = 0; step < (kSlow ? 2 : 3); ++step) {
        SCOPED_TRACE(concat(spec, " ", to_string(dtype), ", step ", step));
        const OwnedTensor g = tensor_of(layered(numel, kSeed + step), dtype);
        const auto payload = rig.compress(g, e, e_next);
        EXPECT_EQ(payload, rig.compress(g, e, e_next)) << "the same call again";
        const std::vector<float> decoded = reader.decompress({payload}).floats();
        rig.decompress({payload});
        const std::vector<float> x = sum_of(g.floats(), e);
        for (size_t i = 0; i < numel; ++i) {
          const double both = double{decoded[i]} + double{e_next[i]};
          ASSERT_LE(std::abs(both - x[i]), std::abs(e_next[i]) * 0x1p-24) << "element " << i;
        }
        EXPECT_LE(square_of_difference(decoded, x), square(x) * 1.00001) << "it contracts";
        std::vector<float> accumulated = x;
        EXPECT_EQ(rig.compress_accumulated(accumulated), payload);
        EXPECT_TRUE(all_equal(accumulated, e_next));
        rig.restore(payload, accumulated);
        EXPECT_TRUE(all_close(std::span(accumulated), std::span(x), 1e-6, 1e-6));
        rig.commit();
        reader.commit();
        e = e_next;
      }
    }
  }
}

TEST(PowerSgd, FindsAMatrixOfLowRankInTheSecondStep) {
  const std::vector<Segment> segments{{4, 0, 96 * 130, 96}};
  const std::vector<float> m = matrix_of(96, 130, {5, 2, 1});
  LowRankRanks ranks("powersgd:4,noef", segments, 1, kSeed);
  EXPECT_GT(square_of_difference(ranks.step({m}), m), 0.1 * square(m));
  for (int step = 0; step < 3; ++step) {
    ranks.commit();
    EXPECT_LT(square_of_difference(ranks.step({m}), m), 1e-10 * square(m)) << "step " << step;
  }
}

TEST(PowerSgd, ConvergesToTheLargestSingularVectors) {
  const std::vector<Segment> segments{{4, 0, 70 * 60, 70}};
  const std::vector<float> m = matrix_of(70, 60, {8, 6, 4, 1.5, 1, 0.5});
  LowRankRanks ranks("powersgd:3,noef", segments, 1, kSeed);
  for (int step = 0; step < 12; ++step) {
    ranks.step({m});
    ranks.commit();
  }
  const double rest = 1.5 * 1.5 + 1 + 0.25;  // the best three vectors leave this
  EXPECT_NEAR(square_of_difference(ranks.step({m}), m), rest, 1e-3 * rest);
}

TEST(PowerSgd, GoesOnBehindZerosAndDependentColumns) {
  const std::vector<Segment> segments{{4, 0, 50 * 40, 50}};
  const std::vector<float> zero(2000);
  LowRankRanks ranks("powersgd:5", segments, 2, kSeed);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(all_equal(ranks.step({zero, zero}), zero));
    ranks.commit();
  }
  const std::vector<float> m = matrix_of(50, 40, {3, 1e-9});
  LowRankRanks behind("powersgd:5,noef", segments, 1, kSeed);
  for (int step = 0; step < 4; ++step) {
    const std::vector<float> mean = behind.step({step == 0 ? zero : m});
    for (const float v : mean) {
      ASSERT_TRUE(std::isfinite(v));
    }
    EXPECT_LT(square_of_difference(mean, m), step < 2 ? 10.0 : 1e-8);
    behind.commit();
  }
  // Magnitudes at both ends of float32: squares would leave its range.
  for (const float factor : {1e-30f, 1e30f}) {
    std::vector<float> scaled = m;
    for (float& v : scaled) {
      v *= factor;
    }
    LowRankRanks scales("powersgd:2,noef", segments, 1, kSeed);
    scales.step({scaled});
    scales.commit();
    const std::vector<float> mean = scales.step({scaled});
    for (size_t i = 0; i < m.size(); ++i) {
      ASSERT_NEAR(mean[i] / factor, m[i], 1e-5);
    }
  }
}

TEST(PowerSgd, FlagsWhatIsNotFiniteAndLearnsNothingUncommitted) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  const std::vector<float> good = normal(numel, kSeed);
  for (const size_t bad : {size_t{3}, size_t{19 + 77}, numel - 1}) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(concat("element ", bad, " is ", value));
      LowRankRanks clean("powersgd:4", segments, 1, kSeed);
      LowRankRanks met("powersgd:4", segments, 1, kSeed);
      for (int step = 0; step < (kSlow ? 1 : 3); ++step) {
        std::vector<float> g = good;
        g[bad] = value;
        const std::vector<float> mean = met.step({g});  // and no commit
        EXPECT_EQ(flags_of(met.payloads()[0]), kFlagNonFinite);
        EXPECT_TRUE(all_equal(mean, std::vector<float>(numel)));
        EXPECT_TRUE(all_equal(met.step({good}), clean.step({good})));
        EXPECT_EQ(met.payloads(), clean.payloads());
        EXPECT_EQ(flags_of(met.payloads()[0]), 0);
        met.commit();
        clean.commit();
      }
    }
  }
}

// Of a gradient of 1e38 u v^T, u and v of +-1, factors are finite and so is what is left of it.
// That would overflow every later product, for which reason it is refused, and keeps no step back.
TEST(PowerSgd, GoesOnBehindAFiniteGradientWhoseResidualCouldNotBeMultiplied) {
  const std::vector<Segment> segments{{4, 0, 64 * 48, 64}};
  const std::vector<float> good = normal(64 * 48, kSeed);
  std::vector<float> large(good.size());
  for (size_t i = 0; i < large.size(); ++i) {
    large[i] = std::copysign(1e38f, good[i / 48 * 48] * good[i % 48]);
  }
  for (const char* spec : {"powersgd:1", "powersgd:4", "powersgd:2,rounds=2",
                           "powersgd:2,decay=0.9", "powersgd:2,momentum=0.9",
                           "powersgd:2,decay=0.9,momentum=0.9", "powersgd:2,ef21"}) {
    for (int behind = 0; behind < 2; ++behind) {  // factors of either side
      SCOPED_TRACE(concat(spec, ", behind ", behind, " steps"));
      LowRankRanks ranks(spec, segments, 2, kSeed);
      for (int step = 0; step < behind + 4; ++step) {
        ranks.step({step == behind ? large : good, good});
        const bool refused = flags_of(ranks.payloads()[0]) != 0;
        EXPECT_EQ(refused, step == behind) << "step " << step;
        EXPECT_EQ(flags_of(ranks.payloads()[1]), 0);
        if (!refused) {
          ranks.commit();
        }
      }
    }
  }
}

TEST(PowerSgd, SlicesAddUpToTheSumOfRanks) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  constexpr int kRanks = 3;
  LowRankRanks ranks("powersgd:4", segments, kRanks, kSeed);
  Rig reader("powersgd:4", shape_of(segments, kSeed));
  for (uint64_t step = 0; step < 2; ++step) {
    std::vector<std::vector<float>> g;
    for (uint64_t r = 0; r < kRanks; ++r) {
      g.push_back(heavy_tailed(numel, kSeed + 3 * step + r));
    }
    const std::vector<float> mean = ranks.step(g);
    for (const size_t chunks : {1, 2, 9}) {
      std::vector<std::vector<std::byte>> merged, tiled;
      for (const Region region : tiles(numel, chunks)) {
        std::vector<std::vector<std::byte>> slices;
        for (const auto& payload : ranks.payloads()) {
          slices.push_back(reader.slice(payload, region));
          EXPECT_LE(slices.back().size(), reader.compressor().slice_capacity_bytes(region));
        }
        tiled.push_back(slices[0]);
        merged.push_back(reader.merge(slices, region, 1.0f / kRanks, {}));
      }
      EXPECT_TRUE(all_equal(reader.decompress(merged).floats(), mean)) << chunks << " chunks";
      const auto whole = reader.decompress({ranks.payloads()[0]}).floats();
      EXPECT_TRUE(all_equal(reader.decompress(tiled).floats(), whole));
    }
    EXPECT_EQ(reader.slice(ranks.payloads()[0], {0, numel}), ranks.payloads()[0]);
    EXPECT_TRUE(all_equal(reader.decompress(ranks.payloads(), 1.0f / kRanks).floats(), mean));
    ranks.commit();
    reader.commit();
  }
}

TEST(PowerSgd, RefusesFactorsOfTheOtherSide) {
  LowRankRanks ranks("powersgd:4", mixed_segments(), 1, kSeed);
  ranks.step({normal(numel_of(mixed_segments()), kSeed)});
  const auto payload = ranks.payloads()[0];
  ranks.commit();
  EXPECT_THROW(ranks.rig(0).decompress({payload}), InvalidArgument);
  auto wrong = payload;
  wrong[20] = std::byte{1};  // the variant: then the body has another length
  EXPECT_THROW(ranks.rig(0).decompress({wrong}), InvalidArgument);
}

// Its products have several tiles of rows and blocks of vectors.
TEST(PowerSgd, TakesHighRanksAndManyRows) {
  for (const uint32_t rank : {1u, 6u, 40u}) {
    if (kSlow && rank != 6) {
      continue;
    }
    SCOPED_TRACE(rank);
    const std::vector<Segment> segments{{1, 0, 700 * 90, 700}, {2, 0, 90 * 611, 90}};
    const std::vector<float> m = normal(numel_of(segments), kSeed);
    LowRankRanks ranks(concat("powersgd:", rank), segments, 1, kSeed);
    std::vector<double> sent(m.size());
    const int steps = 4;
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> mean = ranks.step({m});
      ranks.commit();
      for (size_t i = 0; i < m.size(); ++i) {
        sent[i] += mean[i];
      }
    }
    for (size_t i = 0; i < m.size(); ++i) {  // all that was not sent is kept
      ASSERT_NEAR(sent[i] + ranks.residual(0)[i], steps * double{m[i]}, 1e-4);
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
