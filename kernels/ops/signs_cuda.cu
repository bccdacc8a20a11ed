#include "gradwire/kernels/ops/record_checks.cuh"
#include "gradwire/kernels/ops/signs.cuh"

namespace gradwire::cuda {

void encode_signs(const SignsInput& input, const SignsOutput& output, Stream& stream) {
  const char* const op = "cuda::encode_signs";
  const size_t numel = input.g.numel;
  check_block(op, input.block);
  const EncodeMemory memory =
      encode_memory(op, input, output, quantized_bytes(numel, 1, input.block), stream);
  const SignsArguments arguments{memory, static_cast<unsigned>(input.block), shift_of(input.block),
                                 output.seal};
  const LaunchShape shape = encode_shape(numel, output.seal, stream);
  dispatch(input.g.dtype, [&]<class T>() {
    if (input.block > kWarpElements) {
      GRADWIRE_LAUNCH((encode_signs_kernel<T, true>), shape, arguments);
    } else {
      GRADWIRE_LAUNCH((encode_signs_kernel<T, false>), shape, arguments);
    }
  });
}

void sum_signs(const SignsParts& parts, float scale, TensorView sum, Stream& stream) {
  const SumArguments arguments = sum_arguments("cuda::sum_signs", parts, scale, sum, stream);
  dispatch(sum.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(sum_signs_kernel<T>, sum_shape(sum.numel, stream), arguments);
  });
}

}  // namespace gradwire::cuda
