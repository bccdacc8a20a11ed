// The payload checksum: published vectors, the plain and the fast form, and what it finds.

#include "gradwire/comm/internal/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace gradwire {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 generator(5);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(generator());
  }
  return bytes;
}

TEST(Checksum, MatchesThePublishedVectors) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43u);
}

TEST(Checksum, IsThatOfFourLanesAndTheRest) {
  // Straight from the definition, with words gathered into four messages.
  for (const size_t size : {0u, 1u, 31u, 32u, 33u, 63u, 64u, 1000u, 8128u}) {
    const auto bytes = random_bytes(size);
    std::vector<std::byte> lanes[4], last;
    for (size_t i = 0; i < size / 32 * 32; ++i) {
      lanes[i / 8 % 4].push_back(bytes[i]);
    }
    for (const auto& lane : lanes) {
      const uint32_t crc = ~crc32c(lane);  // lanes have no final xor
      for (int shift = 0; shift < 32; shift += 8) {
        last.push_back(static_cast<std::byte>(crc >> shift));
      }
    }
    last.insert(last.end(), bytes.begin() + static_cast<std::ptrdiff_t>(size / 32 * 32),
                bytes.end());
    EXPECT_EQ(payload_checksum(bytes), crc32c(last)) << size;
    EXPECT_EQ(internal::payload_checksum_by_table(bytes), crc32c(last)) << size;
  }
}

TEST(Checksum, FindsEveryFlippedBit) {
  auto bytes = random_bytes(203);
  const uint32_t before = payload_checksum(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(payload_checksum(bytes), before) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace gradwire
