#include "gradwire/kernels/ops/quantize_launch.cuh"

namespace gradwire::cuda {

void quantize_levels(int bits, const QuantizeLaunch& what) {
  dispatch_integer<true>(bits, [&]<class C>() { launch_quantize<C>(what); });
}

}  // namespace gradwire::cuda
