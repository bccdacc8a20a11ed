// Sums of payloads that are read in pieces: the bits of decompress(), whatever the pieces.

#include <gtest/gtest.h>

#include "gradwire/kernels/compress/payload_sum.h"
#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed;
constexpr float kScale = 1.0f / 3;

bool decodes_by_chunk(const std::string& spec) {
  return !find_compressor(parse_spec(spec).name).low_rank();
}

void open(PayloadSum& sum, const std::vector<std::vector<std::byte>>& payloads, float scale,
          Rig& rig) {
  const std::vector<ConstPayload> parts(payloads.begin(), payloads.end());
  Context context = rig.context();
  sum.open(parts, scale, context);
  context.stream.wait();
}

/// Payloads of `ranks` ranks with gradients of their own.
std::vector<std::vector<std::byte>> payloads_of(const std::string& spec, size_t numel, int ranks) {
  std::vector<std::vector<std::byte>> payloads;
  for (int r = 0; r < ranks; ++r) {
    Rig rig(spec, {.numel = numel, .seed = kSeed, .rank = r, .world_size = ranks});
    const OwnedTensor g =
        tensor_of(heavy_tailed(numel, kSeed + static_cast<uint64_t>(r)), DType::kFloat32);
    const std::vector<float> e(numel);
    std::vector<float> e_next(numel);
    payloads.push_back(rig.compress(g, e, e_next));
  }
  return payloads;
}

std::vector<float> read_by(const PayloadSum& sum, size_t piece) {
  std::vector<float> out(sum.numel(), 99.0f);
  for (size_t begin = 0; begin < out.size(); begin += piece) {
    sum.read(begin, std::span(out).subspan(begin, std::min(piece, out.size() - begin)));
  }
  return out;
}

TEST(PayloadSums, AreReadInAnyPiecesWithTheBitsOfDecompress) {
  for (const std::string& spec : all_specs()) {
    if (!decodes_by_chunk(spec)) {
      continue;
    }
    for (const size_t numel : odd_sizes()) {
      SCOPED_TRACE(concat(spec, " ", numel));
      Rig rig(spec, {.numel = numel, .seed = kSeed, .world_size = 3});
      const auto payloads = payloads_of(spec, numel, 3);
      const std::vector<float> expected = rig.decompress(payloads, kScale).floats();
      PayloadSum sum(rig.compressor());
      open(sum, payloads, kScale, rig);
      for (const size_t piece : {kChunk, 4 * kChunk, size_t{1000}, numel + 1}) {
        ASSERT_TRUE(all_equal(read_by(sum, piece), expected)) << piece;
      }
      std::vector<std::vector<std::byte>> slices;
      for (const Region region : tiles(numel, 2)) {
        slices.push_back(rig.slice(payloads[0], region));
      }
      open(sum, slices, 1.0f, rig);
      ASSERT_TRUE(all_equal(read_by(sum, 5000), rig.decompress({payloads[0]}).floats()));
    }
  }
}

TEST(PayloadSums, OfMoreRanksThanAreSummedTogether) {
  for (const char* spec : {"int8", "1bit", "topk:1%"}) {
    const auto payloads = payloads_of(spec, 5000, 70);
    Rig rig(spec, {.numel = 5000, .seed = kSeed});
    PayloadSum sum(rig.compressor());
    open(sum, payloads, kScale, rig);
    EXPECT_TRUE(all_equal(read_by(sum, 1024), rig.decompress(payloads, kScale).floats())) << spec;
  }
}

TEST(PayloadSums, AreNotRoundedToSixteenBits) {
  const size_t numel = 2 * kChunk + 5;
  const auto payloads = payloads_of("int8", numel, 2);
  Rig narrow("int8", {.numel = numel, .dtype = DType::kBFloat16, .seed = kSeed});
  Rig wide("int8", {.numel = numel, .seed = kSeed});
  PayloadSum sum(narrow.compressor());
  open(sum, payloads, 0.5f, narrow);
  EXPECT_TRUE(all_equal(read_by(sum, 100), wide.decompress(payloads, 0.5f).floats()));
}

TEST(PayloadSums, KnowWhichChunksASelectionLeftOut) {
  const size_t numel = 4 * kChunk;
  std::vector<float> values(numel, 0.0f);
  values[kChunk + 7] = 3.0f;
  values[3 * kChunk] = -2.0f;
  Rig rig("topk:2/4096", {.numel = numel});
  const std::vector<float> e(numel);
  std::vector<float> e_next(numel);
  const auto payload = rig.compress(tensor_of(values, DType::kFloat32), e, e_next);
  PayloadSum sum(rig.compressor());
  open(sum, {payload}, 1.0f, rig);
  for (size_t begin = 0; begin < numel; begin += 1000) {
    const size_t count = std::min<size_t>(1000, numel - begin);
    const std::vector<float> read = [&] {
      std::vector<float> out(count);
      sum.read(begin, out);
      return out;
    }();
    const bool zero = std::ranges::all_of(read, [](float x) { return x == 0.0f; });
    EXPECT_TRUE(zero || !sum.known_zero(begin, count)) << begin;
  }
  EXPECT_TRUE(sum.known_zero(2 * kChunk, kChunk));
  EXPECT_FALSE(sum.known_zero(kChunk, kChunk));
  Rig dense("int8", {.numel = numel});
  PayloadSum codes(dense.compressor());
  open(codes, {dense.compress(tensor_of(values, DType::kFloat32), e, e_next)}, 1.0f, dense);
  EXPECT_FALSE(codes.known_zero(0, kChunk)) << "which codes are zero is not known unread";
}

TEST(PayloadSums, RefuseWhatTheyCannotRead) {
  Rig rig("topk:1%", {.numel = 5000});
  PayloadSum sum(rig.compressor());
  std::vector<float> out(10);
  EXPECT_THROW(sum.read(0, out), InvalidArgument) << "nothing is held";
  auto payload = payloads_of("topk:1%", 5000, 1)[0];
  open(sum, {payload}, 1.0f, rig);
  EXPECT_THROW(sum.read(4991, out), InvalidArgument);
  EXPECT_THROW(open(sum, {payload}, std::numeric_limits<float>::infinity(), rig), InvalidArgument);
  auto cut = payload;
  cut[sizeof(PayloadHeader)] ^= std::byte{0xFF};  // a count of entries
  EXPECT_THROW(open(sum, {cut}, 1.0f, rig), InvalidArgument);
  EXPECT_THROW(sum.read(0, out), InvalidArgument) << "nothing is held behind an error";
  Rig factors("powersgd:2", {.numel = 5000});
  EXPECT_THROW(PayloadSum(factors.compressor()), InvalidArgument);
}

TEST(PayloadSums, AllocateNothingOnceTheyHaveGrown) {
  // compress_allocation_test.cc counts for all verbs; here the workspace tells.
  const auto payloads = payloads_of("topk:1%", 9 * kChunk, 4);
  Rig rig("topk:1%", {.numel = 9 * kChunk});
  PayloadSum sum(rig.compressor());
  open(sum, payloads, 1.0f, rig);
  const size_t grown = sum.held_bytes();
  for (int i = 0; i < 5; ++i) {
    open(sum, payloads, 1.0f, rig);
  }
  EXPECT_EQ(sum.held_bytes(), grown);
}

}  // namespace
}  // namespace gradwire::testing
