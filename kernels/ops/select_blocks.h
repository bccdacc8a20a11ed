#pragma once
// The blocks of largest norm, whole: the same ones for any number of threads, and on CUDA.

#include "gradwire/kernels/ops/blocks.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {

/// Chooses the input.k blocks (or all) of largest Euclidean norm, of equal ones those that come
/// first; of a norm of 0 none. `input` holds the elements of the grid from `first` on; of a block
/// that lies there in part, that part counts. Else as select_largest(), but for zeros, which are
/// chosen with their block.
Selection select_blocks(const SelectInput& input, const BlockGrid& grid, uint64_t first,
                        Workspace::Frame& frame, ThreadPool& pool);

}  // namespace gradwire::cpu
