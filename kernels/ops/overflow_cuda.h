#pragma once
// What a merge puts back into a residual and overflows there would never be sent again: the payload is
// flagged. All memory is the GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture
// the call.

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// Where x holds NaN or infinity, the header that lies at seal.out (its header is not used) is flagged,
/// and so is the step. @throws InvalidArgument for pointers or devices that do not fit.
void flag_overflow(const ParitySpan& x, const Seal& seal, Stream& stream);

}  // namespace gradwire::cuda
