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
  }
  return "an unknown operation";
}

uint64_t checksum_of(const FrameHeader& header) {
  return fnv1a(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, checksum)));
}

uint64_t chunk_tag(const FrameHeader& header, size_t index) {
  const uint64_t agreed[] = {header.verb, header.sequence, header.fingerprint, header.capacity};
  const uint64_t hash = fnv1a(std::as_bytes(std::span(agreed)));
  return header.group << 48 | ((hash >> 32 ^ hash) & 0xFFFFFFFF) << 16 | (index + 1);
}

}  // namespace gradwire
