#pragma once
// The header every payload begins with. WIRE_FORMAT.md gives the whole grammar.

#include <cstring>

#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire {

/// Elements [begin, end) of a group. `begin` is a multiple of kChunk, and so is `end` unless it is
/// the group's end.
struct Region {
  size_t begin = 0;
  size_t end = 0;
  size_t numel() const { return end - begin; }
  bool operator==(const Region&) const = default;
};

/// Reads the header at the start of `bytes`, in the host's memory, without trusting it. @throws InvalidArgument when fewer
/// than 32 bytes are there, magic or version are wrong, or `bytes` is below the stated length.
PayloadHeader read_header(ConstPayload bytes);

/// The header's `bytes` of a payload in the host's memory that this process wrote itself.
inline size_t payload_bytes(ConstPayload payload) {
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return header.bytes;
}

}  // namespace gradwire
