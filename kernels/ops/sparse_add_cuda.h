#pragma once
// Bodies of sparse payloads on a GPU, added up in rank order, and cut. All memory is the GPU's;
// nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

/// Device memory that `parts` bodies of at most `numel` elements are placed in; nothing is expected
/// in it.
size_t sparse_workspace_bytes(size_t numel, size_t parts);

struct BodyPlace;
struct ChunkPlace;

struct SparseParts {
  std::span<const DevicePart> parts;  ///< in device memory
  size_t most_numel = 0;              ///< elements of the largest region among them
  std::span<std::byte> workspace{};   ///< sparse_workspace_bytes(), on a multiple of 16
  StepWords* step = nullptr;          ///< device memory; takes faults
};

struct SparseSum {
  TensorView sum;
  uint64_t begin = 0;  ///< the sum's first element in the group; on a chunk
  float scale = 1.0f;
  bool onto = false;   ///< one part, which is added to what the sum holds; the rest stays
  SumFaults overflow{};
};

/// sum = scale * (the parts added in order, in float32), rounded to sum's dtype. A part whose
/// counts do not give its length, a chunk whose indices do not increase or whose scale is not
/// finite is a fault in `step`; that part, or chunk, is left out. All parts have one variant: one that
/// differs from part 0's is a fault too.
/// @throws InvalidArgument for sizes, scale or devices that do not fit.
void add_sparse(const SparseParts& parts, const SparseFormat& format, const SparseSum& output,
                Stream& stream);

/// Where check_sparse() has placed chunks, in the workspace; those of a part `most_chunks` apart.
struct PlacedParts {
  const BodyPlace* bodies;
  const ChunkPlace* places;
  size_t most_chunks;
};

/// Everything that add_sparse() checks, of all parts, whose group has most_numel elements: what is
/// wrong is a fault in `step`, and then nothing may be read.
PlacedParts check_sparse(const SparseParts& parts, const SparseFormat& format, Stream& stream);

/// Copies what the one part says about the header's region behind the header at `out`, with the
/// part's flags and the true length; 32 zero bytes where there is no such part, or where the slice
/// is longer than `out`, which is a fault too.
void slice_sparse(const SparseParts& part, const SparseFormat& format, const PayloadHeader& header,
                  std::span<std::byte> out, Stream& stream);

/// to[i] += x[i].
void add_to(std::span<const float> x, const ParitySpan& to, Stream& stream);

}  // namespace gradwire::cuda
