// blocktopk against a sort of all blocks by their norms, and its bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/kernels/segment_case.h"
#include "tests/reference/compress_reference.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 91;

/// Parameters of all sizes, of which one is empty and two begin within a chunk and end in another.
std::vector<Segment> parameters() {
  return {{0, 0, 3 * kChunk - 40}, {1, 0, 1}, {2, 700, 99}, {3, 0, 0}, {4, 0, 5000},
          {5, 0, 2 * kChunk}};
}

/// Where the blocks of [begin, end) begin, and `end`.
std::vector<size_t> edges_of(const std::vector<Segment>& segments, size_t width, Region region) {
  std::vector<size_t> edges;
  size_t begin = 0;
  for (const Segment& segment : segments) {
    for (size_t at = begin; at < begin + segment.numel; at += width) {
      const size_t end = std::min(at + width, begin + segment.numel);
      if (std::max(at, region.begin) < std::min(end, region.end)) {
        edges.push_back(std::max(at, region.begin));
      }
    }
    begin += segment.numel;
  }
  edges.push_back(region.end);
  return edges;
}

/// Of a region: what a sort by norms keeps of x, by the reference's top-k of the norms.
std::vector<float> sorted_choice(const std::vector<float>& x, const std::vector<size_t>& edges,
                                 double density) {
  std::vector<float> norms;
  for (size_t b = 0; b + 1 < edges.size(); ++b) {
    double squares = 0;
    for (size_t i = edges[b]; i < edges[b + 1]; ++i) {
      squares += double{x[i]} * x[i];
    }
    norms.push_back(static_cast<float>(std::sqrt(squares)));
  }
  const double share = std::ceil(density * static_cast<double>(norms.size()));
  std::vector<float> kept(x.size());
  for (const size_t b : reference::top_k(norms, std::max<size_t>(1, static_cast<size_t>(share)))) {
    std::copy(x.begin() + static_cast<ptrdiff_t>(edges[b]),
              x.begin() + static_cast<ptrdiff_t>(edges[b + 1]),
              kept.begin() + static_cast<ptrdiff_t>(edges[b]));
  }
  return kept;
}

TEST(BlockTopK, SendsTheBlocksOfLargestNormWhole) {
  const std::vector<Segment> segments = parameters();
  const size_t numel = numel_of(segments);
  const std::vector<float> x = heavy_tailed(numel, kSeed);
  const std::vector<float> e(numel);
  for (const size_t width : {1, 7, 64, 300, 4096}) {
    for (const double density : {0.0001, 0.01, 0.3, 1.0}) {
      SCOPED_TRACE(concat(width, " ", density));
      Rig rig(concat("blocktopk:", density, ",width=", width),
              {.numel = numel, .segments = segments}, 2);
      std::vector<float> e_next(numel, -1.0f);
      const auto payload = rig.compress(tensor_of(x, DType::kFloat32), e, e_next);
      const std::vector<float> expected =
          sorted_choice(x, edges_of(segments, width, {0, numel}), density);
      EXPECT_TRUE(all_equal(rig.decompress({payload}).floats(), expected));
      for (size_t i = 0; i < numel; ++i) {
        ASSERT_EQ(e_next[i], x[i] - expected[i]) << i;
      }
      EXPECT_LE(payload.size(), rig.compressor().capacity_bytes());
    }
  }
}

TEST(BlockTopK, OfOneElementIsTopK) {
  const std::vector<float> x = heavy_tailed(9000, kSeed);
  Rig blocks("blocktopk:1%,width=1", {.numel = x.size()}), elements("topk:1%", {.numel = x.size()});
  const OwnedTensor g = tensor_of(x, DType::kFloat32);
  EXPECT_TRUE(all_equal(blocks.decompress({blocks.compress(g, {}, {})}).floats(),
                        elements.decompress({elements.compress(g, {}, {})}).floats()));
}

TEST(BlockTopK, TakesTheFirstOfEqualNorms) {
  // Squares of 3 and 4 add up to that of 5, wherever they lie; the last block is short.
  std::vector<float> x(4 * 10 + 2);
  x[3] = 5;
  x[4] = 3, x[7] = -4;
  x[13] = 5;
  x[40] = 5.5f;
  Rig rig("blocktopk:0.2,width=4", {.numel = x.size()});  // three of eleven
  std::vector<float> expected = x;
  expected[13] = 0;
  const auto payload = rig.compress(tensor_of(x, DType::kFloat32), {}, {});
  EXPECT_EQ(rig.decompress({payload}).floats(), expected);
}

