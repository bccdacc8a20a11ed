#include "gradwire/kernels/compress/internal/factor_layout.h"

#include <algorithm>

#include "gradwire/kernels/core/philox.h"

namespace gradwire {
namespace {

constexpr uint32_t kFactorStage = 3;  // 0 and 1 round, 2 chooses elements

}  // namespace

FactorLayout::FactorLayout(std::span<const Segment> segments, uint32_t rank, uint32_t rounds) {
  for (const Segment& segment : segments) {
    const size_t cols = segment.rows > 0 ? segment.numel / segment.rows : 0;
    if (is_smaller_as_factors(segment.rows, cols, rank)) {
      matrices_.push_back({.offset = numel_,
                           .rows = static_cast<uint32_t>(segment.rows),
                           .cols = static_cast<uint32_t>(cols),
                           .left = left_,
                           .right = right_});
      parameters_.push_back(segment.parameter);
      left_ += rank * segment.rows;
      right_ += rank * cols;
    } else if (segment.numel > 0) {
      if (runs_.empty() || runs_.back().offset + runs_.back().numel != numel_) {
        runs_.push_back({.offset = numel_, .numel = 0, .before = plain_});
      }
      runs_.back().numel += segment.numel;
      plain_ += segment.numel;
    }
    numel_ += segment.numel;
  }
  rounds_ =
      matrices_.empty() ? 1 : rounds;  // without a matrix there is nothing to do in a first one
}

size_t FactorLayout::plain_before(size_t element) const {
  const auto next = std::ranges::upper_bound(runs_, element, {}, &PlainRun::offset);
  if (next == runs_.begin()) {
    return 0;
  }
  const PlainRun& run = *(next - 1);
  return run.before + std::min<size_t>(run.numel, element - run.offset);
}

FloatRange FactorLayout::plain_in(Region region, FactorSide side) const {
  if (!sends_plain(side)) {
    return {};
  }
  const size_t first = plain_before(region.begin);
  return {first, plain_before(region.end) - first};
}

FloatRange FactorLayout::factors_in(Region region, FactorSide side) const {
  const size_t chunks = (numel_ + kChunk - 1) / kChunk;
  if (chunks == 0) {
    return {};
  }
  const auto share = [&](size_t element) {
    return factors(side) * ((element + kChunk - 1) / kChunk) / chunks;
  };
  return {share(region.begin), share(region.end) - share(region.begin)};
}

void draw_factors(const FactorLayout& layout, uint32_t rank, FactorSide side, uint64_t seed,
                  std::span<float> factors) {
  for (size_t m = 0; m < layout.matrices().size(); ++m) {
    const LowRankMatrix& matrix = layout.matrices()[m];
    const uint32_t length = matrix.length(side);
    for (uint32_t r = 0; r < rank; ++r) {
      float* const v = factors.data() + matrix.at(side) + size_t{r} * length;
      for (uint32_t i = 0; i < length; ++i) {
        const uint32_t word = philox({{i / 4, r, layout.parameters()[m],
                                       kFactorStage + 4 * static_cast<uint32_t>(side)}},
                                     seed)
                                  .word[i % 4];
        v[i] = static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f + 0x1p-24f;
      }
    }
  }
}

}  // namespace gradwire
