#pragma once
// Loops over gradients on a GPU that hand them over between two memories. All memory is the GPU's;
// nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/device_status.h"

namespace gradwire::cuda {

/// A number known in part to the device alone, as a loss scale is: `value`, times or divided by
/// *on_device.
struct Factor {
  enum class With : uint8_t { kProduct, kQuotient };
  float value = 1.0f;
  const float* on_device = nullptr;  ///< device memory; null: value alone
  With with = With::kProduct;
};

/// to[i] = factor * from[i], the product rounded to float32, then to to's type: the bits of
/// cpu::widen(), multiply() and narrow(). `to` may be `from`. Of sizes alike and of any two types.
/// @throws InvalidArgument for sizes that differ, and views of another device than the stream's.
void multiply(ConstTensorView from, const Factor& factor, TensorView to, Stream& stream);

/// All of `x` becomes `value` where any status bit is set: the mean of a step that will not be
/// committed. Else it is not touched. @throws InvalidArgument as multiply().
void fill_after_fault(const StepWords* step, TensorView x, float value, Stream& stream);

}  // namespace gradwire::cuda
