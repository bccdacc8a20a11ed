#pragma once
// What error feedback adds up before anything is encoded, on a GPU, where g + e alone does not say
// it. All memory is the GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture
// the call.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// Of one size.
struct DecayedSum {
  ConstTensorView g;
  ParitySpan e;
  float decay = 1.0f;
};

/// x[i] = g[i] + decay * e[i], the product rounded to float32: the bits of cpu::add_scaled().
/// @throws InvalidArgument for sizes, a decay or devices that do not fit.
void add_decayed(const DecayedSum& sum, std::span<float> x, Stream& stream);

/// Of one size.
struct SentSum {
  std::span<const float> x;  ///< what was encoded
  ParitySpan e;
  ParitySpan left;  ///< x - D
};

/// left[i] = e[i] - (x[i] - left[i]): e - D, D being what was sent of x. Where that holds NaN or
/// infinity, the header that lies at seal.out (its header is not used) is flagged, and so is the step.
/// @throws InvalidArgument for sizes, pointers or devices that do not fit.
void subtract_sent(const SentSum& sum, const Seal& seal, Stream& stream);

}  // namespace gradwire::cuda
