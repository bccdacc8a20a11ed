#include "gradwire/kernels/ops/feedback.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {
namespace {

LaunchShape shape_of(size_t numel, Stream& stream) {
  constexpr size_t kPerBlock = size_t{kFeedbackThreads} * kPerThread;
  return {(numel + kPerBlock - 1) / kPerBlock, kFeedbackThreads, stream};
}

}  // namespace

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
  const LaunchShape shape = shape_of(x.size(), stream);
  const DecayedSumArguments arguments{static_cast<const std::byte*>(sum.g.data),
                                      ParityPointer(sum.e), sum.decay, x.data(), x.size()};
  dispatch(sum.g.dtype,
           [&]<class T>() { GRADWIRE_LAUNCH(add_decayed_kernel<T>, shape, arguments); });
}

void subtract_sent(const SentSum& sum, const Seal& seal, Stream& stream) {
  const char* const op = "cuda::subtract_sent";
  check_cuda_stream(op, stream);
  const size_t numel = sum.x.size();
  check(sum.e.size() == numel && sum.left.size() == numel, op, ": x, e and left have ", numel, ", ",
        sum.e.size(), " and ", sum.left.size(), " elements, must have the same number");
  check_pointer(op, "x", sum.x.data(), numel, alignof(float));
  check_parity(op, "e", sum.e, numel);
  check_parity(op, "left", sum.left, numel);
  check_written_seal(op, seal);
  const LaunchShape shape = shape_of(numel, stream);
  const SentSumArguments arguments{sum.x.data(), ParityPointer(sum.e), ParityPointer(sum.left),
                                   numel, seal};
  GRADWIRE_LAUNCH(subtract_sent_kernel, shape, arguments);
}

void add_estimate(const EstimateSum& sum, Stream& stream) {
  const char* const op = "cuda::add_estimate";
  check_cuda_stream(op, stream);
  const size_t numel = sum.mean.size();
  check(sum.estimate.size() == numel && sum.next.size() == numel, op,
        ": estimate, next and mean have ", sum.estimate.size(), ", ", sum.next.size(), " and ",
        numel, " elements, must have the same number");
  check_parity(op, "estimate", sum.estimate, numel);
  check_parity(op, "next", sum.next, numel);
  check_pointer(op, "mean", sum.mean.data(), numel, alignof(float));
  check(sum.status != nullptr, op, ": status is null, must be a word in device memory");
  const EstimateArguments arguments{ParityPointer(sum.estimate), ParityPointer(sum.next),
                                    sum.mean.data(), sum.status, numel};
  GRADWIRE_LAUNCH(add_estimate_kernel, shape_of(numel, stream), arguments);
}

}  // namespace gradwire::cuda
