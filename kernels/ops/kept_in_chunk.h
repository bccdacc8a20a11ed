#pragma once
// How many elements of a chunk are kept where every chunk keeps its own, the same on CPU and CUDA.

#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

/// `k` of a whole chunk of 4096 elements, of a shorter one max(1, ceil(k * len / 4096)).
GRADWIRE_HOST_DEVICE constexpr uint32_t kept_in_chunk(uint32_t k, uint32_t len) {
  constexpr uint32_t kWhole = 4096;
  const uint32_t kept = (k * len + kWhole - 1) / kWhole;
  return len > 0 && kept == 0 ? 1 : kept;
}

}  // namespace gradwire
