#include "gradwire/kernels/ops/drawn.cuh"
#include "gradwire/kernels/ops/record_checks.cuh"

namespace gradwire::cuda {
namespace {

void check_per_chunk(const char* op, const DrawnFormat& format) {
  check(format.per_chunk >= 1 && format.per_chunk <= kChunk, op, ": per_chunk is ",
        format.per_chunk, ", must be 1 to ", kChunk);
}

}  // namespace

size_t drawn_bytes(const DrawnFormat& format, size_t numel) {
  const char* const op = "cuda::drawn_bytes";
  check_per_chunk(op, format);
  size_t bytes = 0;
  dispatch_storage(op, format.values, [&]<SparseStorage kStorage>() {
    const auto tail = static_cast<uint32_t>(numel % kChunk);
    bytes = numel / kChunk * drawn_record_bytes<kStorage>(format.per_chunk) +
            (tail > 0 ? drawn_record_bytes<kStorage>(kept_in_chunk(format.per_chunk, tail)) : 0);
  });
  return bytes;
}

void encode_drawn(const DrawnInput& input, const DrawnOutput& output, Stream& stream) {
  const char* const op = "cuda::encode_drawn";
  check_per_chunk(op, input.format);
  check_first(op, input.first);
  check(input.step != nullptr, op, ": step is null, must be words in device memory");
  check_parity(op, "masked", output.masked, input.g.numel);
  check_pointer(op, "drawn_as", input.drawn_as.data(), input.drawn_as.size(), alignof(DevicePart));
  const EncodeMemory memory =
      encode_memory(op, input, output, drawn_bytes(input.format, input.g.numel), stream);
  const EncodeDrawnArguments arguments{
      memory,
      input.format.per_chunk,
      input.first / kChunk,
      input.group,
      input.step,
      input.drawn_as.data(),
      input.drawn_as.size(),
      input.scale_up,
      value_codes(op, input.format.values, input.format.levels, input.stochastic),
      output.seal,
      ParityPointer(output.masked)};
  const LaunchShape shape = encode_shape(input.g.numel, output.seal, stream);
  dispatch_storage(op, input.format.values, [&]<SparseStorage kStorage>() {
    dispatch(input.g.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((encode_drawn_kernel<T, kStorage>), shape, arguments);
    });
  });
}

void sum_drawn(const DrawnParts& parts, float scale, TensorView sum, Stream& stream) {
  const char* const op = "cuda::sum_drawn";
  check_view(op, "sum", sum, stream);
  check_scale(op, scale);
  check_per_chunk(op, parts.format);
  check_first(op, parts.first);
  check_pointer(op, "parts", parts.parts.data(), parts.parts.size(), alignof(DevicePart));
  check(parts.step != nullptr, op, ": step is null, must be words in device memory");
  check_onto(op, parts.onto, parts.parts.size());
  const SumDrawnArguments arguments{parts.parts.data(),
                                    parts.parts.size(),
                                    parts.first / kChunk,
                                    parts.format.per_chunk,
                                    scale,
                                    code_format_of(parts.format.values),
                                    static_cast<std::byte*>(sum.data),
                                    sum.numel,
                                    parts.step,
                                    parts.onto,
                                    parts.overflow};
  dispatch_storage(op, parts.format.values, [&]<SparseStorage kStorage>() {
    dispatch(sum.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((sum_drawn_kernel<T, kStorage>), sum_shape(sum.numel, stream), arguments);
    });
  });
}

}  // namespace gradwire::cuda
