#pragma once
// A random choice of a chunk's elements that everyone who knows 32 bits can make again.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/philox.h"

namespace gradwire {

/// Where a group begins: what its choice follows from, beside the step.
struct DrawnGroup {
  uint64_t seed = 0;
  uint64_t offset = 0;  ///< of its first element in that one's parameter
  uint32_t parameter = 0;
};

/// The 32 bits that say which elements the group chooses in `step`.
GRADWIRE_HOST_DEVICE inline uint32_t draw_in_step(const DrawnGroup& group, uint32_t step) {
  constexpr uint32_t kDrawStage = 2;  // 0 and 1 round, in the counters of one seed
  return philox({{static_cast<uint32_t>(group.offset), step, group.parameter,
                  static_cast<uint32_t>(group.offset >> 32) * 4 + kDrawStage}},
                group.seed)
      .word[0];
}

}  // namespace gradwire

namespace gradwire::cpu {

/// The first out.size() places of a random order of a chunk's `numel` elements (at most 4096), by
/// Fisher and Yates: word j of a Philox stream w, elements j and j + floor(w (numel - j) / 2^32)
/// change places. The stream's key is `draw` and its counters are {j / 4, chunk, 0, 0}.
void draw_in_chunk(uint32_t draw, uint32_t chunk, size_t numel, std::span<uint16_t> out);

}  // namespace gradwire::cpu
