#pragma once
// Between float32 and the 16-bit types on a GPU: the bits of kernels/ops/cast.h. All memory is
// the GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// out[i] = source[i] as a float; exact. `source` may begin at any address.
/// @throws InvalidArgument for sizes that differ, views or streams that are not CUDA.
void widen(ConstTensorView source, std::span<float> out, Stream& stream);

/// out[i] = source[i] rounded to out's type. `out` may begin at any address.
/// @throws InvalidArgument as widen() does.
void narrow(std::span<const float> source, TensorView out, Stream& stream);

struct EncodeCastInput {
  ConstTensorView g;
  ParitySpan e{};      ///< g's size, or empty
  float scale = 1.0f;  ///< of g, where e is empty
};

struct EncodeCastOutput {
  TensorView out;          ///< g's size, at any address
  ParitySpan e_next{};     ///< x - out; g's size or empty; may be g's own memory where e is empty
  ParitySpan put_back{};   ///< += g - out / scale; g's size or empty
  CallWords* call = nullptr;  ///< device memory; kStatusNonFinite is set in its flags
  Seal seal{};
};

/// out = x = scale * g + e rounded to out's type. @throws InvalidArgument for sizes or devices that
/// do not fit.
void encode_cast(const EncodeCastInput& input, const EncodeCastOutput& output, Stream& stream);

struct CastParts {
  std::span<const DevicePart> parts;  ///< in device memory
  DType dtype = DType::kFloat32;      ///< of the values in them
  uint64_t begin = 0;                 ///< the sum's first element in the group; on a chunk
  bool onto = false;  ///< one part, whose finite values are added to what the sum holds
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype.
/// @throws InvalidArgument for a scale or devices that do not fit.
void sum_cast(const CastParts& parts, float scale, TensorView sum, Stream& stream);

}  // namespace gradwire::cuda
