#pragma once
// Payloads on a GPU that are added up as they are read, so that their sum never lies in memory as a
// whole: they are checked once, and a description of them stays in device memory for the kernels
// that read (payload_read.cuh). Nothing is allocated, nothing waits, a CUDA graph can capture it.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

struct BodyPlace;
struct ChunkPlace;

/// What the bodies of payloads are made of.
enum class BodyKind : uint8_t {
  kValues,   ///< one value for each element
  kRecords,  ///< of each chunk scales, then codes
  kEntries,  ///< indices and values of some elements
};

struct ReadFormat {
  BodyKind kind = BodyKind::kValues;
  SparseFormat format{};  ///< `values` of all kinds; the rest of kEntries
  size_t block = 0;       ///< kRecords: elements that share a scale
};

/// In device memory; zero at first, when there is nothing to read.
struct PayloadSource {
  const DevicePart* parts;
  size_t count;
  const BodyPlace* bodies;  ///< of kEntries, and where their chunks are placed,
  const ChunkPlace* places;
  size_t most_chunks;  ///< so many apart
  ReadFormat format;
  uint64_t numel;   ///< of the group
  float factor;     ///< of the sum
  uint32_t usable;  ///< whether all payloads have passed their checks
};

struct HeldPayloads {
  std::span<const DevicePart> parts;  ///< in device memory, from open_parts()
  size_t numel = 0;                   ///< of the group
  float scale = 1.0f;
  std::span<std::byte> workspace{};  ///< read_workspace_bytes(), on a multiple of 16
  StepWords* words = nullptr;        ///< device memory: what open_parts() has found of these parts
  PartFaults faults{};               ///< where it is passed on
};

/// Device memory that is read as long as the source is.
size_t read_workspace_bytes(const ReadFormat& format, size_t numel, size_t parts);

/// Checks what open_parts() does not see (scales, indices, lengths) and describes the parts in
/// *source. Where anything is wrong, there or here, nothing of them can be read.
/// @throws InvalidArgument for pointers, sizes and scales that do not fit.
void hold_payloads(const HeldPayloads& held, const ReadFormat& format, PayloadSource* source,
                   Stream& stream);

}  // namespace gradwire::cuda
