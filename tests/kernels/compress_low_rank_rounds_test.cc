// powersgd with two rounds in a step, on whatever device (compress_laws_test.cc): the paper's form,
// from which it may differ in no mean.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/low_rank_case.h"
#include "tests/reference/powersgd_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 1905;

/// A product of `rank` vectors.
std::vector<float> matrix_of_rank(size_t rows, size_t cols, size_t rank) {
  const std::vector<float> left = normal(rows * rank, kSeed),
                           right = normal(cols * rank, kSeed + 1);
  std::vector<float> m(rows * cols);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      for (size_t r = 0; r < rank; ++r) {
        m[i * cols + j] += left[i * rank + r] * right[j * rank + r];
      }
    }
  }
  return m;
}

// What the ranks keep differs from the paper's e_i = M_i - P Q-bar^T, and its sum does not.
TEST(PowerSgdOfTwoRounds, HasTheMeansOfThePaper) {
  constexpr size_t kRank = 4, kRanks = 3;
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  LowRankRanks ranks("powersgd:4,rounds=2", segments, kRanks, kSeed);
  std::vector<reference::PowerSgdOfTwoRounds> expected;
  for (const Segment& s : segments) {
    const size_t cols = s.rows > 0 ? s.numel / s.rows : s.numel;
    expected.emplace_back(s.rows > 0 ? s.rows : 1, cols,
                          is_sent_as_factors(s, kRank)
                              ? reference::first_vectors(cols, kRank, s.parameter, 1, kSeed)
                              : reference::Vectors{},
                          kRanks);
  }
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<std::vector<float>> g;
    for (uint64_t r = 0; r < kRanks; ++r) {
      g.push_back(normal(numel, kSeed + 10 * step + r));
    }
    const std::vector<float> mean = ranks.step(g);
    ranks.commit();
    size_t at = 0;
    for (size_t k = 0; k < segments.size(); at += segments[k].numel, ++k) {
      SCOPED_TRACE(concat("step ", step, ", segment ", k));
      const size_t length = segments[k].numel;
      const bool factors = is_sent_as_factors(segments[k], kRank);
      std::vector<std::vector<double>> of_ranks(kRanks, std::vector<double>(length));
      std::vector<double> result(length);
      for (size_t r = 0; r < kRanks; ++r) {
        for (size_t i = 0; i < length; ++i) {
          of_ranks[r][i] = g[r][at + i];
          result[i] += of_ranks[r][i] / kRanks;
        }
      }
      result = factors ? expected[k].step(of_ranks) : result;
      for (size_t i = 0; i < length; ++i) {
        ASSERT_NEAR(mean[at + i], result[i], 2e-4) << "element " << i;
        double kept = 0, wanted = 0;
        for (size_t r = 0; r < kRanks; ++r) {
          kept += ranks.residual(r)[at + i];
          wanted += factors ? expected[k].kept[r][i] : 0;
        }
        ASSERT_NEAR(kept, wanted, 5e-4) << "element " << i;
      }
    }
  }
}

// Of 19 + 35 + 1 elements beside the matrices nothing is in the first payload: four vectors of 150
// + 40 + 33 + 260 rows, then those elements and four of 37 + 300 + 33 + 9 columns.
TEST(PowerSgdOfTwoRounds, SendsBothSides) {
  LowRankRanks ranks("powersgd:4,rounds=2", mixed_segments(), 1, kSeed);
  const Compressor& compressor = ranks.rig(0).compressor();
  EXPECT_EQ(compressor.rounds(), 2);
  EXPECT_EQ(compressor.first_bytes(), 32u + 4 * 4 * 483);
  EXPECT_EQ(compressor.capacity_bytes(), 32u + 4 * 4 * 483);
  for (int step = 0; step < 3; ++step) {
    ranks.step({normal(numel_of(mixed_segments()), kSeed)});
    EXPECT_EQ(ranks.first_payloads()[0].size(), 32 + 4 * 4 * 483);
    EXPECT_EQ(read_header(ranks.first_payloads()[0]).variant, 0u);
    EXPECT_EQ(ranks.payloads()[0].size(), 32 + 4 * (55 + 4 * 379));
    EXPECT_EQ(read_header(ranks.payloads()[0]).variant, 1u);
    ranks.commit();
  }
  Rig without("powersgd:4,rounds=2", {.numel = 5000});
  EXPECT_EQ(without.compressor().rounds(), 1) << "no matrix: nothing for a first round";
  EXPECT_EQ(without.compressor().first_bytes(), 0u);
  EXPECT_TRUE(without.compressor().fixed_length());
}

