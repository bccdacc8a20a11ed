#include "gradwire/kernels/ops/draw.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "gradwire/kernels/ops/random.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kMostElements = 4096;
constexpr size_t kWordsAtATime = 128;

}  // namespace

void draw_in_chunk(uint32_t draw, uint32_t chunk, size_t numel, std::span<uint16_t> out) {
  uint16_t order[kMostElements];
  std::iota(order, order + numel, uint16_t{0});
  const RoundingStream stream{.seed = draw, .step = chunk, .parameter = 0, .rank_stage = 0};
  uint16_t halves[2 * kWordsAtATime];
  for (size_t begin = 0; begin < out.size(); begin += kWordsAtATime) {
    const size_t words = std::min(kWordsAtATime, out.size() - begin);
    random_halves(stream, 2 * begin, {halves, 2 * words});
    for (size_t i = 0; i < words; ++i) {
      const size_t j = begin + i;
      const uint64_t word = halves[2 * i] | uint32_t{halves[2 * i + 1]} << 16;
      std::swap(order[j], order[j + (word * (numel - j) >> 32)]);
      out[j] = order[j];
    }
  }
}

}  // namespace gradwire::cpu
