#pragma once
// Between float32 and the 16-bit types. Bit for bit what kernels/core/dtype.h defines: nearest
// even, finite values saturate, NaN stays NaN. Nothing here needs aligned memory, because payload
// bytes are read and written in place.

#include <span>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::cpu {

/// out[i] = source[i] as a float; exact. Sizes must agree.
void widen(ConstTensorView source, std::span<float> out);

/// out[i] = source[i] rounded to out's type. Sizes must agree.
void narrow(std::span<const float> source, TensorView out);

}  // namespace gradwire::cpu