TEST(BlockTopK, RanksBlocksWhoseSquaresOverflowOrVanishInFloat32) {
  std::vector<float> x(3 * 64);
  x[0] = 1e-44f;
  x[64] = 2e-44f;
  x[128] = 3e38f, x[129] = 3e38f;  // the norm too
  for (const auto& [density, begin] : {std::pair{"0.3", 128}, {"0.6", 64}, {"1", 0}}) {
    Rig rig(concat("blocktopk:", density), {.numel = x.size()});
    const auto sent =
        rig.decompress({rig.compress(tensor_of(x, DType::kFloat32), {}, {})}).floats();
    std::vector<float> expected = x;
    std::fill_n(expected.begin(), begin, 0.0f);
    EXPECT_EQ(sent, expected) << density;
  }
}

TEST(BlockTopK, AMergeTakesTheLargestOfWhatLiesInItsRegion) {
  const std::vector<Segment> segments = parameters();
  expect_merges_choose(
      "blocktopk:3%,width=100", segments,
      [&](uint64_t seed) { return heavy_tailed(numel_of(segments), seed); },
      [&](const std::vector<float>& sum, Region region) {
        return sorted_choice(sum, edges_of(segments, 100, region), 0.03);
      });
}

TEST(BlockTopK, LeavesAllAsItWasBesideWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> x = heavy_tailed(5000, kSeed);
    x.back() = bad;
    const std::vector<float> before = x;
    Rig rig("blocktopk:1%", {.numel = x.size()});
    EXPECT_EQ(flags_of(rig.compress_accumulated(x)), kFlagNonFinite);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(before[i])) << i;
    }
  }
}

/// Two chunks; of blocks of 100 one crosses from the one to the other.
std::vector<std::byte> payload_of_two_chunks() {
  std::vector<float> x(5000);
  x[250] = 1;   // in [200, 300)
  x[4095] = 2;  // in [4000, 4100)
  Rig rig("blocktopk:4%,width=100", {.numel = x.size()});
  return rig.compress(tensor_of(x, DType::kFloat32), {}, {});
}

TEST(BlockTopK, WritesAnIndexPerBlockAndChunk) {
  const auto payload = payload_of_two_chunks();
  std::vector<int> body;
  for (size_t i = 32; i < payload.size(); ++i) {
    body.push_back(std::to_integer<int>(payload[i]));
  }
  std::vector<int> expected = {196, 0, 4,         0,               // elements
                               2,   0, 1,         0,               // indices
                               200, 0, 4000 >> 4, 0, 0, 0, 0, 0};  // 200 and 4000; 0; padding
  expected.resize(16 + 4 * 200);
  expected[16 + 4 * 50 + 2] = 0x80, expected[16 + 4 * 50 + 3] = 0x3F;  // 1
  expected[16 + 4 * 195 + 3] = 0x40;                                   // 2
  EXPECT_EQ(body, expected);
}

TEST(BlockTopK, NamesWhatIsWrongWithItsBytes) {
  const auto good = payload_of_two_chunks();
  struct Fault {
    size_t at;
    int byte;
    const char* says;
  };
  for (const Fault& fault :
       {Fault{38, 5, "count of blocks of chunk 1 is 5, must be at most"},
        Fault{40, 201, "index in chunk 0 is 201, must be the first element of a block"},
        Fault{42, 0, "index in chunk 0 is 0, must be above 200"},
        Fault{40, 44, "must be the first element of a block"},
        Fault{43, 4, "blocks of chunk 1 hold 100 elements, its count is 4"},
        Fault{44, 255, "index in chunk 1 is 65280, must be above -1 and below 904"}}) {
    auto bad = good;
    bad[fault.at] = static_cast<std::byte>(fault.byte);
    Rig rig("blocktopk:4%,width=100", {.numel = 5000});
    EXPECT_EQ(rig.decompress({good}).numel(), 5000u);
    try {
      rig.decompress({bad});
      ADD_FAILURE() << "nothing was thrown for byte " << fault.at;
    } catch (const InvalidArgument& error) {
#if !defined(GRADWIRE_LAWS_ON_DEVICE)  // there a kernel says what it can
      EXPECT_NE(std::string(error.what()).find(fault.says), std::string::npos) << error.what();
#endif
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
