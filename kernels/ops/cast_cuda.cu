#include <algorithm>

#include "gradwire/kernels/ops/cast.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kPerBlock = size_t{kCastThreads} * kPerThread;
// Enough for a line to the host: 16 bytes of each thread under way are 256 KiB, and at 2 us of
// latency 128 GB/s. The other multiprocessors go on with backward.
constexpr size_t kMostBlocksToHost = 64;

size_t blocks_for(size_t numel) { return (numel + kPerBlock - 1) / kPerBlock; }

void check_sizes(const char* op, size_t source, size_t out) {
  check(source == out, op, ": source and out have ", source, " and ", out,
        " elements, must have the same number");
}

void check_either(const char* op, const char* name, const ParityView& view, const Stream& stream) {
  const auto check_one = [&](TensorView one) {
    check(!view.pinned || one.device.type == DeviceType::kCpu, op, ": ", name,
          " is in the memory of CUDA device ", one.device.index,
          ", must be in pinned memory of the CPU, as it says");
    one.device = view.pinned ? stream.device() : one.device;
    check_view(op, name, one, stream);
  };
  check_one(view.first);
  if (view.parity != nullptr) {
    check(view.second.numel == view.first.numel && view.second.dtype == view.first.dtype, op, ": ",
          name, " has ", view.second.numel, " elements of ", to_string(view.second.dtype),
          " in its second array, must have ", view.first.numel, " of ",
          to_string(view.first.dtype), " as in its first");
    check_one(view.second);
  }
}

ParityBytes bytes_of(const ParityView& view) {
  return {static_cast<std::byte*>(view.first.data), static_cast<std::byte*>(view.second.data),
          view.parity};
}

}  // namespace

void cast(const ParityView& from, const ParityView& to, Stream& stream) {
  const char* const op = "cuda::cast";
  const size_t numel = to.first.numel;
  check_sizes(op, from.first.numel, numel);
  check_either(op, "from", from, stream);
  check_either(op, "to", to, stream);
  const DType read = from.first.dtype, written = to.first.dtype;
  check(read == DType::kFloat32 || written == DType::kFloat32, op, ": from is ", to_string(read),
        " and to is ", to_string(written), ", must be float32 on one side");
  const size_t blocks = blocks_for(numel);
  const LaunchShape shape{
      from.pinned || to.pinned ? std::min(blocks, kMostBlocksToHost) : blocks, kCastThreads, stream};
  const ParityBytes source = bytes_of(from), out = bytes_of(to);
  if (read == DType::kFloat32) {
    dispatch(written, [&]<class T>() {
      GRADWIRE_LAUNCH((cast_kernel<float, T>), shape, source, out, numel);
    });
  } else {
    dispatch(read, [&]<class T>() {
      GRADWIRE_LAUNCH((cast_kernel<T, float>), shape, source, out, numel);
    });
  }
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
                      parts.begin, static_cast<std::byte*>(sum.data), sum.numel, parts.onto,
                      parts.overflow);
    });
  });
}

}  // namespace gradwire::cuda
