#pragma once
// What a step is asked for, by the host and in the GPU's memory.

#include <limits>

#include "gradwire/kernels/ops/launch.cuh"
#include "gradwire/optimizers/step_cuda.h"

namespace gradwire::cuda {

/// What gradients are divided by.
__device__ inline float loss_scale_of(const StepOptions& options) {
  const float* const from = options.on_device.loss_scale;
  return from != nullptr ? *from : 1.0f;
}
__device__ inline bool is_loss_scale(float x) {
  return x > 0.0f && x <= std::numeric_limits<float>::max();
}

/// What gradients are multiplied by, but for clipping.
__device__ inline double scale_of_gradients(const StepOptions& options) {
  return options.gradient_scale / static_cast<double>(loss_scale_of(options));
}

__device__ inline float factor_of_gradients(const StepOptions& options, double squares,
                                            double max_grad_norm) {
  const double scale = scale_of_gradients(options);
  return static_cast<float>(max_grad_norm == 0.0 ? scale
                                                 : clipped_scale(scale, squares, max_grad_norm));
}

/// What the host or device memory asks for, and whether it may be done. One thread.
__device__ inline void take_options(OptimizerWords& words, const StepOptions& options,
                                    double squares, double max_grad_norm) {
  const StepOptions::OnDevice& from = options.on_device;
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double rate = from.learning_rate != nullptr ? *from.learning_rate : options.learning_rate;
  const float loss_scale = loss_scale_of(options);
  const bool skips = from.found_inf != nullptr && *from.found_inf != 0.0f;
  if (words.fault == StepFault::kNone && !skips) {
    const bool rate_fits = rate >= 0.0 && rate <= kLargest;
    const bool scale_fits = is_loss_scale(loss_scale);
    words.fault = !rate_fits    ? StepFault::kLearningRate
                  : !scale_fits ? StepFault::kLossScale
                                : StepFault::kNone;
    words.fault_value = !rate_fits ? rate : static_cast<double>(loss_scale);
  }
  words.going = words.fault == StepFault::kNone && !skips ? kStep : 0;
  words.skipped += skips ? 1 : 0;
  words.learning_rate = rate;
  words.factor = factor_of_gradients(options, squares, max_grad_norm);
}

}  // namespace gradwire::cuda
