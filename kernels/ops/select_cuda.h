#pragma once
// The k largest of n floats by magnitude on a GPU, exactly: guess a threshold from a sample, mark
// what reaches it in the pass that adds the residual, refine among the marked. The same set for
// any grid. All memory is the GPU's; nothing is allocated, nothing waits, and a CUDA graph can
// capture the calls: a guess that was too high is seen and mended on the device.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// Elements of a selection chunk and the bytes that mark them.
inline constexpr size_t kSelectChunk = 4096;
inline constexpr size_t kMaskBytes = kSelectChunk / 8;

constexpr size_t select_chunks(size_t numel) { return (numel + kSelectChunk - 1) / kSelectChunk; }

/// Device memory a selection works in; no call expects anything in it.
size_t select_workspace_bytes(size_t numel);

struct SelectInput {
  ConstTensorView g;
  ParitySpan e{};  ///< g's size, or empty
  size_t k = 0;
};

struct SelectOutput {
  /// g + e; may be e's memory, or g's where g is float32 and e is empty: it is left as it is then.
  ParitySpan x;
  std::span<std::byte> mask;         ///< kMaskBytes per chunk: bit i % 8 of byte i / 8 is element i
  std::span<uint32_t> counts;        ///< chosen elements of each chunk
  CallWords* call = nullptr;         ///< device memory; kStatusNonFinite is set in its flags
  std::span<std::byte> workspace{};  ///< select_workspace_bytes(), on a multiple of 16
};

/// Marks the k largest |x|; of equal ones those with the smaller index. Zeros are never chosen, so
/// fewer than k may be. Where x holds NaN or infinity nothing is chosen.
/// @throws InvalidArgument for sizes, pointers, k (1 to n) or devices that do not fit.
void select_largest(const SelectInput& input, const SelectOutput& output, Stream& stream);

}  // namespace gradwire::cuda
