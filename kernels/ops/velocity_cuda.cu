#include "gradwire/kernels/ops/velocity.cuh"

#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {

void clip_factor(ConstTensorView g, double limit, std::span<double> sums, float* factor,
                 Stream& stream) {
  const char* const op = "cuda::clip_factor";
  check_view(op, "g", g, stream);
  check(limit > 0, op, ": limit is ", limit, ", must be positive");
  const size_t runs = clip_runs(g.numel);
  check(sums.size() == runs, op, ": sums has ", sums.size(), " elements, must have ", runs);
  check_pointer(op, "sums", sums.data(), runs, alignof(double));
  check_pointer(op, "factor", factor, 1, alignof(float));
  dispatch(g.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(clip_sums_kernel<T>, (LaunchShape{runs, kVelocityThreads, stream}),
                    static_cast<const std::byte*>(g.data), g.numel, sums.data());
  });
  GRADWIRE_LAUNCH(clip_factor_kernel, (LaunchShape{1, kWarp, stream}), sums.data(), runs, limit,
                  factor);
}

void accelerate(const VelocityInput& input, const VelocityOutput& output, Stream& stream) {
  const char* const op = "cuda::accelerate";
  const size_t numel = input.g.numel;
  check_view(op, "g", input.g, stream);
  check_parity(op, "e", input.e, numel);
  check_parity(op, "x", output.x, numel);
  for (const ParitySpan* u : {&input.u, &output.u_next}) {
    check(u->size() == numel, op, ": u or u_next has ", u->size(), " elements, must have ", numel);
    check_parity(op, "u or u_next", *u, numel);
  }
  check(input.momentum >= 0 && input.momentum < 1, op, ": momentum is ", input.momentum,
        ", must be in [0, 1)");
  check_pointer(op, "slots", input.slots, 2, alignof(VelocitySlot));
  check_pointer(op, "step", input.step, 1, alignof(StepWords));
  const VelocityArguments arguments{static_cast<const std::byte*>(input.g.data),
                                    ParityPointer(input.u),
                                    ParityPointer(input.e),
                                    ParityPointer(output.u_next),
                                    ParityPointer(output.x),
                                    numel,
                                    input.momentum,
                                    input.decay,
                                    input.factor,
                                    input.slots,
                                    input.step};
  constexpr size_t kPerBlock = size_t{kVelocityThreads} * kPerThread;
  const LaunchShape shape{(numel + kPerBlock - 1) / kPerBlock, kVelocityThreads, stream};
  dispatch(input.g.dtype,
           [&]<class T>() { GRADWIRE_LAUNCH(accelerate_kernel<T>, shape, arguments); });
}

void clear_marked(const ParitySpan& x, std::span<const std::byte> mask, Stream& stream) {
  const char* const op = "cuda::clear_marked";
  check_cuda_stream(op, stream);
  check_parity(op, "x", x, x.size());
  const size_t bytes = (x.size() + kChunk - 1) / kChunk * (kChunk / 8);
  check(mask.size() == bytes, op, ": mask has ", mask.size(), " bytes, must have ", bytes);
  check_pointer(op, "mask", mask.data(), mask.size(), 1);
  const size_t words = bytes / 4;
  GRADWIRE_LAUNCH(
      clear_marked_kernel,
      (LaunchShape{(words + kVelocityThreads - 1) / kVelocityThreads, kVelocityThreads, stream}),
      ParityPointer(x), mask.data(), words);
}

}  // namespace gradwire::cuda
