// Every cuda:: function of a build without device code, so that callers hold no #ifdef.

#include "gradwire/optimizers/step_cuda.h"

namespace gradwire::cuda {
namespace {

[[noreturn]] void throw_unavailable(const char* call) {
  throw DeviceError(concat(call,
                           ": gradwire was built without CUDA kernels, configure with "
                           "GRADWIRE_CUDA=ON and nvcc in the path"));
}

}  // namespace

void step(const StepTables&, const StepRequest&, Stream&) { throw_unavailable("cuda::step"); }

void prepare_onebit(const StepTables&, const StepRequest&, const OneBitTables&, Stream&) {
  throw_unavailable("cuda::prepare_onebit");
}

void step_onebit(const StepTables&, const StepRequest&, const OneBitTables&, Stream&) {
  throw_unavailable("cuda::step_onebit");
}

void take_values(const StepTables&, Stream&) { throw_unavailable("cuda::take_values"); }

void take_anchors(const StepTables&, Stream&) { throw_unavailable("cuda::take_anchors"); }

void write_moves(const StepTables&, Stream&) { throw_unavailable("cuda::write_moves"); }

}  // namespace gradwire::cuda
