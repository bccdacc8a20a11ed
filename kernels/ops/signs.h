#pragma once
// One bit per element: the sign, and the mean magnitude of its block as scale. Karimireddy et al.,
// "Error feedback fixes SignSGD", ICML 2019.
//
//   scale = sum |x| / n         over the n elements of a block, in float32
//   bit   = 1 where x < 0 (0 for both zeros)
//   value = bit ? -scale : scale
//
// The sum has one order: 32 lanes, element i in lane i % 32, then lanes i and i + 16, i + 8, i + 4,
// i + 2, i + 1. Where it overflows, each |x| is taken times 2^-12 and the quotient times 2^12,
// FLT_MAX at most. A block that holds NaN or infinity, or whose mean rounds to 0, has scale 0 and
// bits 0.

#include "gradwire/kernels/ops/quantize.h"

namespace gradwire::cpu {

/// Encodes at most 4096 elements of g + e. out.codes takes one bit per element, the first in the
/// lowest bit of a byte, padded with zeros; e_next = x - value. Nothing needs to be aligned.
/// @returns false when x holds NaN or infinity.
bool encode_signs(const Summands& x, size_t block, const QuantizedSum& out);

/// The mean magnitude of at most 4096 finite elements, added as those of one block; 0 of none.
float mean_magnitude(std::span<const float> x);

/// out = how.factor * (the parts' values, added in order from 0 on), at most 4096 elements.
/// how.bits is not used.
void sum_signs(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
               std::span<float> out);

}  // namespace gradwire::cpu