TEST(PowerSgdOfTwoRounds, LosesNothingOfMatrices) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  for (const DType dtype : kDTypes) {
    for (const char* spec : {"powersgd:1,rounds=2", "powersgd:4,rounds=2", "powersgd:9,rounds=2",
                             "powersgd:4,rounds=2,decay=0.5", "powersgd:4,rounds=2,ef21"}) {
      Rig rig(spec, shape_of(segments, kSeed, 0, dtype));
      Rig reader(spec, shape_of(segments, kSeed));
      const CompressorSpec parsed = parse_spec(spec);
      std::vector<float> e = normal(numel, kSeed + 1, 0.1f), e_next(numel);
      for (uint64_t step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat(spec, " ", to_string(dtype), ", step ", step));
        const OwnedTensor g = tensor_of(layered(numel, kSeed + step), dtype);
        const auto first = rig.compress(g, e, e_next);
        EXPECT_EQ(first, rig.compress(g, e, e_next)) << "the same call again";
        for (Rig* each : {&rig, &reader}) {
          each->take_first({first});
        }
        const auto payload = rig.compress_second(g, e, e_next);
        EXPECT_EQ(payload, rig.compress_second(g, e, e_next)) << "the same call again";
        const std::vector<float> decoded = reader.decompress({payload}).floats();
        rig.decompress({payload});
        const std::vector<float> x =
            sum_of(g.floats(), e, static_cast<float>(parsed.feedback.decay));
        for (size_t i = 0; i < numel; ++i) {
          if (parsed.feedback.ef21) {
            ASSERT_NEAR(e_next[i], double{e[i]} - decoded[i],
                        0x1p-22 * (std::abs(x[i]) + std::abs(decoded[i]) + std::abs(e[i])));
          } else {
            const double both = double{decoded[i]} + double{e_next[i]};
            ASSERT_LE(std::abs(both - x[i]), std::abs(e_next[i]) * 0x1p-24) << "element " << i;
          }
        }
        EXPECT_LE(square_of_difference(decoded, x), square(x) * 1.00001) << "it contracts";
        rig.commit();
        reader.commit();
        e = e_next;
      }
    }
  }
}

TEST(PowerSgdOfTwoRounds, OfOneWorkerIsExactWhereTheRankIs) {
  const std::vector<Segment> segments{{4, 0, 96 * 130, 96}};
  const std::vector<float> m = matrix_of_rank(96, 130, 3);
  LowRankRanks exact("powersgd:4,rounds=2,noef", segments, 1, kSeed);
  LowRankRanks too_few("powersgd:2,rounds=2,noef", segments, 1, kSeed);
  for (int step = 0; step < 3; ++step) {
    EXPECT_LT(square_of_difference(exact.step({m}), m), 1e-10 * square(m)) << "step " << step;
    EXPECT_GT(square_of_difference(too_few.step({m}), m), 0.01 * square(m)) << "step " << step;
    exact.commit();
    too_few.commit();
  }
  for (const float factor : {1e-30f, 1e30f}) {  // squares would leave the range of float32
    std::vector<float> scaled = m;
    for (float& v : scaled) {
      v *= factor;
    }
    LowRankRanks scales("powersgd:3,rounds=2,noef", segments, 1, kSeed);
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> mean = scales.step({scaled});
      for (size_t i = 0; i < m.size(); ++i) {
        ASSERT_NEAR(mean[i] / factor, m[i], 2e-5);
      }
      scales.commit();
    }
  }
}

