#include "gradwire/kernels/compress/internal/cuda_velocity.h"

namespace gradwire {

CudaVelocity::CudaVelocity(const Options& options)
    : options_(options),
      first_(options.numel * sizeof(float), options.device),
      second_(options.numel * sizeof(float), options.device),
      slots_(2 * sizeof(cuda::VelocitySlot), options.device),
      factor_(sizeof(float), options.device) {}

void CudaVelocity::accelerate(const Step& step, Context& context) {
  const bool clips = options_.limit > 0;
  float* const factor = factor_.as<float>().data();
  if (clips) {
    Workspace::Frame frame(context.workspace);
    cuda::clip_factor(step.g, options_.limit, frame.take<double>(cuda::clip_runs(options_.numel)),
                      factor, context.stream);
  }
  cuda::accelerate({.g = step.g,
                    .velocity = kept(),
                    .e = step.e,
                    .kept = options_.rates.kept,
                    .taken = options_.rates.taken,
                    .factor = clips ? factor : nullptr,
                    .decay = options_.decay},
                   {.u_next = next(), .x = step.x}, context.stream);
}

}  // namespace gradwire
