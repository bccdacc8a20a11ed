#pragma once
// Bodies of sparse payloads on a GPU, byte for byte as kernels/compress/WIRE_FORMAT.md lays them
// out, written from a selection. All memory is the GPU's; nothing is allocated, nothing waits, and a
// CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

/// Device memory that the body of `numel` elements is placed in; nothing is expected in it.
size_t encode_sparse_workspace_bytes(size_t numel);

/// What select_largest() chose.
struct SparseInput {
  std::span<float> x;               ///< what is encoded; becomes x - decoded: the residual
  std::span<const std::byte> mask;  ///< kMaskBytes per chunk
  std::span<const uint32_t> counts;
};

struct SparseOutput {
  std::span<std::byte> body;        ///< at any address, long enough for the counts that come
  uint64_t* body_bytes = nullptr;   ///< device: bytes written, or that would have been
  uint32_t* status = nullptr;       ///< device; kStatusMalformed is set where body is too short
  std::span<std::byte> workspace{};  ///< encode_sparse_workspace_bytes(), multiple of 16
};

/// Writes counts, scales, indices and values. Nothing is written where the body is too short.
/// @throws InvalidArgument for sizes or devices that do not fit.
void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream);

}  // namespace gradwire::cuda
