#include "gradwire/kernels/ops/overflow.cuh"

#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {

void flag_overflow(const ParitySpan& x, const Seal& seal, Stream& stream) {
  const char* const op = "cuda::flag_overflow";
  check_cuda_stream(op, stream);
  check_parity(op, "x", x, x.size());
  check_written_seal(op, seal);
  constexpr size_t kPerBlock = size_t{kOverflowThreads} * kPerThread;
  const LaunchShape shape{(x.size() + kPerBlock - 1) / kPerBlock, kOverflowThreads, stream};
  GRADWIRE_LAUNCH(flag_overflow_kernel, shape, ParityPointer(x), x.size(), seal);
}

}  // namespace gradwire::cuda
