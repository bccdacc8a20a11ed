// Which buckets ranks agree on, and who begins the next round: no ranks, no network.

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

#include "gradwire/comm/internal/ready_bits.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

using Buckets = std::set<size_t>;

std::vector<std::byte> bits_of(const Buckets& ready, size_t buckets) {
  std::vector<std::byte> bits((buckets + 7) / 8);
  for (const size_t b : ready) {
    bits[b / 8] |= std::byte{1} << static_cast<int>(b % 8);
  }
  return bits;
}

Buckets round(ReadyBits& bits, const std::vector<Buckets>& ready, size_t buckets) {
  for (size_t r = 0; r < ready.size(); ++r) {
    bits.tell(static_cast<int>(r), bits_of(ready[r], buckets));
  }
  const auto agreed = bits.take_agreed();
  EXPECT_TRUE(std::ranges::is_sorted(agreed));
  return {agreed.begin(), agreed.end()};
}

TEST(ReadyBits, AreOneOfEachBucketLowestFirst) {
  EXPECT_EQ(ReadyBits::bytes_of(0), 0u);
  EXPECT_EQ(ReadyBits::bytes_of(1), 1u);
  EXPECT_EQ(ReadyBits::bytes_of(8), 1u);
  EXPECT_EQ(ReadyBits::bytes_of(9), 2u);
  EXPECT_EQ(ReadyBits::bytes_of(1000), 125u);
  ReadyBits bits(2, 10);
  bits.tell(0, std::array{std::byte{0x09}, std::byte{0x02}});  // 0, 3 and 9
  bits.tell(1, std::array{std::byte{0xC8}, std::byte{0x02}});  // 3, 6, 7 and 9
  const auto agreed = bits.take_agreed();
  EXPECT_EQ(std::vector<BucketId>(agreed.begin(), agreed.end()), (std::vector<BucketId>{3, 9}));
  EXPECT_EQ(bits.missing(), "bucket 0 of rank 1, bucket 6 of rank 0, bucket 7 of rank 0");
}

// Ranks tell of what random subsets of them became ready, round by round; a bucket leaves in the
// round in which the intersection of their sets first has it, whatever the numbers.
TEST(ReadyBits, LeaveWhenTheIntersectionOfAllRanksHasThem) {
  std::mt19937 random(20260731);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t ranks = 1 + random() % 5, buckets = 1 + random() % 40;
    SCOPED_TRACE(concat("trial ", trial, ": ", ranks, " ranks, ", buckets, " buckets"));
    ReadyBits bits(static_cast<int>(ranks), buckets);
    std::vector<Buckets> ready(ranks);
    Buckets left;
    for (int r = 0; left.size() < buckets; ++r) {
      ASSERT_LT(r, 10000);
      size_t news = 0;
      for (Buckets& of_rank : ready) {
        for (size_t b = 0; b < buckets; ++b) {
          news += random() % 4 == 0 && of_rank.insert(b).second ? 1 : 0;
        }
      }
      Buckets expected;
      for (size_t b = 0; b < buckets; ++b) {
        const bool everywhere =
            std::ranges::all_of(ready, [b](const Buckets& has) { return has.contains(b); });
        if (everywhere && left.insert(b).second) {
          expected.insert(b);
        }
      }
      EXPECT_EQ(round(bits, ready, buckets), expected);
      EXPECT_EQ(bits.brought_news(), news > 0);
      for (size_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(bits.next_of(static_cast<int>(rank)) == NextRound::kOver, left.size() == buckets);
      }
    }
    EXPECT_EQ(bits.missing(), "");
  }
}

std::vector<NextRound> turns(ReadyBits& bits, int ranks) {
  std::vector<NextRound> found;
  for (int r = 0; r < ranks; ++r) {
    found.push_back(bits.next_of(r));
  }
  return found;
}

TEST(ReadyBits, SayWhoWaitsForWhom) {
  using enum NextRound;
  using Turns = std::vector<NextRound>;
  ReadyBits bits(3, 4);
  // Nobody has told of anything: whoever has news calls.
  EXPECT_EQ(turns(bits, 3), (Turns{kOnNews, kOnNews, kOnNews}));
  // Rank 2 is behind: without its news nothing can leave.
  EXPECT_EQ(round(bits, {{0, 1}, {0}, {}}, 4), Buckets{});
  EXPECT_EQ(turns(bits, 3), (Turns{kAtOnce, kAtOnce, kOnNews}));
  // All have something waiting, and no rank has told of all.
  EXPECT_EQ(round(bits, {{0, 1}, {0}, {3}}, 4), Buckets{});
  EXPECT_EQ(turns(bits, 3), (Turns{kSoon, kSoon, kSoon}));
  // Rank 0 has told of all, and has nothing to add.
  EXPECT_EQ(round(bits, {{0, 1, 2, 3}, {0}, {3}}, 4), Buckets{});
  EXPECT_EQ(turns(bits, 3), (Turns{kAtOnce, kSoon, kSoon}));
  // Bucket 0 leaves, and with it all that rank 1 has told of.
  EXPECT_EQ(round(bits, {{0, 1, 2, 3}, {0}, {0, 3}}, 4), Buckets{0});
  EXPECT_EQ(turns(bits, 3), (Turns{kAtOnce, kOnNews, kAtOnce}));
  EXPECT_EQ(round(bits, {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}, 4), (Buckets{1, 2, 3}));
  EXPECT_EQ(turns(bits, 3), (Turns{kOver, kOver, kOver}));
}

TEST(ReadyBits, NameTheBucketsThatOthersWaitWith) {
  ReadyBits bits(3, 9);
  EXPECT_EQ(bits.missing(), "");
  round(bits, {{4}, {}, {}}, 9);
  EXPECT_EQ(bits.missing(), "bucket 4 of ranks 1 and 2");
  round(bits, {{0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5}, {0}}, 9);
  EXPECT_EQ(bits.missing(),
            "bucket 1 of rank 2, bucket 2 of rank 2, bucket 3 of rank 2, bucket 4 of rank 2, "
            "bucket 5 of rank 2, ...");
}

TEST(ReadyBits, RefuseWhatARankCannotMean) {
  ReadyBits bits(2, 10);
  const auto refusal = [&bits](std::vector<std::byte> sent) {
    try {
      bits.tell(1, sent);
    } catch (const TransportError& error) {
      EXPECT_EQ(error.peer(), 1);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({std::byte{1}}), "rank 1 sent 1 bytes about ready buckets, expected 2");
  EXPECT_EQ(refusal({std::byte{0}, std::byte{4}}),
            "rank 1 says that bucket 10 is ready, expected only those below 10");
  EXPECT_EQ(refusal({std::byte{2}, std::byte{0}}), "");
  EXPECT_EQ(refusal({std::byte{1}, std::byte{0}}),
            "rank 1 says that bucket 1 is not ready, of which it has said that it is in the same "
            "step");
}

}  // namespace
}  // namespace gradwire::test
