#include "gradwire/comm/transport/frame.h"

#include "gradwire/comm/fingerprint.h"

namespace gradwire {

std::string_view to_string(Verb verb) {
  switch (verb) {
    case Verb::kAllGather:
      return "all_gather";
    case Verb::kAllToAll:
      return "all_to_all";
    case Verb::kReduceScatter:
      return "reduce_scatter";
    case Verb::kAllReduceSum:
      return "all_reduce_sum";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kBarrier:
      return "barrier";
    case Verb::kSplit:
      return "split";
    case Verb::kRingAllReduce:
      return "all_reduce_sum (ring)";
    case Verb::kRabenseifnerAllReduce:
      return "all_reduce_sum (rabenseifner)";
    case Verb::kRingAllGather:
      return "all_gather (ring)";
    case Verb::kBruckAllGather:
      return "all_gather (bruck)";
  }
  return "an unknown operation";
}

uint64_t checksum_of(const FrameHeader& header) {
  return fnv1a(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, checksum)));
}

void check_frame(const FrameHeader& header, const FrameHeader& expected, FrameFill fill) {
  const auto peer = static_cast<int>(expected.source);
  const auto require = [peer](bool condition, const auto&... parts) {
    if (!condition) [[unlikely]] {
      throw TransportError(concat("rank ", peer, " sent ", parts...), peer);
    }
  };
  require(header.magic == FrameHeader::kMagic && header.checksum == checksum_of(header),
          "bytes that are no frame header");
  require(header.version == FrameHeader::kVersion, "frame version ", header.version, ", expected ",
          FrameHeader::kVersion);
  require(header.source == expected.source && header.group == expected.group &&
              header.sequence == expected.sequence,
          "call ", header.sequence, " of group ", header.group, " as rank ", header.source,
          ", expected call ", expected.sequence, " of group ", expected.group);
  require(header.verb == expected.verb, to_string(static_cast<Verb>(header.verb)), ", expected ",
          to_string(static_cast<Verb>(expected.verb)), ": ranks disagree on the order of calls");
  require(header.fingerprint == expected.fingerprint, "fingerprint 0x", std::hex,
          header.fingerprint, ", expected 0x", expected.fingerprint, std::dec,
          ": ranks disagree on shape, dtype or spec");
  const bool exact = fill == FrameFill::kExact;
  const std::string_view up_to = exact ? "" : "up to ";
  require(header.capacity == expected.capacity, up_to, header.capacity, " bytes, expected ", up_to,
          expected.capacity, ": ranks disagree on sizes");
  require(header.bytes <= header.capacity && (!exact || header.bytes == header.capacity),
          header.bytes, " bytes, expected ", up_to, header.capacity);
}

uint64_t chunk_tag(const FrameHeader& header, size_t index) {
  const uint64_t agreed[] = {header.verb, header.sequence, header.fingerprint, header.capacity};
  const uint64_t hash = fnv1a(std::as_bytes(std::span(agreed)));
  return header.group << 48 | ((hash >> 32 ^ hash) & 0xFFFFFFFF) << 16 | (index + 1);
}

}  // namespace gradwire
