#pragma once
// Between float32 and the 16-bit types on a GPU: the bits of kernels/ops/cast.h. All memory is
// the GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

/// out[i] = source[i] as a float; exact. `source` may begin at any address.
/// @throws InvalidArgument for sizes that differ, views or streams that are not CUDA.
void widen(ConstTensorView source, std::span<float> out, Stream& stream);

/// out[i] = source[i] rounded to out's type. `out` may begin at any address.
/// @throws InvalidArgument as widen() does.
void narrow(std::span<const float> source, TensorView out, Stream& stream);

}  // namespace gradwire::cuda
