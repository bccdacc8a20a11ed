#include "gradwire/kernels/compress/internal/rounding_numbers.h"

#include <algorithm>

namespace gradwire {

RoundingNumbers::RoundingNumbers(const CompressorShape& shape)
    : seed_(shape.seed), segments_(shape.segments) {
  size_t end = 0;
  for (const Segment& segment : segments_) {
    end += segment.numel;
    ends_.push_back(end);
  }
}

RoundingNumbers::Run RoundingNumbers::run(Region region, Draw draw) const {
  const auto after = std::ranges::upper_bound(ends_, region.begin);
  const Segment& segment = segments_[static_cast<size_t>(after - ends_.begin())];
  const size_t in_segment = region.begin - (*after - segment.numel);
  const cpu::RoundingStream stream{.seed = seed_,
                                   .step = draw.step,
                                   .parameter = segment.parameter,
                                   .rank_stage = draw.rank_stage};
  return {{stream, segment.offset_in_parameter + in_segment},
          std::min(*after, region.end) - region.begin};
}

void RoundingNumbers::fill(Region region, Draw draw, std::span<uint16_t> out) const {
  for (size_t at = region.begin; at < region.end;) {
    const Run part = run({at, region.end}, draw);
    cpu::random_halves(part.numbers.stream, part.numbers.first,
                       out.subspan(at - region.begin, part.count));
    at += part.count;
  }
}

void RoundingNumbers::fill_chosen(Region region, std::span<const uint16_t> indices, Draw draw,
                                  std::span<uint16_t> out) const {
  // Numbers come in batches: for many all of the region's cost less than one each.
  constexpr size_t kBatch = 256;
  if (indices.size() * kBatch < region.numel()) {
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t at = region.begin + indices[i];
      fill({at, at + 1}, draw, out.subspan(i, 1));
    }
    return;
  }
  uint16_t all[kChunk];
  fill(region, draw, {all, region.numel()});
  for (size_t i = 0; i < indices.size(); ++i) {
    out[i] = all[indices[i]];
  }
}

}  // namespace gradwire
