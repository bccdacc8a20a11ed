#include <algorithm>

#include "gradwire/kernels/ops/cast.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kPerBlock = size_t{kCastThreads} * kPerThread;

size_t blocks_for(size_t numel) { return (numel + kPerBlock - 1) / kPerBlock; }

void check_sizes(const char* op, size_t source, size_t out) {
  check(source == out, op, ": source and out have ", source, " and ", out,
        " elements, must have the same number");
}

}  // namespace

void widen(ConstTensorView source, std::span<float> out, Stream& stream) {
  const char* const op = "cuda::widen";
  check_sizes(op, source.numel, out.size());
  check_bytes(op, "source", source, stream);
  check_pointer(op, "out", out.data(), out.size(), alignof(float));
  const LaunchShape shape{blocks_for(source.numel), kCastThreads, stream};
  const auto* const bytes = static_cast<const std::byte*>(source.data);
  dispatch(source.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(widen_kernel<T>, shape, bytes, out.data(), out.size());
  });
}

void narrow(std::span<const float> source, TensorView out, Stream& stream) {
  const char* const op = "cuda::narrow";
  check_sizes(op, source.size(), out.numel);
  check_bytes(op, "out", out, stream);
  check_pointer(op, "source", source.data(), source.size(), alignof(float));
  const LaunchShape shape{blocks_for(source.size()), kCastThreads, stream};
  auto* const bytes = static_cast<std::byte*>(out.data);
  dispatch(out.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(narrow_kernel<T>, shape, source.data(), bytes, source.size());
  });
}

void encode_cast(const EncodeCastInput& input, const EncodeCastOutput& output, Stream& stream) {
  const char* const op = "cuda::encode_cast";
  const size_t numel = input.g.numel;
  check_view(op, "g", input.g, stream);
  check_sizes(op, numel, output.out.numel);
  check_bytes(op, "out", output.out, stream);
  check_parity(op, "e", input.e, numel);
  check_parity(op, "e_next", output.e_next, numel);
  check_parity(op, "put_back", output.put_back, numel);
  check_seal(op, output.call, output.seal);
  check_scale(op, input.scale);
  const EncodeCastArguments arguments{static_cast<const std::byte*>(input.g.data),
                                      ParityPointer(input.e),
                                      input.scale,
                                      static_cast<std::byte*>(output.out.data),
                                      ParityPointer(output.e_next),
                                      ParityPointer(output.put_back),
                                      numel,
                                      output.call,
                                      output.seal,
                                      output.e_next.first.data() == input.g.data};
  const LaunchShape shape{std::max<size_t>(blocks_for(numel), 1), kCastThreads, stream};
  dispatch(input.g.dtype, [&]<class T>() {
    dispatch(output.out.dtype, [&]<class S>() {
      GRADWIRE_LAUNCH((encode_cast_kernel<T, S>), shape, arguments);
    });
  });
}

void sum_cast(const CastParts& parts, float scale, TensorView sum, Stream& stream) {
  const char* const op = "cuda::sum_cast";
  check_view(op, "sum", sum, stream);
  check_scale(op, scale);
  check_pointer(op, "parts", parts.parts.data(), parts.parts.size(), alignof(DevicePart));
  check(parts.begin % kChunk == 0, op, ": begin is ", parts.begin, ", must be a multiple of ",
        kChunk);
  check_onto(op, parts.onto, parts.parts.size());
  const LaunchShape shape{blocks_for(sum.numel), kCastThreads, stream};
  dispatch(sum.dtype, [&]<class T>() {
    dispatch(parts.dtype, [&]<class S>() {
      GRADWIRE_LAUNCH((sum_cast_kernel<T, S>), shape, parts.parts.data(), parts.parts.size(), scale,
                      parts.begin, static_cast<std::byte*>(sum.data), sum.numel, parts.onto);
    });
  });
}

}  // namespace gradwire::cuda
