#include "gradwire/kernels/ops/velocity.cuh"

#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {
namespace {

VelocityPointer pointer_to(const char* op, const KeptVelocity& velocity, size_t numel) {
  check(velocity.u.size() == numel, op, ": u has ", velocity.u.size(), " elements, must have ",
        numel);
  check_parity(op, "u", velocity.u, numel);
  check_pointer(op, "slots", velocity.slots, 2, alignof(VelocitySlot));
  check_pointer(op, "step", velocity.step, 1, alignof(StepWords));
  return {ParityPointer(velocity.u), velocity.slots, velocity.step};
}

LaunchShape elements_shape(size_t numel, Stream& stream) {
  constexpr size_t kPerBlock = size_t{kVelocityThreads} * kPerThread;
  return {(numel + kPerBlock - 1) / kPerBlock, kVelocityThreads, stream};
}

void check_rate(const char* op, const char* what, float rate) {
  check(rate >= 0 && rate <= 1, op, ": ", what, " is ", rate, ", must be in [0, 1]");
}

}  // namespace

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
  check(output.u_next.size() == numel, op, ": u_next has ", output.u_next.size(),
        " elements, must have ", numel);
  check_parity(op, "u_next", output.u_next, numel);
  check_rate(op, "kept", input.kept);
  check_rate(op, "taken", input.taken);
  const VelocityArguments arguments{static_cast<const std::byte*>(input.g.data),
                                    pointer_to(op, input.velocity, numel),
                                    ParityPointer(input.e),
                                    ParityPointer(output.u_next),
                                    ParityPointer(output.x),
                                    numel,
                                    input.kept,
                                    input.taken,
                                    input.factor,
                                    input.decay};
  const LaunchShape shape = elements_shape(numel, stream);
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

void read_velocity(const KeptVelocity& velocity, std::span<float> to, Stream& stream) {
  const char* const op = "cuda::read_velocity";
  check_cuda_stream(op, stream);
  check_pointer(op, "to", to.data(), to.size(), alignof(float));
  GRADWIRE_LAUNCH(read_velocity_kernel, elements_shape(to.size(), stream),
                  pointer_to(op, velocity, to.size()), to.data(), to.size());
}

void write_velocity(const KeptVelocity& velocity, std::span<const float> from, Stream& stream) {
  const char* const op = "cuda::write_velocity";
  check_cuda_stream(op, stream);
  check_pointer(op, "from", from.data(), from.size(), alignof(float));
  GRADWIRE_LAUNCH(write_velocity_kernel, elements_shape(from.size(), stream),
                  pointer_to(op, velocity, from.size()), from.data(), from.size());
}

}  // namespace gradwire::cuda
