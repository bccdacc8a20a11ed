#pragma once
// Bodies of sparse payloads on a GPU, byte for byte as kernels/compress/WIRE_FORMAT.md lays them
// out: written from a selection, and added up in rank order. All memory is the GPU's; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

/// How the values of a sparse body are stored.
enum class SparseValues : uint8_t { kFloat32, kFloat16, kBFloat16, kInt8, kInt4 };

struct SparseFormat {
  SparseValues values = SparseValues::kFloat32;
  bool bitmap = false;  ///< indices: one bit per element; else 12 bits per entry
};

/// Device memory that `parts` bodies of `numel` elements are placed in; nothing is expected in it.
size_t sparse_workspace_bytes(size_t numel, size_t parts);

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
  std::span<std::byte> workspace{};  ///< sparse_workspace_bytes(numel, 1), on a multiple of 16
};

/// Writes counts, scales, indices and values. Nothing is written where the body is too short.
/// @throws InvalidArgument for sizes or devices that do not fit.
void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream);

/// One body of each rank, in device memory; bytes[i] is the length of bodies[i].
struct SparseParts {
  std::span<const std::byte* const> bodies;
  std::span<const uint64_t> bytes;
  std::span<std::byte> workspace{};  ///< sparse_workspace_bytes(numel, parts), multiple of 16
};

struct SparseSum {
  TensorView sum;
  float scale = 1.0f;
  uint32_t* status = nullptr;
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype. A part whose
/// counts do not give its length, a chunk whose indices do not increase or whose scale is not
/// finite sets kStatusMalformed in `status`; that part, or chunk, is left out.
/// @throws InvalidArgument for sizes, scale or devices that do not fit.
void add_sparse(const SparseParts& parts, const SparseFormat& format, const SparseSum& output,
                Stream& stream);

}  // namespace gradwire::cuda
