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
                    .u = {first_.as<float>(), second_.as<float>(), &step.words->parity},
                    .e = step.e,
                    .momentum = options_.momentum,
                    .decay = options_.decay,
                    .factor = clips ? factor : nullptr,
                    .slots = slots_.as<cuda::VelocitySlot>().data(),
                    .step = step.words},
                   {.u_next = next(step.words), .x = step.x}, context.stream);
}

}  // namespace gradwire
