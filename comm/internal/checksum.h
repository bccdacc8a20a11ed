#pragma once
// A checksum of payloads, fast enough to be beside the copying: it finds bytes that changed on the
// way, not bytes that somebody changed on purpose.

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire {

/// CRC-32C (Castagnoli, reflected 0x82F63B78, initial value and final xor 0xFFFFFFFF).
uint32_t crc32c(std::span<const std::byte> bytes);

/// Four CRC-32C side by side, so that they keep a processor busy: lane i is that of the 8-byte words
/// i, i + 4, i + 8, ... of the first size / 32 * 32 bytes; the result is the CRC-32C of the four
/// little-endian lanes and the bytes left over.
uint32_t payload_checksum(std::span<const std::byte> bytes);

namespace internal {
/// payload_checksum() where the processor has no instruction for it; for tests.
uint32_t payload_checksum_by_table(std::span<const std::byte> bytes);
}  // namespace internal

}  // namespace gradwire