TEST(PowerSgdOfTwoRounds, GoesOnBehindZeros) {
  const std::vector<Segment> segments{{4, 0, 50 * 40, 50}};
  const std::vector<float> zero(2000), m = matrix_of_rank(50, 40, 2);
  LowRankRanks ranks("powersgd:5,rounds=2", segments, 2, kSeed);
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(all_equal(ranks.step({zero, zero}), zero));
    ranks.commit();
  }
  EXPECT_LT(square_of_difference(ranks.step({m, m}), m), 1e-10 * square(m));
}

TEST(PowerSgdOfTwoRounds, LearnsNothingFromAStepThatIsNotCommitted) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  const std::vector<float> good = normal(numel, kSeed);
  for (const size_t bad : {size_t{3}, size_t{19 + 77}, numel - 1}) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(concat("element ", bad, " is ", value));
      LowRankRanks clean("powersgd:4,rounds=2", segments, 1, kSeed);
      LowRankRanks met("powersgd:4,rounds=2", segments, 1, kSeed);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> g = good;
        g[bad] = value;
        const std::vector<float> mean = met.step({g});  // and no commit
        EXPECT_EQ(flags_of(met.payloads()[0]), kFlagNonFinite);
        EXPECT_TRUE(all_equal(mean, std::vector<float>(numel)));
        met.step({normal(numel, kSeed + 9)});
        // Broken off between the rounds, too.
        Rig& rig = met.rig(0);
        std::vector<float> next(numel);
        const auto other = tensor_of(normal(numel, kSeed + 8), DType::kFloat32);
        rig.take_first({rig.compress(other, met.residual(0), next)});
        EXPECT_TRUE(all_equal(met.step({good}), clean.step({good})));
        EXPECT_EQ(met.first_payloads(), clean.first_payloads());
        EXPECT_EQ(met.payloads(), clean.payloads());
        met.commit();
        clean.commit();
        EXPECT_TRUE(all_equal(met.residual(0), clean.residual(0)));
      }
    }
  }
}

TEST(PowerSgdOfTwoRounds, SlicesOfBothPayloadsAddUp) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  constexpr int kRanks = 3;
  constexpr float kScale = 1.0f / kRanks;
  LowRankRanks ranks("powersgd:4,rounds=2", segments, kRanks, kSeed);
  for (uint64_t step = 0; step < 2; ++step) {
    std::vector<std::vector<float>> g;
    for (uint64_t r = 0; r < kRanks; ++r) {
      g.push_back(heavy_tailed(numel, kSeed + 3 * step + r));
    }
    const std::vector<float> mean = ranks.step(g);
    for (const size_t chunks : {1, 2, 9}) {
      Rig reader("powersgd:4,rounds=2", shape_of(segments, kSeed));
      reader.set_step(static_cast<uint32_t>(step));
      const auto merged = [&](const std::vector<std::vector<std::byte>>& payloads) {
        std::vector<std::vector<std::byte>> tiled;
        for (const Region region : tiles(numel, chunks)) {
          std::vector<std::vector<std::byte>> slices;
          for (const auto& payload : payloads) {
            slices.push_back(reader.slice(payload, region));
            EXPECT_LE(slices.back().size(), reader.compressor().slice_capacity_bytes(region));
          }
          tiled.push_back(reader.merge(slices, region, kScale, {}));
        }
        return tiled;
      };
      reader.take_first(merged(ranks.first_payloads()));
      EXPECT_TRUE(all_equal(reader.decompress(merged(ranks.payloads())).floats(), mean));
      EXPECT_TRUE(all_equal(reader.decompress(ranks.payloads(), kScale).floats(), mean));
    }
    ranks.commit();
  }
}

