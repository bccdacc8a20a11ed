#pragma once
// Runs of (index in chunk, value): how the indices are packed, and how values are gathered and
// added.

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::cpu {

/// Twelve bits each, two in three little-endian bytes; an odd last one takes two bytes.
void pack_indices(std::span<const uint16_t> indices, std::byte* out);
void unpack_indices(const std::byte* packed, std::span<uint16_t> indices);
/// Whether packed indices increase strictly and are below `numel`.
bool packed_indices_ascend(const std::byte* packed, size_t count, size_t numel);
constexpr size_t packed_index_bytes(size_t count) { return count / 2 * 3 + count % 2 * 2; }

/// One bit per element of the chunk, bit i % 8 of byte i / 8; padding bits are zero.
void pack_bitmap(std::span<const uint16_t> indices, std::span<std::byte> bitmap);
/// Positions of the first indices.size() set bits. @returns how many bits are set in all.
size_t unpack_bitmap(std::span<const std::byte> bitmap, std::span<uint16_t> indices);
/// How many bits are set.
size_t count_bits(std::span<const std::byte> bitmap);
constexpr size_t bitmap_bytes(size_t numel) { return (numel + 7) / 8; }

/// out[i] = x[indices[i]]
void gather(std::span<const float> x, std::span<const uint16_t> indices, std::span<float> out);

/// sum[indices[i]] += values[i], in order.
void accumulate(std::span<const float> values, std::span<const uint16_t> indices,
                std::span<float> sum);

/// The same from `count` packed indices (at most 4096) and float32 values at any address.
void accumulate_packed(const std::byte* packed, const std::byte* values, size_t count,
                       std::span<float> sum);

}  // namespace gradwire::cpu
