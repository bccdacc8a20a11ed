#pragma once
// What error feedback adds up before and behind a payload, on a GPU, where g + e alone does not say
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

/// left[i] = e[i] - (x[i] - left[i]): e - D, D being what was sent of x. Where that is NaN or
/// infinity, the header at seal.out (seal.header is not used) is flagged, and so is the step.
/// @throws InvalidArgument for sizes, pointers or devices that do not fit.
void subtract_sent(const SentSum& sum, const Seal& seal, Stream& stream);

/// Of one size.
struct EstimateSum {
  ParitySpan estimate;    ///< A, committed
  ParitySpan next;        ///< the other array
  std::span<float> mean;  ///< of what was sent
  uint32_t* status;       ///< device word, StepWords::status
};

/// mean[i] = next[i] = estimate[i] + mean[i]: the bits of cpu::add(). NaN or infinity sets the step's
/// status to kStatusNonFinite: on every rank, whose means are the same. One launch.
/// @throws InvalidArgument for sizes, pointers or devices that do not fit.
void add_estimate(const EstimateSum& sum, Stream& stream);

}  // namespace gradwire::cuda
