// Bits that flip in control frames.

#include "gradwire/comm/internal/frame_seal.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

/// Whether it is taken as a frame; what is not all there yet is none.
bool is_taken(FrameSeal seal, std::string input, const std::string& expected) {
  std::string bytes;
  try {
    return seal.take(input, bytes) && bytes == expected;
  } catch (const BadFrame&) {
    return false;
  }
}

TEST(FrameSeal, FindsEveryFlippedBitWithAKeyAndWithout) {
  for (const std::string key : {"", "open sesame"}) {
    FrameSeal sender(key, "client");
    const FrameSeal receiver(key, "client");
    const std::string text = "G 10.0.0.1:4711 0 1 2";
    const std::string frame = sender.seal(text);
    EXPECT_TRUE(is_taken(receiver, frame, text));
    for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
      std::string bad = frame;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      FrameSeal seal = receiver;
      std::string bytes;
      EXPECT_THROW(seal.take(bad, bytes), BadFrame) << "bit " << bit << ", key '" << key << "'";
    }
  }
}

TEST(FrameSeal, RefusesFramesThatAreRepeatedLostTurnedBackOrOfAnotherKey) {
  FrameSeal sender("open sesame", "client"), receiver("open sesame", "client");
  const std::string first = sender.seal("one"), second = sender.seal("two");
  EXPECT_FALSE(is_taken(receiver, second, "two")) << "the first was lost";
  std::string input = first, bytes;
  ASSERT_TRUE(receiver.take(input, bytes));
  EXPECT_FALSE(is_taken(receiver, first, "one")) << "it came twice";
  EXPECT_TRUE(is_taken(receiver, second, "two"));
  EXPECT_FALSE(is_taken(FrameSeal("open sesame", "server"), first, "one"));
  EXPECT_FALSE(is_taken(FrameSeal("open barley", "client"), first, "one"));
  EXPECT_FALSE(is_taken(FrameSeal("", "client"), first, "one"));
}

TEST(FrameSeal, WaitsForTheRestOfAFrame) {
  FrameSeal sender("k", "server"), receiver("k", "server");
  std::string input, bytes;
  for (const char byte : sender.seal("hello").substr(0, FrameSeal::kHeadBytes + 4)) {
    EXPECT_FALSE(receiver.take(input.append(1, byte), bytes));
  }
  EXPECT_TRUE(receiver.take(input.append("o"), bytes));
  EXPECT_EQ(bytes, "hello");
  EXPECT_TRUE(input.empty());
}

}  // namespace
}  // namespace gradwire
