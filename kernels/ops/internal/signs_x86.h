#pragma once
// The forms of signs.h with intrinsics, for whole blocks of 256.

#include "gradwire/kernels/ops/internal/quantize_blocks.h"

namespace gradwire::cpu {

/// The scale of a block whose sum of |x| is not finite: 0 where an x is not, else as signs.h says.
float scale_of_overflow(const float* x, size_t count);

#ifdef GRADWIRE_X86
bool encode_signs_avx512(const FusedBlocks& in);
bool encode_signs_avx2(const FusedBlocks& in);
void sum_signs_avx512(const FusedSum& sum);
void sum_signs_avx2(const FusedSum& sum);
#endif

}  // namespace gradwire::cpu
