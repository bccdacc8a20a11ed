#include "gradwire/kernels/ops/quantize_launch.cuh"

namespace gradwire::cuda {
namespace {

void check_codes(const char* op, int bits, CodeFormat format) {
  const bool integer = format == CodeFormat::kInteger;
  constexpr int kLast = static_cast<int>(CodeFormat::kPowerOfTwo);
  check(static_cast<int>(format) <= kLast, op, ": format is ", static_cast<int>(format),
        ", must be 0 to ", kLast);
  check(bits == 8 || (integer && (bits == 4 || bits == 2)), op, ": bits is ", bits,
        integer ? ", must be 8, 4 or 2" : ", must be 8 for floats");
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
  check_codes(op, input.bits, input.format);
  check(input.levels >= 0 && input.levels <= cpu::largest_code(input.bits), op, ": levels is ",
        input.levels, ", must be 0 to ", cpu::largest_code(input.bits));
  check(input.levels == 0 || input.format == CodeFormat::kInteger, op, ": format is ",
        static_cast<int>(input.format), ", must be 0 where there are levels");
  check(input.stochastic != nullptr ||
            (input.levels == 0 && input.format != CodeFormat::kPowerOfTwo),
        op, ": rounding is to nearest, must be stochastic for levels and powers of two");
  const EncodeMemory memory = encode_memory(
      op, input, output, quantized_bytes(numel, input.bits, input.block), stream);
  const QuantizeArguments arguments{memory,      static_cast<unsigned>(input.block), shift_of(input.block),
                                    input.first, source,                             output.seal,
                                    input.levels};
  const LaunchShape shape = encode_shape(numel, output.seal, stream);
  const QuantizeLaunch launch{arguments, input.g.dtype, input.stochastic != nullptr, shape};
  if (input.format != CodeFormat::kInteger) {
    quantize_small_floats(input.format, launch);
    return;
  }
  if (input.levels > 0) {
    quantize_levels(input.bits, launch);
    return;
  }
  dispatch_integer<false>(input.bits, [&]<class C>() { launch_quantize<C>(launch); });
}

void dequantize(const QuantizedParts& parts, float scale, TensorView sum, Stream& stream) {
  const char* const op = "cuda::dequantize";
  const SumArguments arguments = sum_arguments(op, parts, scale, sum, stream);
  check_codes(op, parts.bits, parts.format);
  const LaunchShape shape = sum_shape(sum.numel, stream);
  if (parts.format != CodeFormat::kInteger) {
    dequantize_small_floats(parts.format, arguments, sum.dtype, shape);
    return;
  }
  dispatch_integer<false>(parts.bits,
                          [&]<class C>() { launch_dequantize<C>(arguments, sum.dtype, shape); });
}

}  // namespace gradwire::cuda
