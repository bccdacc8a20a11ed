#pragma once
// The blocks of largest norm, whole, chosen on a GPU: the CPU's choice
// (kernels/ops/select_blocks.h). All memory is the GPU's; nothing is allocated, nothing waits, and
// a CUDA graph can capture the calls.

#include "gradwire/kernels/ops/blocks.h"
#include "gradwire/kernels/ops/select_cuda.h"

namespace gradwire::cuda {

/// Device memory that select_blocks() works in, of so many blocks; no call expects anything in it.
size_t select_blocks_bytes(size_t blocks);

/// Which blocks there are to choose from, and what their indices need to know.
struct BlockChoice {
  BlockGrid grid{};      ///< its segments in device memory
  uint64_t first = 0;    ///< the first element that is here; the grid's last one ends behind all
  BlockExtent blocks{};  ///< those that are here, in part at least: blocks_between()
  std::span<uint32_t> listed{};              ///< becomes the chosen blocks of each chunk
  std::span<EntriesBefore> listed_before{};  ///< one per chunk: of its fields the first two
};

/// Marks the elements of the input.k blocks of largest norm, which are counted as their input.g's
/// parts; else as select_largest(). `output.workspace` has select_blocks_bytes(). Six launches.
/// @throws InvalidArgument for sizes, pointers, k (1 to the blocks) or devices that do not fit.
void select_blocks(const SelectInput& input, const BlockChoice& choice, const SelectOutput& output,
                   Stream& stream);

}  // namespace gradwire::cuda
