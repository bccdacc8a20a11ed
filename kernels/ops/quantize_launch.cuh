#pragma once
// How the kernels of quantize.cuh are launched, for the source files that share them: those of integer
// codes and those of small floats.

#include "gradwire/kernels/ops/quantize.cuh"
#include "gradwire/kernels/ops/record_checks.cuh"

namespace gradwire::cuda {

/// Checked arguments of quantize().
struct QuantizeLaunch {
  const QuantizeArguments& arguments;
  DType dtype;
  bool stochastic;
  const LaunchShape& shape;
};

template <class C, bool kStochastic>
void launch_quantize(const QuantizeLaunch& what) {
  dispatch(what.dtype, [&]<class T>() {
    if (what.arguments.block > kWarpElements) {
      GRADWIRE_LAUNCH((quantize_kernel<T, C, kStochastic, true>), what.shape, what.arguments);
    } else {
      GRADWIRE_LAUNCH((quantize_kernel<T, C, kStochastic, false>), what.shape, what.arguments);
    }
  });
}

template <class C>
void launch_quantize(const QuantizeLaunch& what) {
  if constexpr (C::kOnlyStochastic) {
    launch_quantize<C, true>(what);
  } else {
    what.stochastic ? launch_quantize<C, true>(what) : launch_quantize<C, false>(what);
  }
}

template <class C>
void launch_dequantize(const SumArguments& arguments, DType dtype, const LaunchShape& shape) {
  dispatch(dtype,
           [&]<class T>() { GRADWIRE_LAUNCH((dequantize_kernel<T, C>), shape, arguments); });
}

/// Calls f.operator()<Code>() with the integers of so many bits.
template <bool kLevels, class F>
void dispatch_integer(int bits, F&& f) {
  if (bits == 8) {
    f.template operator()<Code<8, CodeFormat::kInteger, kLevels>>();
  } else if (bits == 4) {
    f.template operator()<Code<4, CodeFormat::kInteger, kLevels>>();
  } else {
    f.template operator()<Code<2, CodeFormat::kInteger, kLevels>>();
  }
}

/// Of levels (levels_cuda.cu).
void quantize_levels(int bits, const QuantizeLaunch& what);

/// Of small floats (small_float_cuda.cu).
void quantize_small_floats(CodeFormat format, const QuantizeLaunch& what);
void dequantize_small_floats(CodeFormat format, const SumArguments& arguments, DType dtype,
                             const LaunchShape& shape);

}  // namespace gradwire::cuda
