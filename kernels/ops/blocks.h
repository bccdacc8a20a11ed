#pragma once
// Blocks of consecutive elements that are sent whole: where they begin and end, the same on CPU and
// CUDA. They restart with every segment, so that a width that divides a parameter's rows cuts rows.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

/// A run of elements that no block leaves: how many elements, and blocks, there are up to its end.
struct BlockSegment {
  uint64_t end;
  uint64_t blocks_end;
};

/// Elements [begin, end).
struct BlockExtent {
  uint64_t begin;
  uint64_t end;
};

/// Segments that tile a group, each cut into blocks of `width`, its last one what is left. Elements
/// and blocks that are asked for are there.
struct BlockGrid {
  const BlockSegment* segments = nullptr;
  size_t count = 0;
  uint32_t width = 0;  ///< 0: there are no blocks

  GRADWIRE_HOST_DEVICE BlockExtent extent_at(uint64_t element) const {
    const size_t s = first_above(&BlockSegment::end, element);
    const uint64_t begin = s > 0 ? segments[s - 1].end : 0;
    return extent_in(s, (element - begin) / width);
  }
  GRADWIRE_HOST_DEVICE BlockExtent extent(uint64_t block) const {
    const size_t s = first_above(&BlockSegment::blocks_end, block);
    return extent_in(s, block - (s > 0 ? segments[s - 1].blocks_end : 0));
  }
  GRADWIRE_HOST_DEVICE uint64_t block_at(uint64_t element) const {
    const size_t s = first_above(&BlockSegment::end, element);
    const BlockSegment before = s > 0 ? segments[s - 1] : BlockSegment{0, 0};
    return before.blocks_end + (element - before.end) / width;
  }

 private:
  /// Empty segments end where the one before does, and are passed over.
  GRADWIRE_HOST_DEVICE size_t first_above(uint64_t BlockSegment::*end, uint64_t at) const {
    size_t low = 0;
    for (size_t high = count - 1; low < high;) {
      const size_t middle = (low + high) / 2;
      if (segments[middle].*end > at) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  GRADWIRE_HOST_DEVICE BlockExtent extent_in(size_t s, uint64_t block) const {
    const uint64_t begin = (s > 0 ? segments[s - 1].end : 0) + block * width;
    const uint64_t end = begin + width;
    return {begin, end < segments[s].end ? end : segments[s].end};
  }
};

/// Blocks that lie in [begin, end), in part at least; they follow one another.
GRADWIRE_HOST_DEVICE inline BlockExtent blocks_between(const BlockGrid& grid, uint64_t begin,
                                                       uint64_t end) {
  return begin < end ? BlockExtent{grid.block_at(begin), grid.block_at(end - 1) + 1}
                     : BlockExtent{0, 0};
}

/// The norms that blocks are ranked by add squares in lanes of so many, in float64: the square of
/// element i of a block to lane i % 8, then lanes l and l + 4, l + 2, l + 1.
inline constexpr unsigned kNormLanes = 8;

/// The norm in float32, of which none overflows unless an element is not finite, nor becomes zero.
GRADWIRE_HOST_DEVICE inline float norm_of_squares(double squares) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const double norm = sqrt(squares);
  const bool overflows = norm > kLargest && norm <= std::numeric_limits<double>::max();
  return overflows ? kLargest : static_cast<float>(norm);
}

}  // namespace gradwire
