#include "gradwire/kernels/ops/select_blocks.cuh"

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/select_checks.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

/// Parts of the workspace, one behind the other: the selection among blocks.
struct BlockMemory {
  std::span<float> norms;
  std::span<std::byte> mask;
  std::span<uint32_t> counts;
  std::span<EntriesBefore> before;
  std::span<std::byte> workspace;
};

size_t select_bytes(size_t blocks) {
  const size_t chunks = select_chunks(blocks);
  return aligned(blocks * sizeof(float)) + chunks * kMaskBytes +
         aligned(chunks * sizeof(uint32_t)) + chunks * sizeof(EntriesBefore);
}

BlockMemory memory_in(std::span<std::byte> workspace, size_t blocks) {
  const size_t chunks = select_chunks(blocks);
  std::byte* at = workspace.data();
  const auto take = [&]<class T>(T*, size_t count) {
    auto* const begin = reinterpret_cast<T*>(at);
    at += aligned(count * sizeof(T));
    return std::span<T>(begin, count);
  };
  return {take(static_cast<float*>(nullptr), blocks),
          take(static_cast<std::byte*>(nullptr), chunks * kMaskBytes),
          take(static_cast<uint32_t*>(nullptr), chunks),
          take(static_cast<EntriesBefore*>(nullptr), chunks),
          workspace.subspan(select_bytes(blocks))};
}

}  // namespace

size_t select_blocks_bytes(size_t blocks) {
  return select_bytes(blocks) + select_workspace_bytes(blocks);
}

void select_blocks(const SelectInput& input, const BlockChoice& choice, const SelectOutput& output,
                   Stream& stream) {
  const char* const op = "cuda::select_blocks";
  const size_t blocks = choice.blocks.end - choice.blocks.begin;
  const SelectMemory memory = select_memory(op, input, output, blocks, stream);
  const size_t chunks = select_chunks(memory.numel);
  check(choice.grid.count > 0 && choice.grid.width > 0, op, ": the grid has ", choice.grid.count,
        " segments and blocks of ", choice.grid.width, " elements, must have at least 1 of each");
  check_pointer(op, "grid.segments", choice.grid.segments, choice.grid.count,
                alignof(BlockSegment));
  check(choice.listed.size() == chunks && choice.listed_before.size() == chunks, op,
        ": listed has ", choice.listed.size(), " elements, listed_before ",
        choice.listed_before.size(), ", must have ", chunks);
  check_pointer(op, "listed", choice.listed.data(), chunks, alignof(uint32_t));
  check_pointer(op, "listed_before", choice.listed_before.data(), chunks, alignof(EntriesBefore));
  check_workspace(op, output.workspace, select_blocks_bytes(blocks));
  const BlockMemory among = memory_in(output.workspace, blocks);
  const BlockArguments arguments{memory,
                                 choice.grid,
                                 choice.first,
                                 choice.blocks,
                                 among.norms.data(),
                                 among.mask.data(),
                                 choice.listed.data(),
                                 choice.listed_before.data(),
                                 &output.call->arrived};
  dispatch(input.g.dtype, [&]<class T>() {
    const LaunchShape shape{(blocks + kBlocksAtOnce - 1) / kBlocksAtOnce, kSelectThreads, stream};
    GRADWIRE_LAUNCH(block_norms_kernel<T>, shape, arguments);
  });
  select_largest(
      {.g = {among.norms.data(), blocks, DType::kFloat32, stream.device()}, .k = input.k},
      {.x = among.norms,
       .mask = among.mask,
       .counts = among.counts,
       .before = among.before,
       .call = output.call,
       .workspace = among.workspace},
      stream);
  GRADWIRE_LAUNCH(mark_blocks_kernel, (LaunchShape{chunks, kSelectThreads, stream}), arguments);
}

}  // namespace gradwire::cuda
