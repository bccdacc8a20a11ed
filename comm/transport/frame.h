#pragma once
// The 64 bytes in front of every (source, destination, step of a collective), and the tags of its
// messages.
//
// Message 0 is the header and the first kInlineBytes of the payload; what remains follows in chunks
// of chunk_bytes(capacity), as many as the agreed capacity has, shorter or empty where the payload
// ends. In collectives in rounds a message with the chunk's checksum follows each chunk. A receiver posts everything before anything arrives: message 0 always with
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
  kRingAllReduce = 8,
  kRabenseifnerAllReduce = 9,
  kRingAllGather = 10,
  kBruckAllGather = 11,
};

std::string_view to_string(Verb verb);

/// Little-endian on the wire, as in memory.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x31465747;  // "GWF1"
  static constexpr uint16_t kVersion = 2;

  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t verb = 0;
  uint8_t zero = 0;
  uint32_t sequence = 0;     ///< steps of this group's collectives before this one
  uint32_t source = 0;       ///< rank in the world
  uint64_t fingerprint = 0;  ///< CallTag::fingerprint
  uint64_t bytes = 0;        ///< of payload, all messages together
  uint64_t group = 0;        ///< 0: the world
  uint64_t capacity = 0;     ///< the most that `bytes` could be: tells how many chunks follow
  uint64_t reserved = 0;     ///< messages: what it covers (Covers) << 32 | payload_checksum()
  uint64_t checksum = 0;  ///< FNV-1a 64 of the 56 bytes before
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);
static_assert(std::endian::native == std::endian::little);

/// Which bytes of a payload its header's checksum covers: all, or those in message 0, where the rest
/// does not exist yet when the header leaves (collectives in rounds); each chunk then has its own.
enum class Covers : uint32_t { kPayload = 1, kFirstMessage = 2 };

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

/// Whether a payload has to fill its capacity.
enum class FrameFill : uint8_t { kUpTo, kExact };

/// Compares what rank `expected.source` sent with what the caller's own call makes of it; length
/// and checksum of `expected` are not looked at. @throws TransportError naming that rank, what it
/// sent and what was expected.
void check_frame(const FrameHeader& header, const FrameHeader& expected, FrameFill fill);

/// Messages of one pair: 16 bits of group, 32 that tell its calls apart, 1 that tells a chunk's
/// checksum from the chunk, 15 of place in the payload.
constexpr uint64_t first_tag(uint16_t group, uint32_t sequence) {
  return uint64_t{group} << 48 | uint64_t{sequence} << 16;
}
constexpr bool is_first_message(uint64_t tag) { return (tag & 0xFFFF) == 0; }
constexpr uint16_t group_of(uint64_t tag) { return static_cast<uint16_t>(tag >> 48); }

/// Chunk `index` (from 0) of the payload behind `header`. In the place of the sequence stands a hash
/// of verb, sequence, fingerprint and capacity.
uint64_t chunk_tag(const FrameHeader& header, size_t index);
constexpr size_t chunk_index(uint64_t chunk_tag) { return (chunk_tag & 0x7FFF) - 1; }

/// The message behind a chunk in collectives in rounds: payload_checksum() of the chunk.
inline constexpr size_t kChecksumBytes = sizeof(uint32_t);
constexpr uint64_t checksum_tag(uint64_t chunk_tag) { return chunk_tag | 0x8000; }
constexpr bool is_checksum(uint64_t tag) { return (tag & 0x8000) != 0; }

/// Bytes of a chunk of payloads of at most `capacity` bytes. 128 KiB take 21 ms at 50 Mbit/s, which
/// the queues of slow links hold; beyond 1 MiB an eighth, because each chunk costs two messages.
constexpr size_t chunk_bytes(size_t capacity) {
  constexpr size_t kUnit = size_t{128} << 10;
  return std::clamp(capacity / 8 / kUnit * kUnit, kUnit, PointToPoint::kMessageBytes);
}

/// Chunks that hold the first `bytes` bytes of a payload of at most `capacity`, message 0 aside.
constexpr size_t chunks_before(size_t bytes, size_t capacity) {
  const size_t chunk = chunk_bytes(capacity);
  return bytes <= kInlineBytes ? 0 : (bytes - kInlineBytes + chunk - 1) / chunk;
}

/// Chunks after message 0 of payloads of at most `capacity` bytes.
constexpr size_t chunk_count(size_t capacity) { return chunks_before(capacity, capacity); }

/// Bytes of the checksums behind the chunks of one message of a collective in rounds.
constexpr size_t checksum_bytes(size_t capacity) {
  return kChecksumBytes * chunk_count(capacity);
}

/// The largest payload whose chunks 15 bits can number (0 is message 0).
inline constexpr size_t kMaxPayloadBytes = kInlineBytes + 0x7FFE * PointToPoint::kMessageBytes;

/// Chunk `index` (from 0) of a payload of at most `capacity` bytes; empty behind its end.
template <class Byte>
std::span<Byte> chunk_of(std::span<Byte> payload, size_t capacity, size_t index) {
  const size_t chunk = chunk_bytes(capacity);
  const size_t begin = std::min(kInlineBytes + index * chunk, payload.size());
  return payload.subspan(begin, std::min(payload.size() - begin, chunk));
}

}  // namespace gradwire
