#pragma once
// Loops over gradients on a GPU that hand them over between two memories. All memory is the GPU's;
// nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

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

/// x[i] += values[i], rounded to x's type, while so many steps are committed: what waits for a
/// gradient goes into those of steps that are not committed, and of the first one that is. Behind
/// it x is not touched, nor are values read. @throws InvalidArgument as multiply().
void add_until_committed(const StepWords* step, uint32_t committed, std::span<const float> values,
                         TensorView x, Stream& stream);

}  // namespace gradwire::cuda
