#pragma once
// The 64 bytes in front of every (source, destination, collective), and the tags of its messages.
//
// Message 0 is the header and the first kInlineBytes of the payload; what remains follows in chunks
// of PointToPoint::kMessageBytes. A receiver always posts kFirstMessageBytes for message 0, so a
// sender that disagrees about anything cannot overrun it, and posts the chunks only after the
// header has been checked.

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
  uint64_t reserved[2] = {0, 0};
  uint64_t checksum = 0;  ///< FNV-1a 64 of the 56 bytes before
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);
static_assert(std::endian::native == std::endian::little);

/// Small on purpose: everyone sends its first messages at once, and what exceeds the queue of a
/// slow link is lost and sent again.
inline constexpr size_t kFirstMessageBytes = size_t{64} << 10;
inline constexpr size_t kInlineBytes = kFirstMessageBytes - kFrameHeaderBytes;

/// FNV-1a 64 of everything before the checksum.
uint64_t checksum_of(const FrameHeader& header);

/// The header in the first 64 bytes; not yet checked.
inline FrameHeader read_frame_header(std::span<const std::byte> message) {
  FrameHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  return header;
}

/// Messages of one pair are told apart by (group, collective, part of the payload).
constexpr uint64_t message_tag(uint16_t group, uint32_t sequence, uint16_t part) {
  return uint64_t{group} << 48 | uint64_t{sequence} << 16 | part;
}
constexpr bool is_first_message(uint64_t tag) { return (tag & 0xFFFF) == 0; }

/// Chunks after message 0.
constexpr size_t chunk_count(size_t payload_bytes) {
  return payload_bytes <= kInlineBytes
             ? 0
             : (payload_bytes - kInlineBytes + PointToPoint::kMessageBytes - 1) /
                   PointToPoint::kMessageBytes;
}

/// The largest payload the 16 bits of `part` can number.
inline constexpr size_t kMaxPayloadBytes = kInlineBytes + 0xFFFF * PointToPoint::kMessageBytes;

/// Chunk `index` (from 0) of a payload.
template <class Byte>
std::span<Byte> chunk_of(std::span<Byte> payload, size_t index) {
  const size_t begin = kInlineBytes + index * PointToPoint::kMessageBytes;
  const size_t rest = payload.size() - begin;
  return payload.subspan(begin,
                         rest < PointToPoint::kMessageBytes ? rest : PointToPoint::kMessageBytes);
}

}  // namespace gradwire
