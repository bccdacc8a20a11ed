#pragma once
// A velocity on a GPU: u_next = momentum u + g min(1, limit / |g|). Its two arrays follow the
// parity of the residual, so that what is not committed leaves no trace; where the step is set it
// begins at zero.

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/ops/velocity_cuda.h"

namespace gradwire {

class CudaVelocity {
 public:
  struct Options {
    size_t numel = 0;
    Device device{};
    float momentum = 0.0f;  ///< in [0, 1)
    double limit = 0.0;     ///< of |g|, over all elements; 0: none
    float decay = 1.0f;     ///< of e
  };
  explicit CudaVelocity(const Options& options);

  /// What a step enqueues: x = u_next + decay e, in float32; e may be empty.
  struct Step {
    ConstGradient g;
    cuda::ParitySpan e;
    cuda::ParitySpan x;
    const cuda::StepWords* words;  ///< whose commits it follows
  };
  void accelerate(const Step& step, Context& context);

  /// What the next commit makes the velocity.
  cuda::ParitySpan next(const cuda::StepWords* words) const {
    return {second_.as<float>(), first_.as<float>(), &words->parity};
  }

 private:
  const Options options_;
  Buffer first_, second_;  // parity 0: the first is committed
  Buffer slots_;
  Buffer factor_;
};

}  // namespace gradwire
