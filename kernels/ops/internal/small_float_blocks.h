#pragma once
// The loops over the elements of one block whose codes are small floats: quantize_cpu.cc has those of
// integers.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/ops/quantize_element.h"

namespace gradwire::cpu {

/// `random` null: to nearest.
void encode_small_floats(const float* x, size_t count, BlockScale s, SmallFloat format,
                         const uint16_t* random, int8_t* codes);
void decode_small_floats(const int8_t* codes, size_t count, float scale, SmallFloat format,
                         float* out);
/// sum[i] += what decode_small_floats() gives.
void add_small_floats(const int8_t* codes, size_t count, float scale, SmallFloat format, float* sum);

}  // namespace gradwire::cpu