TEST(PowerSgdOfTwoRounds, RefusesRoundsOutOfTurn) {
  const std::vector<Segment> segments = mixed_segments();
  const size_t numel = numel_of(segments);
  const OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
  const std::vector<float> e(numel);
  std::vector<float> next(numel);
  LowRankRanks ranks("powersgd:4,rounds=2", segments, 1, kSeed);
  ranks.step({normal(numel, kSeed)});
  const auto first = ranks.first_payloads()[0], second = ranks.payloads()[0];
  Rig rig("powersgd:4,rounds=2", shape_of(segments, kSeed));
  EXPECT_THROW(rig.compress_second(g, e, next), InvalidArgument) << "before take_first()";
  EXPECT_THROW(rig.decompress({second}), InvalidArgument) << "before take_first()";
  EXPECT_THROW(rig.decompress({first}), InvalidArgument) << "which is no part of a mean";
  EXPECT_THROW(rig.take_first({second}), InvalidArgument);
  EXPECT_THROW(rig.take_first({rig.slice(first, {0, kChunk})}), InvalidArgument) << "a part alone";
  rig.take_first({first});
  EXPECT_THROW(rig.decompress({first}), InvalidArgument);
  EXPECT_EQ(rig.compress_second(g, e, next), second);
  EXPECT_EQ(rig.compress(g, e, next), first);
  EXPECT_THROW(rig.compress_second(g, e, next), InvalidArgument) << "the step began anew";
  rig.commit();
  EXPECT_THROW(rig.compress_second(g, e, next), InvalidArgument) << "of the step before";
  EXPECT_THROW(rig.compress_accumulated(next), InvalidArgument);
  Rig one("powersgd:4", shape_of(segments, kSeed));
  EXPECT_THROW(one.take_first({first}), InvalidArgument);
  EXPECT_THROW(one.compress_second(g, e, next), InvalidArgument);
  for (const char* spec : {"powersgd:4,rounds=0", "powersgd:4,rounds=3", "powersgd:4,rounds=",
                           "powersgd:4,rounds=2,rounds=2", "topk:1%,rounds=2", "none,rounds=1"}) {
    EXPECT_THROW(parse_spec(spec), InvalidArgument) << spec;
  }
  EXPECT_EQ(to_string(parse_spec("powersgd:8,noef,rounds=2")), "powersgd:8,rounds=2,noef");
  EXPECT_EQ(to_string(parse_spec("powersgd:8,rounds=1")), "powersgd:8");
}

#if !defined(GRADWIRE_LAWS_ON_DEVICE)  // where it draws anew
TEST(PowerSgdOfTwoRounds, GoesOnFromItsState) {
  const std::vector<Segment> segments = mixed_segments();
  std::vector<Segment> moved{segments[4], segments[1], segments[6], segments[3]};
  const std::vector<float> g = normal(numel_of(segments), kSeed);
  LowRankRanks first("powersgd:4,rounds=2,noef", segments, 1, kSeed);
  for (uint32_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    const std::vector<uint64_t> state = first.rig(0).compressor().state();
    EXPECT_EQ(state.empty(), step == 0);
    LowRankRanks second("powersgd:4,rounds=2,noef", segments, 1, kSeed);
    second.rig(0).set_step(step);
    second.rig(0).compressor().set_state(state);
    EXPECT_EQ(second.rig(0).compressor().state(), state);
    LowRankRanks third("powersgd:4,rounds=2,noef", moved, 1, kSeed, 3);
    third.rig(0).set_step(step);
    third.rig(0).compressor().learn_from(state);
    std::vector<float> g_moved;
    const auto part_of = [&](const std::vector<float>& values, uint32_t parameter) {
      size_t begin = 0, k = 0;
      for (; segments[k].parameter != parameter; ++k) {
        begin += segments[k].numel;
      }
      const auto at = values.begin() + static_cast<ptrdiff_t>(begin);
      return std::vector<float>(at, at + static_cast<ptrdiff_t>(segments[k].numel));
    };
    for (const Segment& s : moved) {
      const auto part = part_of(g, s.parameter);
      g_moved.insert(g_moved.end(), part.begin(), part.end());
    }
    const std::vector<float> expected = first.step({g}), of_moved = third.step({g_moved});
    EXPECT_TRUE(all_equal(second.step({g}), expected));
    EXPECT_EQ(second.payloads(), first.payloads());
    size_t at = 0;
    for (const Segment& s : moved) {
      EXPECT_TRUE(
          all_equal(std::span(of_moved).subspan(at, s.numel), part_of(expected, s.parameter)));
      at += s.numel;
    }
    first.commit();
  }
}
#endif

}  // namespace
}  // namespace gradwire::testing
