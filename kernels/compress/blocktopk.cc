// blocktopk: the elements of every parameter are cut into blocks of `width`, and of all B blocks
// the k = max(1, ceil(density * B)) with the largest Euclidean norms are sent whole, ties to the
// first one, blocks of zeros never. An index says a block, not an element: for gradients whose rows
// are large or zero together, as those of embeddings. A merge takes the blocks in its region.
//   D = x in the chosen blocks, 0 elsewhere;   e_next = (g + e) - D
// Fei et al., Efficient Sparse Collective Communication (OmniReduce), SIGCOMM 2021, section 4.

#include <algorithm>

#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/ops/select_blocks.h"

namespace gradwire {
namespace {

std::vector<BlockSegment> segments_of(const CompressorSpec& spec, const CompressorShape& shape) {
  std::vector<BlockSegment> segments;
  BlockSegment all{0, 0};
  for (const Segment& segment : shape.segments) {
    all.end += segment.numel;
    all.blocks_end += (segment.numel + spec.choice.width - 1) / spec.choice.width;
    segments.push_back(all);
  }
  return segments;
}

class BlockTopK final : public SelectingFormat {
 public:
  BlockTopK(const CompressorSpec& spec, CompressorShape shape)
      : SelectingFormat(spec, shape, segments_of(spec, shape)) {}

 protected:
  size_t most_entries(Scope scope) const override {
    return std::min(most_blocks(scope.region) * spec().choice.width, scope.region.numel());
  }
  /// A block that lies in two chunks has an index in each.
  size_t most_indices(Scope scope) const override {
    const size_t most = most_blocks(scope.region);
    return std::min(most + std::min(most, chunks_of(scope.region.numel())), most_entries(scope));
  }
  cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override {
    input.k = kept_elements(spec().choice.density, blocks_in(scope.region));
    return cpu::select_blocks(input, blocks(), scope.region.begin, frame, pool);
  }

 private:
  size_t blocks_in(Region region) const {
    const BlockExtent range = blocks_between(blocks(), region.begin, region.end);
    return range.end - range.begin;
  }
  /// A slice may hold all that the group sends.
  size_t most_blocks(Region region) const {
    return std::min(kept_elements(spec().choice.density, blocks_in(whole())), blocks_in(region));
  }
};

}  // namespace

std::unique_ptr<ChunkedFormat> make_block_topk(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<BlockTopK>(spec, std::move(shape));
}

}  // namespace gradwire
