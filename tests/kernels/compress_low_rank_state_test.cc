// What powersgd carries from step to step: in checkpoints, in other groups, and for any number of
// threads.

#include <gtest/gtest.h>

#include "tests/kernels/low_rank_case.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 2306;

TEST(PowerSgdState, GoesOnWithTheSameBytes) {
  const std::vector<Segment> segments = mixed_segments();
  const std::vector<float> g = normal(numel_of(segments), kSeed);
  for (int steps = 0; steps < 3; ++steps) {
    SCOPED_TRACE(steps);
    LowRankRanks first("powersgd:4,noef", segments, 1, kSeed);
    for (int step = 0; step < steps; ++step) {
      first.step({g});
      first.commit();
    }
    LowRankRanks second("powersgd:4,noef", segments, 1, kSeed);
    second.rig(0).set_step(static_cast<uint32_t>(steps));
    const std::vector<uint64_t> state = first.rig(0).compressor().state();
    EXPECT_EQ(state.empty(), steps == 0);
    second.rig(0).compressor().set_state(state);
    EXPECT_EQ(second.rig(0).compressor().state(), state);
    EXPECT_TRUE(all_equal(second.step({g}), first.step({g})));
    EXPECT_EQ(second.payloads(), first.payloads());
  }
}

TEST(PowerSgdState, FollowsItsParametersIntoOtherGroups) {
  const std::vector<Segment> segments = mixed_segments();
  std::vector<Segment> moved{segments[5], segments[6], segments[1], segments[0], segments[3]};
  const std::vector<float> g = normal(numel_of(segments), kSeed);
  const auto begin_of = [](const std::vector<Segment>& in, uint32_t parameter) {
    size_t begin = 0;
    for (size_t i = 0; in[i].parameter != parameter; ++i) {
      begin += in[i].numel;
    }
    return static_cast<ptrdiff_t>(begin);
  };
  const auto part_of = [&](const std::vector<float>& values, const std::vector<Segment>& in,
                           const Segment& s) {
    const auto at = values.begin() + begin_of(in, s.parameter);
    return std::vector<float>(at, at + static_cast<ptrdiff_t>(s.numel));
  };
  std::vector<float> g_moved;
  for (const Segment& s : moved) {
    const auto part = part_of(g, segments, s);
    g_moved.insert(g_moved.end(), part.begin(), part.end());
  }
  LowRankRanks first("powersgd:4,noef", segments, 1, kSeed);
  for (uint32_t step = 0; step < 3; ++step) {
    LowRankRanks second("powersgd:4,noef", moved, 1, kSeed);
    second.rig(0).set_step(step);
    second.rig(0).compressor().learn_from(first.rig(0).compressor().state());
    const auto expected = first.step({g}), result = second.step({g_moved});
    for (const Segment& s : moved) {
      EXPECT_TRUE(all_equal(part_of(result, moved, s), part_of(expected, segments, s)))
          << "parameter " << s.parameter << " in step " << step;
    }
    first.commit();
  }
}

TEST(PowerSgdState, RefusesWhatIsNotOfItsShape) {
  const std::vector<Segment> segments = mixed_segments();
  LowRankRanks ranks("powersgd:4", segments, 1, kSeed);
  ranks.step({normal(numel_of(segments), kSeed)});
  ranks.commit();
  std::vector<uint64_t> state = ranks.rig(0).compressor().state();
  Rig other("powersgd:3", shape_of(segments, kSeed));
  other.set_step(1);
  EXPECT_THROW(other.compressor().set_state(state), InvalidArgument) << "another rank";
  other.compressor().learn_from(state);
  EXPECT_TRUE(other.compressor().state().empty());
  Rig same("powersgd:4", shape_of(segments, kSeed));
  EXPECT_THROW(same.compressor().set_state(state), InvalidArgument) << "of another step's side";
  same.set_step(1);
  state.resize(state.size() - 1);
  EXPECT_THROW(same.compressor().set_state(state), InvalidArgument) << "cut off";
  const std::vector<uint64_t> foreign{7};
  EXPECT_THROW(same.compressor().set_state(foreign), InvalidArgument);
  same.compressor().learn_from(foreign);
}

