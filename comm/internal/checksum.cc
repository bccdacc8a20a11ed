#include "gradwire/comm/internal/checksum.h"

#include <array>
#include <cstring>

namespace gradwire {
namespace {

constexpr size_t kLanes = 4, kWord = 8;
using Lanes = std::array<uint32_t, kLanes>;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    }
    table[i] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

uint32_t add_bytes(uint32_t crc, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF];
  }
  return crc;
}

Lanes lanes_by_table(std::span<const std::byte> bytes) {
  Lanes lanes{~0u, ~0u, ~0u, ~0u};
  for (size_t i = 0; i < bytes.size(); i += kWord) {
    uint32_t& lane = lanes[i / kWord % kLanes];
    lane = add_bytes(lane, bytes.subspan(i, kWord));
  }
  return lanes;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) Lanes lanes_by_instruction(std::span<const std::byte> bytes) {
  uint64_t lanes[kLanes] = {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF};
  for (size_t i = 0; i < bytes.size(); i += kLanes * kWord) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes.data() + i, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = __builtin_ia32_crc32di(lanes[lane], words[lane]);
    }
  }
  Lanes result;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    result[lane] = static_cast<uint32_t>(lanes[lane]);
  }
  return result;
}
#endif

uint32_t finish(const Lanes& lanes, std::span<const std::byte> rest) {
  return ~add_bytes(add_bytes(~0u, std::as_bytes(std::span(lanes))), rest);
}

constexpr size_t in_lanes(size_t bytes) { return bytes / (kLanes * kWord) * (kLanes * kWord); }

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) { return ~add_bytes(~0u, bytes); }

uint32_t internal::payload_checksum_by_table(std::span<const std::byte> bytes) {
  const size_t whole = in_lanes(bytes.size());
  return finish(lanes_by_table(bytes.first(whole)), bytes.subspan(whole));
}

uint32_t payload_checksum(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    const size_t whole = in_lanes(bytes.size());
    return finish(lanes_by_instruction(bytes.first(whole)), bytes.subspan(whole));
  }
#endif
  return internal::payload_checksum_by_table(bytes);
}

}  // namespace gradwire
