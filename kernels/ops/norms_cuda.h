#pragma once
// Sums of squares on a GPU, the same bits for any grid and equal to the CPU's. All memory is the
// GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture the calls.

#include <cstddef>
#include <span>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

/// Elements whose squares 32 strided lanes add up in float32, then pairwise.
inline constexpr size_t kNormChunk = 1024;

/// sums[b] = sum of x[i]^2 over block b of `block` elements (the last may be shorter): chunk by
/// chunk of 1024, whose sums add up in order, in double. A chunk whose float32 sum overflows, is
/// NaN or below 2^-100 is added up in double from the start.
/// @throws InvalidArgument unless `block` is a positive multiple of 1024 of at most 262144 and sums
/// has one element per block.
void sums_of_squares(std::span<const float> x, size_t block, std::span<double> sums,
                     Stream& stream);

/// *total = sums[0] + sums[1] + ..., in order, in double; 0 for none.
void add_in_order(std::span<const double> sums, double* total, Stream& stream);

/// sums[i] = parts[i] + parts[n + i] + parts[2 n + i] + ..., in that order, n = sums.size().
/// @throws InvalidArgument unless parts has a whole number of n elements.
void add_parts(std::span<const double> parts, std::span<double> sums, Stream& stream);

}  // namespace gradwire::cuda
