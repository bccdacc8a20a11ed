#pragma once
// Bodies of sparse payloads on a GPU, byte for byte as kernels/compress/WIRE_FORMAT.md lays them
// out, written from a selection. All memory is the GPU's; nothing is allocated, nothing waits, and a
// CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/seal.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

/// What a selection chose.
struct SparseInput {
  /// scale * x is encoded; the chosen x become x - decoded / scale, the others stay: the residual.
  ParitySpan x;
  std::span<const std::byte> mask;  ///< kMaskBytes per chunk
  std::span<const uint32_t> counts;
  std::span<const EntriesBefore> before;  ///< one per chunk
  float scale = 1.0f;
  const uint32_t* variant = nullptr;  ///< device word: of the header; null: 0
  const RoundingSource* stochastic = nullptr;  ///< nullptr: codes are the nearest ones
  uint64_t first = 0;  ///< x's first element in the group, on a chunk: which random numbers it takes
  /// Where indices say blocks: what select_blocks() counted, one per chunk. Else empty.
  std::span<const uint32_t> listed{};
  std::span<const EntriesBefore> listed_before{};
};

struct SparseOutput {
  std::span<std::byte> body;         ///< at any address, long enough for the counts that come
  uint64_t* body_bytes = nullptr;    ///< device: bytes written, or that would have been; may be null
  CallWords* call = nullptr;         ///< device memory
  /// header.bytes is not used: the payload's length is 32 and the body's. Needed in any case: a body
  /// that is too short sets kStatusMalformed in `status`.
  Seal seal{};
};

/// Writes counts, scales, indices and values, and the header with the call's flags. Where the body
/// is too short nothing is written but 32 zero bytes in the header's place. One launch.
/// @throws InvalidArgument for sizes, pointers, format, scale or devices that do not fit.
void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream);

}  // namespace gradwire::cuda
