#pragma once
// Elements that a draw chooses, sent without indices, on a GPU: kernels/ops/draw.h says which,
// kernels/compress/WIRE_FORMAT.md has the bytes. All memory is the GPU's; nothing is allocated,
// nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/draw.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/seal.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

struct DrawnFormat {
  SparseValues values = SparseValues::kFloat32;
  uint32_t per_chunk = 1;  ///< elements of a whole chunk, 1 to kChunk; of others kept_in_chunk()
  int levels = 0;          ///< as SparseFormat's
};

/// Bytes of the records of `numel` elements.
size_t drawn_bytes(const DrawnFormat& format, size_t numel);

struct DrawnInput {
  ConstTensorView g;
  ParitySpan e{};  ///< g's size, or empty
  DrawnFormat format{};
  uint64_t first = 0;         ///< g's first element in the group, on a chunk
  DrawnGroup group{};         ///< whose draw; its step is that of the words
  StepWords* step = nullptr;  ///< in device memory; takes faults
  /// In device memory; where there are any: the draw of the first of them, which all of them must
  /// have.
  std::span<const DevicePart> drawn_as{};
  const RoundingSource* stochastic = nullptr;  ///< nullptr: codes are the nearest ones
  float scale = 1.0f;                          ///< of g, where e is empty
  bool scale_up = false;  ///< values are sent times len / count, at most FLT_MAX
};

struct DrawnOutput {
  std::span<std::byte> records;  ///< drawn_bytes(), at any address
  /// x - decoded; g's size or empty. g's own memory is allowed where that is float32.
  ParitySpan e_next{};
  ParitySpan
      put_back{};  ///< += g - decoded / scale of the chosen; g's size or empty; not with e_next
  ParitySpan masked{};        ///< becomes 0 where elements are chosen; g's size or empty
  CallWords* call = nullptr;  ///< device memory; kStatusNonFinite is set in its flags
  Seal seal{};                ///< the header gets the draw as its variant
};

/// Encodes the chosen elements of x = scale * g + e. Where one of a chunk is not finite its values
/// are sent as zeros. One launch.
/// @throws InvalidArgument for sizes, pointers, format, scale or devices that do not fit.
void encode_drawn(const DrawnInput& input, const DrawnOutput& output, Stream& stream);

struct DrawnParts {
  std::span<const DevicePart> parts;  ///< in device memory; each has a draw of its own
  DrawnFormat format{};
  uint64_t first = 0;         ///< the sum's first element in the group; on a chunk
  StepWords* step = nullptr;  ///< device memory; takes faults
  bool onto = false;          ///< one part, which is added to what the sum holds; the rest stays
  SumFaults overflow{};
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype; `sum` ends on a
/// chunk or with the group. A scale that is NaN, infinite or negative is reported as
/// FaultReason::kScale; its chunk counts as zero.
/// @throws InvalidArgument for pointers, format, scale or devices that do not fit.
void sum_drawn(const DrawnParts& parts, float scale, TensorView sum, Stream& stream);

}  // namespace gradwire::cuda
