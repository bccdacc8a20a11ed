#pragma once
// A random choice of a chunk's elements that everyone who knows 32 bits can make again.

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::cpu {

/// The first out.size() places of a random order of a chunk's `numel` elements (at most 4096), by
/// Fisher and Yates: word j of a Philox stream w, elements j and j + floor(w (numel - j) / 2^32)
/// change places. The stream's key is `draw` and its counters are {j / 4, chunk, 0, 0}.
void draw_in_chunk(uint32_t draw, uint32_t chunk, size_t numel, std::span<uint16_t> out);

}  // namespace gradwire::cpu
