// tensortopk: of every parameter the k = max(1, ceil(density * numel)) elements of g + e with the
// largest magnitude, ties to the smaller index, zeros never. No parameter starves beside one whose
// gradients are larger, whatever the chunks. numel counts the parameter's elements in the group; a
// merge takes those in its region. So a parameter that groups or regions cut keeps k of each part.
//   D = x where chosen, 0 elsewhere;   e_next = (g + e) - D
// Aji and Heafield, arXiv:1704.05021, and Lin et al., arXiv:1712.01887, choose within each layer.

#include <algorithm>

#include "gradwire/kernels/compress/internal/selecting.h"

namespace gradwire {
namespace {

size_t kept_of_parameters(const CompressorSpec& spec, const CompressorShape& shape) {
  size_t kept = 0;
  for (const Segment& segment : shape.segments) {
    kept += kept_elements(spec.choice.density, segment.numel);
  }
  return kept;
}

class TensorTopK final : public SelectingFormat {
 public:
  TensorTopK(const CompressorSpec& spec, CompressorShape shape, size_t kept)
      : SelectingFormat(spec, std::move(shape), kept) {}

 protected:
  size_t most_entries(Scope scope) const override {
    size_t most = 0;
    for_each_part(scope.region, [&](Region part, const Segment& segment) {
      most += std::min(kept_elements(spec().choice.density, segment.numel), part.numel());
    });
    return most;
  }
  cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override;

 private:
  /// use(part, segment) for what the region holds of each segment, in order; elements of the group.
  template <class Use>
  void for_each_part(Region region, const Use& use) const {
    size_t begin = 0;
    for (const Segment& segment : shape().segments) {
      const Region part{std::max(begin, region.begin), std::min(begin + segment.numel, region.end)};
      begin += segment.numel;
      if (part.begin < part.end) {
        use(part, segment);
      }
    }
  }
};

/// Gives back to x, which was changed in place, what was chosen of it.
void put_back(const cpu::Selection& chosen, std::span<float> x) {
  for (size_t block = 0; block < chosen.chunks.size(); ++block) {
    const auto [first, count] = chosen.chunks[block];
    for (size_t j = first; j < first + count; ++j) {
      x[block * cpu::kSelectChunk + chosen.indices[j]] = chosen.values[j];
    }
  }
}

cpu::Selection TensorTopK::choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                                  ThreadPool& pool) const {
  const Region region = scope.region;
  struct PartChoice {
    size_t begin;  // in the region
    size_t numel;
    cpu::Selection chosen;
  };
  const auto parts = frame.take<PartChoice>(shape().segments.size());
  size_t count = 0, total = 0;
  bool finite = true;
  for_each_part(region, [&](Region part, const Segment&) {
    const size_t begin = part.begin - region.begin;
    const auto of_part = [&](auto span) {
      return span.empty() ? span : span.subspan(begin, part.numel());
    };
    const cpu::Selection chosen =
        cpu::select_largest({.g = input.g.subview(begin, part.numel()),
                             .e = of_part(input.e),
                             .e_next = of_part(input.e_next),
                             .k = kept_elements(spec().choice.density, part.numel())},
                            frame, pool);
    total += chosen.total;
    finite = finite && chosen.finite;
    std::construct_at(&parts[count++], PartChoice{begin, part.numel(), chosen});
  });
  const auto chunks = frame.take<cpu::Selection::Chunk>(chunks_of(region.numel()));
  std::ranges::fill(chunks, cpu::Selection::Chunk{0, 0});
  if (!finite) {
    for (const PartChoice& part : parts.first(input.in_place() ? count : 0)) {
      put_back(part.chosen, input.e_next.subspan(part.begin, part.numel));
    }
    return {.chunks = chunks, .indices = {}, .values = {}, .finite = false};
  }
  // From places in the parameters to places in the region's chunks.
  const auto indices = frame.take<uint16_t>(total);
  const auto values = frame.take<float>(total);
  size_t entry = 0;
  for (const PartChoice& part : parts.first(count)) {
    for (size_t block = 0; block < part.chosen.chunks.size(); ++block) {
      const auto [first, of_block] = part.chosen.chunks[block];
      for (size_t j = first; j < first + of_block; ++j, ++entry) {
        const size_t at = part.begin + block * cpu::kSelectChunk + part.chosen.indices[j];
        ++chunks[at / kChunk].count;
        indices[entry] = static_cast<uint16_t>(at % kChunk);
        values[entry] = part.chosen.values[j];
      }
    }
  }
  size_t first = 0;
  for (cpu::Selection::Chunk& chunk : chunks) {
    chunk.first = first;
    first += chunk.count;
  }
  return {.chunks = chunks, .indices = indices, .values = values, .total = total};
}

}  // namespace

std::unique_ptr<ChunkedFormat> make_tensor_topk(const CompressorSpec& spec, CompressorShape shape) {
  const size_t kept = kept_of_parameters(spec, shape);
  return std::make_unique<TensorTopK>(spec, std::move(shape), kept);
}

}  // namespace gradwire
