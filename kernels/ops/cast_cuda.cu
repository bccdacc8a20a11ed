#include "gradwire/kernels/ops/cast.cuh"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire::cuda {
namespace {

constexpr size_t kPerBlock = size_t{kCastThreads} * kPerThread;

size_t blocks_for(size_t numel) { return (numel + kPerBlock - 1) / kPerBlock; }

void check_view(const char* op, size_t numel, size_t other, Device device, const Stream& stream) {
  check_cuda_stream(op, stream);
  check(numel == other, op, ": source and out have ", numel, " and ", other,
        " elements, must have the same number");
  check(device == stream.device(), op, ": the view is not in the memory of the stream's device");
}

}  // namespace

void widen(ConstTensorView source, std::span<float> out, Stream& stream) {
  check_view("cuda::widen", source.numel, out.size(), source.device, stream);
  const LaunchShape shape{blocks_for(source.numel), kCastThreads, stream};
  const auto* const bytes = static_cast<const std::byte*>(source.data);
  dispatch(source.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(widen_kernel<T>, shape, bytes, out.data(), out.size());
  });
}

void narrow(std::span<const float> source, TensorView out, Stream& stream) {
  check_view("cuda::narrow", source.size(), out.numel, out.device, stream);
  const LaunchShape shape{blocks_for(source.size()), kCastThreads, stream};
  auto* const bytes = static_cast<std::byte*>(out.data);
  dispatch(out.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(narrow_kernel<T>, shape, source.data(), bytes, source.size());
  });
}

}  // namespace gradwire::cuda
