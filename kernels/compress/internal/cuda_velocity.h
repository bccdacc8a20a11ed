#pragma once
// A velocity on a GPU: u_next = kept u + taken g, g clipped to a norm. Its two arrays follow the
// parity of the residual, so that what is not committed leaves no trace; where the step is set it
// begins at zero.

#include "gradwire/kernels/compress/internal/velocity.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/ops/velocity_cuda.h"

namespace gradwire {

class CudaVelocity {
 public:
  struct Options {
    size_t numel = 0;
    Device device{};
    VelocityRates rates{};
    double limit = 0.0;  ///< of |g|, over all elements; 0: none. With a limit `taken` is 1
    float decay = 1.0f;  ///< of e
    const cuda::StepWords* words = nullptr;  ///< whose commits it follows
  };
  explicit CudaVelocity(const Options& options);

  /// What a step enqueues: x = u_next + decay e, in float32; e may be empty.
  struct Step {
    ConstGradient g;
    cuda::ParitySpan e;
    cuda::ParitySpan x;
  };
  void accelerate(const Step& step, Context& context);

  /// What the next commit makes the velocity.
  cuda::ParitySpan next() const {
    return {second_.as<float>(), first_.as<float>(), &options_.words->parity};
  }
  /// Where it lies, for cuda::read_velocity() and write_velocity().
  cuda::KeptVelocity kept() const {
    return {.u = {first_.as<float>(), second_.as<float>(), &options_.words->parity},
            .slots = slots_.as<cuda::VelocitySlot>().data(),
            .step = options_.words};
  }

 private:
  const Options options_;
  Buffer first_, second_;  // parity 0: the first is committed
  Buffer slots_;
  Buffer factor_;
};

}  // namespace gradwire
