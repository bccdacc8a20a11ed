#pragma once
// Between float32 and the 16-bit types on a GPU: the bits of kernels/ops/cast.h. Memory is the
// GPU's but where a view says otherwise; nothing is allocated, nothing waits, and a CUDA graph can
// capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// One of two arrays, as ParitySpan: `first` where `parity` is null or *parity is 0, else `second`.
/// Both have one size, dtype and device.
struct ParityView {
  TensorView first{};
  TensorView second{};
  const uint32_t* parity = nullptr;  ///< device word
  /// In pinned memory of the host, which its views say, else in that of the GPU.
  bool pinned = false;

  ParityView() = default;
  ParityView(const TensorView& only) : first(only) {}  // NOLINT: implicit on purpose
  ParityView(const TensorView& even, const TensorView& odd, const uint32_t* device_parity,
             bool in_pinned_memory)
      : first(even), second(odd), parity(device_parity), pinned(in_pinned_memory) {}
};

/// to[i] = from[i] rounded to to's type: of two float32 the bits. One of them is float32. @throws
/// InvalidArgument for sizes that differ, two narrow types, views of another device than they
/// should be, a stream that is not CUDA.
void cast(const ParityView& from, const ParityView& to, Stream& stream);

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
  SumFaults overflow{};
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype.
/// @throws InvalidArgument for a scale or devices that do not fit.
void sum_cast(const CastParts& parts, float scale, TensorView sum, Stream& stream);

}  // namespace gradwire::cuda
