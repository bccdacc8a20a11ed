#pragma once
// Block-wise quantization of one element, the same bits on CPU and CUDA; quantize.h has the
// equations.

#include <bit>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/quantize.h"

namespace gradwire {

/// Of one block. Scale 0: the block counts as zero.
struct BlockScale {
  float scale;
  float inverse;
};

/// From the bits of max|x|; `limit` is the largest code. NaN and infinity give scale 0.
GRADWIRE_HOST_DEVICE inline BlockScale block_scale(uint32_t maximum_bits, float limit) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  const float maximum = std::bit_cast<float>(maximum_bits);
  if (maximum_bits > kLargestFinite || maximum < cpu::kSmallestMaximum) {
    return {0.0f, 0.0f};
  }
  float scale = maximum / limit;
  if (std::bit_cast<uint32_t>(limit * scale) > kLargestFinite) {
    scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 1);  // the next smaller float
  }
  return {scale, limit / maximum};
}

/// rint() for |x| < 2^22, without a call: the sum drops the fraction, to nearest even.
GRADWIRE_HOST_DEVICE inline int32_t round_to_int(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return std::bit_cast<int32_t>(x + kMagic) - std::bit_cast<int32_t>(kMagic);
}

GRADWIRE_HOST_DEVICE inline int32_t floor_to_int(float x) {
  const int32_t truncated = static_cast<int32_t>(x);
  return truncated - (static_cast<float>(truncated) > x ? 1 : 0);
}

GRADWIRE_HOST_DEVICE inline int32_t nearest_code(float x, BlockScale s) {
  return s.scale == 0.0f ? 0 : round_to_int(x * s.inverse);
}

GRADWIRE_HOST_DEVICE inline int32_t stochastic_code(float x, BlockScale s, int32_t limit,
                                                    uint32_t random_half) {
  if (s.scale == 0.0f) {
    return 0;
  }
  const float uniform = (static_cast<float>(random_half) + 0.5f) * 0x1p-16f;
  const int32_t code = floor_to_int(x * s.inverse + uniform);
  return code < -limit ? -limit : code > limit ? limit : code;
}

GRADWIRE_HOST_DEVICE inline float code_value(int32_t code, float scale) {
  return static_cast<float>(code) * scale;
}

}  // namespace gradwire
