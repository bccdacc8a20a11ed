#include <gtest/gtest.h>

#include "gradwire/kernels/core/philox.h"

namespace gradwire {
namespace {

struct KnownAnswer {
  PhiloxCounter counter;
  uint64_t key;
  PhiloxCounter expected;
};

// The philox4x32-10 rows of Random123's kat_vectors; key words are given low word first.
constexpr KnownAnswer kKnownAnswers[] = {
    {{{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     0xffffffffffffffff,
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     0x299f31d0a4093822,
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

TEST(Philox, MatchesThePublishedVectors) {
  for (const KnownAnswer& row : kKnownAnswers) {
    const PhiloxCounter actual = philox(row.counter, row.key);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(actual.word[i], row.expected.word[i]) << "key " << row.key << ", word " << i;
    }
  }
}

TEST(Philox, EightElementsShareOneRoundingCounter) {
  const PhiloxCounter counter = rounding_counter(17, 5, 9, 14);
  EXPECT_EQ(counter.word[0], 2u);
  EXPECT_EQ(counter.word[1], 5u);
  EXPECT_EQ(counter.word[2], 9u);
  EXPECT_EQ(counter.word[3], 14u);
  EXPECT_EQ(rounding_counter(23, 5, 9, 14).word[0], 2u);
  EXPECT_EQ(rounding_counter(24, 5, 9, 14).word[0], 3u);
}

}  // namespace
}  // namespace gradwire
