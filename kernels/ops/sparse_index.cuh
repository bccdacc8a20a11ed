#pragma once
// Indices within a chunk, two in three bytes, as kernels read them.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/ops/launch.cuh"

namespace gradwire::cuda {

/// Entry `at` of 12-bit indices.
__device__ __forceinline__ uint32_t unpack_index(const std::byte* packed, uint32_t at,
                                                 uint32_t count) {
  const std::byte* const pair = packed + at / 2 * 3;
  const auto low = static_cast<uint32_t>(pair[0]);
  const auto middle = static_cast<uint32_t>(pair[1]);
  if (at % 2 == 1) {
    return middle >> 4 | static_cast<uint32_t>(pair[2]) << 4;
  }
  return at + 1 == count ? low | middle << 8 : low | (middle & 15) << 8;
}

}  // namespace gradwire::cuda
