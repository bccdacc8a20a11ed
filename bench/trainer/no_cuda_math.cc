// In the place of math_cuda.cu where there is no CUDA compiler.

#include "bench/trainer/math.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {

std::unique_ptr<Math> make_cuda_math(gradwire::Stream&) {
  throw gradwire::DeviceError(
      "gradwire-trainer was built without CUDA kernels, configure with GRADWIRE_CUDA=ON and nvcc "
      "in the path");
}

}  // namespace trainer
