#pragma once
// The 64 bytes in front of every (source, destination, collective), and the tags of its messages.
//
// Message 0 is the header and the first kInlineBytes of the payload; what remains follows in chunks
// of chunk_bytes(capacity), as many as the agreed capacity has, shorter or empty where the payload
// ends. A receiver posts everything before anything arrives: message 0 always with
// kFirstMessageBytes, the chunks under tags that hash what the ranks must agree on, so a sender that
// disagrees about anything can neither overrun a buffer nor match a chunk.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

enum class Verb : uint8_t {
  kAllGather = 1,
  kAllToAll = 2,
  kReduceScatter = 3,
  kAllReduceSum = 4,
  kBroadcast = 5,
  kBarrier = 6,
  kSplit = 7,
};

std::string_view to_string(Verb verb);

/// Little-endian on the wire, as in memory.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x31465747;  // "GWF1"
  static constexpr uint16_t kVersion = 1;

  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t verb = 0;
  uint8_t zero = 0;
  uint32_t sequence = 0;     ///< collectives of this group before this one
  uint32_t source = 0;       ///< rank in the world
  uint64_t fingerprint = 0;  ///< CallTag::fingerprint
  uint64_t bytes = 0;        ///< of payload, all messages together
  uint64_t group = 0;        ///< 0: the world
  uint64_t capacity = 0;     ///< the most that `bytes` could be: tells how many chunks follow
  uint64_t reserved = 0;
  uint64_t checksum = 0;  ///< FNV-1a 64 of the 56 bytes before
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);
static_assert(std::endian::native == std::endian::little);

/// Small on purpose: everyone sends its first messages to all at once, and what exceeds the queue of
/// a slow link is lost and sent again.
inline constexpr size_t kFirstMessageBytes = size_t{8} << 10;
inline constexpr size_t kInlineBytes = kFirstMessageBytes - kFrameHeaderBytes;

/// FNV-1a 64 of everything before the checksum.
uint64_t checksum_of(const FrameHeader& header);

/// The header in the first 64 bytes; not yet checked.
inline FrameHeader read_frame_header(std::span<const std::byte> message) {
  FrameHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  return header;
}

/// Messages of one pair: 16 bits of group, 32 that tell its calls apart, 16 of place in the payload.
constexpr uint64_t first_tag(uint16_t group, uint32_t sequence) {
  return uint64_t{group} << 48 | uint64_t{sequence} << 16;
}
constexpr bool is_first_message(uint64_t tag) { return (tag & 0xFFFF) == 0; }
constexpr uint16_t group_of(uint64_t tag) { return static_cast<uint16_t>(tag >> 48); }

/// Chunk `index` (from 0) of the payload behind `header`. In the place of the sequence stands a hash
/// of verb, sequence, fingerprint and capacity.
uint64_t chunk_tag(const FrameHeader& header, size_t index);
constexpr size_t chunk_index(uint64_t chunk_tag) { return (chunk_tag & 0xFFFF) - 1; }

/// Bytes of a chunk of payloads of at most `capacity` bytes. 128 KiB take 21 ms at 50 Mbit/s, which
/// the queues of slow links hold; beyond 1 MiB an eighth, because each chunk costs two messages.
constexpr size_t chunk_bytes(size_t capacity) {
  constexpr size_t kUnit = size_t{128} << 10;
  return std::clamp(capacity / 8 / kUnit * kUnit, kUnit, PointToPoint::kMessageBytes);
}

/// Chunks after message 0 of payloads of at most `capacity` bytes.
constexpr size_t chunk_count(size_t capacity) {
  const size_t chunk = chunk_bytes(capacity);
  return capacity <= kInlineBytes ? 0 : (capacity - kInlineBytes + chunk - 1) / chunk;
}

/// The largest payload whose chunks 16 bits can number (0 is message 0, 0xFFFF is left to engines).
inline constexpr size_t kMaxPayloadBytes = kInlineBytes + 0xFFFE * PointToPoint::kMessageBytes;

/// Chunk `index` (from 0) of a payload of at most `capacity` bytes; empty behind its end.
template <class Byte>
std::span<Byte> chunk_of(std::span<Byte> payload, size_t capacity, size_t index) {
  const size_t chunk = chunk_bytes(capacity);
  const size_t begin = std::min(kInlineBytes + index * chunk, payload.size());
  return payload.subspan(begin, std::min(payload.size() - begin, chunk));
}

}  // namespace gradwire
