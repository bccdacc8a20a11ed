#pragma once
// The 32 bytes every payload begins with, for those that write them: kernels/compress/payload.h
// reads them back, kernels/compress/WIRE_FORMAT.md has the whole grammar.

#include <cstddef>
#include <cstdint>

namespace gradwire {

/// Elements of a chunk: the unit of local indices, of slices and of regions.
inline constexpr size_t kChunk = 4096;

enum class PayloadFormat : uint8_t { kDense = 1, kBlockQuantized = 2, kSparse = 3, kDrawn = 4, kLowRank = 5 };

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
  uint32_t numel = 0;        ///< elements covered, at most 2^31
  uint32_t variant = 0;      ///< randomk: which elements; powersgd: which factors; dgc: the stage
  uint64_t bytes = 0;        ///< true length of this payload, header included
};
static_assert(sizeof(PayloadHeader) == 32);

}  // namespace gradwire
