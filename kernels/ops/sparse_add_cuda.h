#pragma once
// Bodies of sparse payloads on a GPU, added up in rank order. All memory is the GPU's; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

/// Device memory that `parts` bodies of `numel` elements are placed in; nothing is expected in it.
size_t sparse_workspace_bytes(size_t numel, size_t parts);

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
