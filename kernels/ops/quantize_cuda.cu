#include <cmath>

#include "gradwire/kernels/ops/quantize.cuh"

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

LaunchShape shape_for(size_t numel, Stream& stream) {
  return {(numel + kQuantizeChunk - 1) / kQuantizeChunk, kQuantizeThreads, stream};
}

void check_call_of(const char* op, Device device, const uint32_t* status, const Stream& stream) {
  check_cuda_stream(op, stream);
  check(device == stream.device(), op, ": the view is not in the memory of the stream's device");
  check(status != nullptr, op, ": status is null, must be a device word");
}

}  // namespace

void quantize(const QuantizeInput& input, const QuantizeOutput& output, Stream& stream) {
  const char* const op = "cuda::quantize";
  const size_t numel = input.g.numel;
  check_call_of(op, input.g.device, output.status, stream);
  check(input.e.empty() || input.e.size() == numel, op, ": e has ", input.e.size(),
        " elements, must have ", numel, " or none");
  check(output.e_next.size() == input.e.size(), op, ": e_next has ", output.e_next.size(),
        " elements, must have ", input.e.size(), " as e has");
  check(input.e.empty() || input.e.data() != output.e_next.data(), op,
        ": e and e_next are one buffer, must be two");
  RoundingSource source;
  if (input.stochastic != nullptr) {
    source = *input.stochastic;
    check(!source.segments.empty() && source.step != nullptr, op,
          ": stochastic rounding has no segments or no step");
  }
  dispatch_bits(op, input.bits, [&]<int kBits>() {
    check(output.records.size() >= quantized_bytes(numel, kBits), op, ": records has ",
          output.records.size(), " bytes, must have at least ", quantized_bytes(numel, kBits));
    const QuantizeArguments arguments{static_cast<const std::byte*>(input.g.data),
                                      input.e.empty() ? nullptr : input.e.data(),
                                      input.e.empty() ? nullptr : output.e_next.data(),
                                      output.records.data(),
                                      numel,
                                      output.status,
                                      source};
    dispatch(input.g.dtype, [&]<class T>() {
      if (input.stochastic != nullptr) {
        GRADWIRE_LAUNCH((quantize_kernel<T, kBits, true>), shape_for(numel, stream), arguments);
      } else {
        GRADWIRE_LAUNCH((quantize_kernel<T, kBits, false>), shape_for(numel, stream), arguments);
      }
    });
  });
}

void dequantize(const QuantizedParts& parts, float scale, TensorView sum, uint32_t* status,
                Stream& stream) {
  const char* const op = "cuda::dequantize";
  check_call_of(op, sum.device, status, stream);
  check(std::isfinite(scale) && scale > 0, op, ": scale is ", scale,
        ", must be positive and finite");
  const DequantizeArguments arguments{parts.records.data(), parts.records.size(), scale,
                                      static_cast<std::byte*>(sum.data), sum.numel, status};
  dispatch_bits(op, parts.bits, [&]<int kBits>() {
    dispatch(sum.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((dequantize_kernel<T, kBits>), shape_for(sum.numel, stream), arguments);
    });
  });
}

}  // namespace gradwire::cuda
