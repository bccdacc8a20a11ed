// tensortopk against a sort of every parameter.

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/segment_case.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 77;

/// Parameters of all sizes, within a chunk and over several; the third is the end of one that
/// another group begins.
std::vector<Segment> parameters() {
  return {{0, 0, 3 * kChunk - 40}, {1, 0, 1}, {2, 700, 99}, {3, 0, 5000}, {4, 0, 0},
          {5, 0, 2 * kChunk}};
}

/// Gradients whose scale differs from parameter to parameter.
std::vector<float> uneven(const std::vector<Segment>& segments, uint64_t seed) {
  std::vector<float> x = heavy_tailed(numel_of(segments), seed);
  size_t at = 0;
  float scale = 1e-3f;
  for (const Segment& segment : segments) {
    for (size_t i = 0; i < segment.numel; ++i) {
      x[at++] *= scale;
    }
    scale *= 30;
  }
  return x;
}

/// Of [begin, end) of the group: what a sort keeps of each parameter's elements there.
std::vector<float> sorted_choice(const std::vector<float>& x, const std::vector<Segment>& segments,
                                 double density, Region region) {
  std::vector<float> kept(x.size());
  size_t begin = 0;
  for (const Segment& segment : segments) {
    const size_t from = std::max(begin, region.begin);
    const size_t to = std::min(begin + segment.numel, region.end);
    begin += segment.numel;
    if (from >= to) {
      continue;
    }
    const std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(from),
                                  x.begin() + static_cast<ptrdiff_t>(to));
    const double share = density * static_cast<double>(part.size());
    for (const size_t i : reference::top_k(part, static_cast<size_t>(std::ceil(share)))) {
      kept[from + i] = part[i];
    }
  }
  return kept;
}

TEST(TensorTopK, KeepsTheLargestOfEveryParameter) {
  const std::vector<Segment> segments = parameters();
  const size_t numel = numel_of(segments);
  for (const double density : {0.0001, 0.01, 0.3, 1.0}) {
    SCOPED_TRACE(density);
    Rig rig(concat("tensortopk:", density), {.numel = numel, .segments = segments}, 2);
    const std::vector<float> x = uneven(segments, kSeed);
    const std::vector<float> e(numel);
    std::vector<float> e_next(numel, -1.0f);
    const OwnedTensor g = tensor_of(x, DType::kFloat32);
    const auto payload = rig.compress(g, e, e_next);
    const std::vector<float> expected = sorted_choice(x, segments, density, {0, numel});
    EXPECT_TRUE(all_equal(rig.decompress({payload}).floats(), expected));
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(e_next[i], expected[i] != 0 ? 0 : x[i]) << i;
    }
    EXPECT_LE(payload.size(), rig.compressor().capacity_bytes());
  }
}

TEST(TensorTopK, TakesTheFirstOfEqualOnesAndNoZeros) {
  const std::vector<Segment> segments = parameters();
  const size_t numel = numel_of(segments);
  std::vector<float> x(numel);
  for (size_t i = 0; i < numel; ++i) {  // in the first parameter few are not 0
    x[i] = i < 3 * kChunk ? (i % 509 == 3 ? -0.5f : 0.0f) : static_cast<float>(i * 7 % 5) - 2;
  }
  for (const double density : {0.001, 0.01, 0.3, 1.0}) {
    SCOPED_TRACE(density);
    Rig rig(concat("tensortopk:", density), {.numel = numel, .segments = segments});
    const auto payload = rig.compress(tensor_of(x, DType::kFloat32), {}, {});
    EXPECT_TRUE(all_equal(rig.decompress({payload}).floats(),
                          sorted_choice(x, segments, density, {0, numel})));
  }
}

TEST(TensorTopK, AMergeKeepsTheLargestOfWhatLiesInItsRegion) {
  const std::vector<Segment> segments = parameters();
  expect_merges_choose(
      "tensortopk:1%", segments, [&](uint64_t seed) { return uneven(segments, seed); },
      [&](const std::vector<float>& sum, Region region) {
        return sorted_choice(sum, segments, 0.01, region);
      });
}

TEST(TensorTopK, LeavesAllAsItWasBesideAParameterThatIsNotFinite) {
  const std::vector<Segment> segments = parameters();
  const size_t numel = numel_of(segments);
  Rig rig("tensortopk:1%", {.numel = numel, .segments = segments});
  std::vector<float> x = uneven(segments, kSeed);
  x[numel - 1] = std::numeric_limits<float>::infinity();
  const std::vector<float> before = x;
  EXPECT_EQ(flags_of(rig.compress_accumulated(x)), kFlagNonFinite);
  EXPECT_EQ(x, before);
}

}  // namespace
}  // namespace gradwire::testing
