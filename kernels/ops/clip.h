#pragma once
// Local clipping (Lin et al., arXiv:1712.01887): by what a gradient is multiplied so that its norm
// does not exceed a limit.

#include <cstddef>
#include <span>

#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire::cpu {

/// limit / |g| where the Euclidean norm |g| is above `limit` and finite, else 1. In float64, in one
/// order: eight lanes of a chunk of 4096, element i in lane i % 8; the lanes in order; 32 chunks in
/// order; those sums in order. `room` has a double for each chunk.
float clip_factor(ConstGradient g, double limit, std::span<double> room, ThreadPool& pool);

}  // namespace gradwire::cpu
