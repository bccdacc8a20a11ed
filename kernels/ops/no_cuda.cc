// Every cuda:: operation of a build without device code, so that callers hold no #ifdef.

#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire::cuda {
namespace {

[[noreturn]] void throw_unavailable(const char* call) {
  throw DeviceError(concat(call, ": gradwire was built without CUDA kernels, configure with "
                                 "GRADWIRE_CUDA=ON and nvcc in the path"));
}

}  // namespace

void widen(ConstTensorView, std::span<float>, Stream&) { throw_unavailable("cuda::widen"); }

void narrow(std::span<const float>, TensorView, Stream&) { throw_unavailable("cuda::narrow"); }

}  // namespace gradwire::cuda
