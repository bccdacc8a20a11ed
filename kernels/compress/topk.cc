// topk: the k = max(1, ceil(density * n)) elements of g + e with the largest magnitude, ties to the
// smaller index, zeros never. Aji and Heafield, arXiv:1704.05021; with error feedback: Stich et
// al., arXiv:1809.07599.
//
// chunktopk: the K largest of every chunk of 4096 elements, of a shorter last one of len elements
// max(1, ceil(K * len / 4096)). Every part of a group sends, whatever the scale of its gradients,
// and no threshold has to be found for the whole group. Sarfi et al. (SparseLoCo),
// arXiv:2508.15706.

#include <algorithm>

#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/ops/kept_in_chunk.h"

namespace gradwire {
namespace {

class TopK final : public SelectingFormat {
 public:
  TopK(const CompressorSpec& spec, CompressorShape shape)
      : SelectingFormat(spec, shape, kept_elements(spec.choice.density, shape.numel)),
        kept_(kept_elements(spec.choice.density, shape.numel)) {}

 protected:
  size_t most_entries(Scope scope) const override {
    return std::min(kept_, scope.region.numel());
  }
  cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override {
    input.k = kept_elements(spec().choice.density, scope.region.numel());
    return cpu::select_largest(input, frame, pool);
  }

 private:
  const size_t kept_;
};

/// K of a spec whose density is K/4096.
uint32_t kept_per_chunk(const CompressorSpec& spec) {
  return static_cast<uint32_t>(kept_elements(spec.choice.density, kChunk));
}

size_t kept_of_all_chunks(uint32_t per_chunk, size_t numel) {
  return numel / kChunk * per_chunk +
         kept_in_chunk(per_chunk, static_cast<uint32_t>(numel % kChunk));
}

class ChunkTopK final : public SelectingFormat {
 public:
  ChunkTopK(const CompressorSpec& spec, CompressorShape shape)
      : SelectingFormat(spec, shape, kept_of_all_chunks(kept_per_chunk(spec), shape.numel)),
        per_chunk_(kept_per_chunk(spec)) {}

 protected:
  size_t most_entries(Scope scope) const override {
    return kept_of_all_chunks(per_chunk_, scope.region.numel());
  }
  cpu::Selection choose(cpu::SelectInput input, Scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override {
    input.k = per_chunk_;
    return cpu::select_largest_in_chunks(input, frame, pool);
  }

 private:
  const uint32_t per_chunk_;
};

}  // namespace

std::unique_ptr<ChunkedFormat> make_topk(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<TopK>(spec, std::move(shape));
}

std::unique_ptr<ChunkedFormat> make_chunk_topk(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<ChunkTopK>(spec, std::move(shape));
}

}  // namespace gradwire
