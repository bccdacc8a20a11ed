#pragma once
// The header every payload begins with. WIRE_FORMAT.md gives the whole grammar.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire {

/// Elements of a chunk: the unit of local indices, of slices and of regions.
inline constexpr size_t kChunk = 4096;

/// Elements [begin, end) of a group. `begin` is a multiple of kChunk, and so is `end` unless it is
/// the group's end.
struct Region {
  size_t begin = 0;
  size_t end = 0;
  size_t numel() const { return end - begin; }
  bool operator==(const Region&) const = default;
};

enum class PayloadFormat : uint8_t { kDense = 1, kBlockQuantized = 2, kSparse = 3 };

inline constexpr uint32_t kPayloadMagic = 0x31575247;  // "GRW1" in little-endian bytes
inline constexpr uint8_t kPayloadVersion = 1;
inline constexpr uint8_t kFlagNonFinite = 1;  ///< the rank's gradient + residual held NaN or inf

/// 32 bytes, little-endian.
struct PayloadHeader {
  uint32_t magic = kPayloadMagic;
  uint8_t version = kPayloadVersion;
  PayloadFormat format = PayloadFormat::kDense;
  uint8_t values = 0;  ///< a ValueCodec; for kRaw the ValueCodec of the dtype sent
  uint8_t flags = 0;
  uint32_t spec_fingerprint = 0;
  uint32_t first_chunk = 0;  ///< the region's begin / kChunk; 0 for a whole group
  uint64_t numel = 0;        ///< elements covered
  uint64_t bytes = 0;        ///< true length of this payload, header included
};
static_assert(sizeof(PayloadHeader) == 32);

/// Reads the header at the start of `bytes` without trusting it. @throws InvalidArgument when fewer
/// than 32 bytes are there, magic or version are wrong, or `bytes` is below the stated length.
PayloadHeader read_header(ConstPayload bytes);

/// The header's `bytes` of a payload this process wrote itself.
inline size_t payload_bytes(ConstPayload payload) {
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return header.bytes;
}

}  // namespace gradwire
