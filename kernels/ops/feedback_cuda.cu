#include "gradwire/kernels/ops/feedback.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {

void add_decayed(const DecayedSum& sum, std::span<float> x, Stream& stream) {
  const char* const op = "cuda::add_decayed";
  check_view(op, "g", sum.g, stream);
  check(sum.e.size() == sum.g.numel, op, ": e has ", sum.e.size(), " elements, must have ",
        sum.g.numel, " as g has");
  check_parity(op, "e", sum.e, sum.g.numel);
  check(sum.decay > 0 && sum.decay <= 1, op, ": decay is ", sum.decay, ", must be in (0, 1]");
  check(x.size() == sum.g.numel, op, ": x has ", x.size(), " elements, must have ", sum.g.numel,
        " as g has");
  check_pointer(op, "x", x.data(), x.size(), alignof(float));
  constexpr size_t kPerBlock = size_t{kFeedbackThreads} * kPerThread;
  const LaunchShape shape{(x.size() + kPerBlock - 1) / kPerBlock, kFeedbackThreads, stream};
  const DecayedSumArguments arguments{static_cast<const std::byte*>(sum.g.data),
                                      ParityPointer(sum.e), sum.decay, x.data(), x.size()};
  dispatch(sum.g.dtype,
           [&]<class T>() { GRADWIRE_LAUNCH(add_decayed_kernel<T>, shape, arguments); });
}

}  // namespace gradwire::cuda