// words: three of a head; then of each matrix its parameter, its shape and two floats a word.
TEST(PowerSgdState, RefusesBrokenFactorsAndKeepsItsOwn) {
  const std::vector<Segment> segments{{1, 0, 20 * 30, 20}, {2, 0, 20 * 30, 20}};
  const std::vector<float> g = normal(numel_of(segments), kSeed);
  LowRankRanks first("powersgd:2,noef", segments, 1, kSeed);
  LowRankRanks second("powersgd:2,noef", segments, 1, kSeed);
  const auto step = [&](LowRankRanks& ranks) {
    const auto mean = ranks.step({g});
    ranks.commit();
    return mean;
  };
  step(first);
  step(first);
  step(second);
  step(second);
  Compressor& compressor = second.rig(0).compressor();
  const std::vector<uint64_t> own = compressor.state();
  const size_t words = (own.size() - 3) / 2;  // of each matrix
  ASSERT_EQ(own[3], 1u);
  ASSERT_EQ(own[3 + words], 2u);
  std::vector<uint64_t> good = own;
  good[5] = 0x3F8000003F800000;  // would be seen in what follows, were it taken
  const auto refused = [&](size_t at, uint64_t word) {
    std::vector<uint64_t> state = good;
    state[at] = word;
    const auto message_of = [&](const auto& take) -> std::string {
      try {
        take();
        return "no error";
      } catch (const InvalidArgument& error) {
        return error.what();
      }
    };
    const std::string message = message_of([&] { compressor.set_state(state); });
    EXPECT_EQ(compressor.state(), own) << message;
    EXPECT_EQ(message_of([&] { compressor.learn_from(state); }), message);
    EXPECT_EQ(compressor.state(), own) << message;
    return message;
  };
  constexpr uint64_t kNan = 0x7FC00000, kInfinity = 0xFF800000, kOne = 0x3F800000;
  EXPECT_EQ(refused(own.size() - 1, kNan << 32 | kOne),
            "factors: a factor of parameter 2 is nan, must be finite");
  EXPECT_EQ(refused(3 + words + 2, kInfinity),
            "factors: a factor of parameter 2 is -inf, must be finite");
  EXPECT_EQ(refused(3 + words, 1), "factors: the state has parameter 1 twice, expected once");
  EXPECT_EQ(refused(2, 3), "factors: the state ends at matrix 2, expected 3");
  std::vector<uint64_t> missing = good;
  missing[3 + words] = 7;
  EXPECT_THROW(compressor.set_state(missing), InvalidArgument) << "without parameter 2";
  EXPECT_EQ(compressor.state(), own);
  EXPECT_TRUE(all_equal(step(second), step(first)));
  EXPECT_EQ(second.payloads(), first.payloads());
}

TEST(PowerSgdState, HasTheSameBitsForAnyNumberOfThreads) {
  const std::vector<Segment> segments{{1, 0, 700 * 90, 700}, {2, 0, 90 * 611, 90}, {3, 0, 50}};
  LowRankRanks one("powersgd:7", segments, 1, kSeed, 1), four("powersgd:7", segments, 1, kSeed, 4);
  for (uint64_t step = 0; step < 4; ++step) {
    const std::vector<float> g = normal(numel_of(segments), kSeed + step);
    EXPECT_TRUE(all_equal(one.step({g}), four.step({g})));
    EXPECT_EQ(one.payloads(), four.payloads());
    one.commit();
    four.commit();
    EXPECT_TRUE(all_equal(one.residual(0), four.residual(0)));
  }
}

TEST(PowerSgdState, MatricesMustBeWhole) {
  EXPECT_THROW(make_compressor(parse_spec("powersgd:1"),
                               {.numel = 100, .segments = {{1, 0, 100, 7}}}),
               InvalidArgument);
  EXPECT_THROW(make_compressor(parse_spec("powersgd:1"),
                               {.numel = 100, .segments = {{1, 50, 100, 10}}}),
               InvalidArgument);
  for (const char* spec : {"powersgd", "powersgd:0", "powersgd:129", "powersgd:1%", "int8:4"}) {
    EXPECT_THROW(parse_spec(spec), InvalidArgument) << spec;
  }
  EXPECT_EQ(to_string(parse_spec("powersgd:8,noef")), "powersgd:8,noef");
}

}  // namespace
}  // namespace gradwire::testing
