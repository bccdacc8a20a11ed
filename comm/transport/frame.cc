#include "gradwire/comm/transport/frame.h"

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
  std::byte bytes[sizeof(FrameHeader)];
  std::memcpy(bytes, &header, sizeof(header));
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < offsetof(FrameHeader, checksum); ++i) {
    hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x100000001B3u;
  }
  return hash;
}

}  // namespace gradwire
