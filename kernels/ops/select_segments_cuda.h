#pragma once
// The k largest of every parameter by magnitude, exactly, chosen on a GPU in as many launches for a
// thousand parameters as for one. All memory is the GPU's; nothing is allocated, nothing waits, and
// a CUDA graph can capture the calls.

#include "gradwire/kernels/ops/select_cuda.h"

namespace gradwire::cuda {

/// Device memory that select_in_segments() works in; no call expects anything in it.
size_t select_in_segments_bytes(size_t segments);

/// The segments of a group, and which of its elements are selected from.
struct SegmentChoice {
  std::span<const uint64_t> ends;  ///< device: of each segment in the group, exclusive, in order
  double density = 1;              ///< of each segment max(1, ceil(density * len)) are chosen, len
                                   ///< being its elements that are here
  uint64_t first = 0;              ///< the first one here in the group; the last segment ends behind all
};

/// Marks the largest |x| of every segment; of equal ones those with the smaller index. Zeros are never
/// chosen. Where x holds NaN or infinity nothing is chosen. `input.k` is not read; `output.workspace`
/// has select_in_segments_bytes(). Eight launches.
/// @throws InvalidArgument for sizes, pointers, density or devices that do not fit.
void select_in_segments(const SelectInput& input, const SegmentChoice& choice,
                        const SelectOutput& output, Stream& stream);

}  // namespace gradwire::cuda
