#include "gradwire/kernels/ops/quantize_launch.cuh"

namespace gradwire::cuda {
namespace {

/// Calls f.operator()<Code>().
template <class F>
void dispatch_small_float(CodeFormat format, F&& f) {
  if (format == CodeFormat::kE4M3) {
    f.template operator()<Code<8, CodeFormat::kE4M3>>();
  } else if (format == CodeFormat::kE5M2) {
    f.template operator()<Code<8, CodeFormat::kE5M2>>();
  } else {
    f.template operator()<Code<8, CodeFormat::kPowerOfTwo>>();
  }
}

}  // namespace

void quantize_small_floats(CodeFormat format, const QuantizeLaunch& what) {
  dispatch_small_float(format, [&]<class C>() { launch_quantize<C>(what); });
}

void dequantize_small_floats(CodeFormat format, const SumArguments& arguments, DType dtype,
                             const LaunchShape& shape) {
  dispatch_small_float(format, [&]<class C>() { launch_dequantize<C>(arguments, dtype, shape); });
}

}  // namespace gradwire::cuda
