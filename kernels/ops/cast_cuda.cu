#include <algorithm>
#include <cmath>

#include "gradwire/kernels/ops/cast.cuh"

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

void encode_cast(const EncodeCastInput& input, const EncodeCastOutput& output, Stream& stream) {
  const char* const op = "cuda::encode_cast";
  const size_t numel = input.g.numel;
  check_view(op, numel, output.out.numel, input.g.device, stream);
  check(output.out.device == stream.device(), op,
        ": out is not in the memory of the stream's device");
  const auto check_size = [&](const char* name, const ParitySpan& span) {
    check(span.empty() || span.size() == numel, op, ": ", name, " has ", span.size(),
          " elements, must have ", numel, " or none");
  };
  check_size("e", input.e);
  check_size("e_next", output.e_next);
  check_size("put_back", output.put_back);
  check(output.call != nullptr, op, ": call is null, must be device memory");
  check(std::isfinite(input.scale) && input.scale > 0, op, ": scale is ", input.scale,
        ", must be positive and finite");
  const EncodeCastArguments arguments{static_cast<const std::byte*>(input.g.data),
                                      ParityPointer(input.e),
                                      input.scale,
                                      static_cast<std::byte*>(output.out.data),
                                      ParityPointer(output.e_next),
                                      ParityPointer(output.put_back),
                                      numel,
                                      output.call,
                                      output.seal};
  const LaunchShape shape{std::max<size_t>(blocks_for(numel), 1), kCastThreads, stream};
  dispatch(input.g.dtype, [&]<class T>() {
    dispatch(output.out.dtype, [&]<class S>() {
      GRADWIRE_LAUNCH((encode_cast_kernel<T, S>), shape, arguments);
    });
  });
}

void sum_cast(const CastParts& parts, float scale, TensorView sum, Stream& stream) {
  const char* const op = "cuda::sum_cast";
  check_view(op, sum.numel, sum.numel, sum.device, stream);
  check(std::isfinite(scale) && scale > 0, op, ": scale is ", scale,
        ", must be positive and finite");
  check(parts.begin % kChunk == 0, op, ": begin is ", parts.begin, ", must be a multiple of ",
        kChunk);
  const LaunchShape shape{blocks_for(sum.numel), kCastThreads, stream};
  dispatch(sum.dtype, [&]<class T>() {
    dispatch(parts.dtype, [&]<class S>() {
      GRADWIRE_LAUNCH((sum_cast_kernel<T, S>), shape, parts.parts.data(), parts.parts.size(), scale,
                      parts.begin, static_cast<std::byte*>(sum.data), sum.numel);
    });
  });
}

}  // namespace gradwire::cuda
