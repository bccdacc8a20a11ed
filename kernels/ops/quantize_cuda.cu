#include "gradwire/kernels/ops/quantize.cuh"
#include "gradwire/kernels/ops/record_checks.cuh"

namespace gradwire::cuda {
namespace {

/// Calls f.operator()<bits>() with the compile-time value.
template <class F>
void dispatch_bits(const char* op, int bits, F&& f) {
  check(bits == 8 || bits == 4 || bits == 2, op, ": bits is ", bits, ", must be 8, 4 or 2");
  if (bits == 8) {
    f.template operator()<8>();
  } else if (bits == 4) {
    f.template operator()<4>();
  } else {
    f.template operator()<2>();
  }
}

template <class T, int kBits, bool kStochastic>
void launch_quantize(const QuantizeArguments& arguments, const LaunchShape& shape) {
  if (arguments.block > kWarpElements) {
    GRADWIRE_LAUNCH((quantize_kernel<T, kBits, kStochastic, true>), shape, arguments);
  } else {
    GRADWIRE_LAUNCH((quantize_kernel<T, kBits, kStochastic, false>), shape, arguments);
  }
}

}  // namespace

void quantize(const QuantizeInput& input, const QuantizeOutput& output, Stream& stream) {
  const char* const op = "cuda::quantize";
  const size_t numel = input.g.numel;
  check_block(op, input.block);
  check_first(op, input.first);
  RoundingSource source;
  if (input.stochastic != nullptr) {
    source = *input.stochastic;
    check(numel == 0 || (!source.segments.empty() && source.segments.data() != nullptr), op,
          ": stochastic rounding has no segments, must have some");
    check(source.step != nullptr, op, ": stochastic rounding has no step, must have one");
  }
  dispatch_bits(op, input.bits, [&]<int kBits>() {
    const EncodeMemory memory = encode_memory(
        op, input, output, quantized_bytes(numel, kBits, input.block), stream);
    const QuantizeArguments arguments{memory,      static_cast<unsigned>(input.block), shift_of(input.block),
                                      input.first, source,                             output.seal};
    const LaunchShape shape = encode_shape(numel, output.seal, stream);
    dispatch(input.g.dtype, [&]<class T>() {
      if (input.stochastic != nullptr) {
        launch_quantize<T, kBits, true>(arguments, shape);
      } else {
        launch_quantize<T, kBits, false>(arguments, shape);
      }
    });
  });
}

void dequantize(const QuantizedParts& parts, float scale, TensorView sum, Stream& stream) {
  const char* const op = "cuda::dequantize";
  const SumArguments arguments = sum_arguments(op, parts, scale, sum, stream);
  dispatch_bits(op, parts.bits, [&]<int kBits>() {
    dispatch(sum.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((dequantize_kernel<T, kBits>), sum_shape(sum.numel, stream), arguments);
    });
  });
}

}  // namespace gradwire::cuda
