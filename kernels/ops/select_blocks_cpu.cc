#include <algorithm>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/select_blocks.h"

namespace gradwire::cpu {
namespace {

// No inner loop has a variable length: those of a few elements would cost more than their sums.
GRADWIRE_CLONES double sum_of_squares(const float* x, size_t n) {
  double lanes[kNormLanes] = {};
  const size_t whole = n / kNormLanes * kNormLanes;
  for (size_t i = 0; i < whole; i += kNormLanes) {
    for (size_t l = 0; l < kNormLanes; ++l) {
      const double value = x[i + l];
      lanes[l] += value * value;
    }
  }
  for (size_t l = 0; whole + l < n; ++l) {
    const double value = x[whole + l];
    lanes[l] += value * value;
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/// x = g + e of elements [begin, end), where that is not there already.
void make_sum(const SelectInput& input, size_t begin, size_t end, std::span<float> x) {
  const ConstGradient g = input.g.subview(begin, end - begin);
  const std::span<float> to = x.subspan(begin, end - begin);
  if (input.e.empty()) {
    widen(g, to);
    return;
  }
  const auto e = input.e.subspan(begin, end - begin);
  if (g.dtype == DType::kFloat32) {
    add(g.as<float>(), e, to);
  } else {
    widen(g, to);
    add(to, e, to);
  }
}

/// The elements of the input's `block`, counted from its first one.
struct BlocksHere {
  const BlockGrid& grid;
  uint64_t first;  ///< element of the grid
  size_t numel;
  uint64_t first_block;

  BlockExtent operator[](size_t block) const {
    const BlockExtent all = grid.extent(first_block + block);
    return {std::max(all.begin, first) - first, std::min(all.end - first, uint64_t{numel})};
  }
};

}  // namespace

Selection select_blocks(const SelectInput& input, const BlockGrid& grid, uint64_t first,
                        Workspace::Frame& frame, ThreadPool& pool) {
  const size_t numel = input.g.numel;
  if (numel == 0) {
    return {};
  }
  const BlockExtent range = blocks_between(grid, first, first + numel);
  const BlocksHere blocks{grid, first, numel, range.begin};
  const size_t count = range.end - range.begin;
  // x lies in e_next, in g, or in memory of its own.
  const bool is_there = input.in_place() || (input.e.empty() && input.e_next.empty() &&
                                             input.g.dtype == DType::kFloat32);
  const std::span<float> made = is_there               ? std::span<float>{}
                                : input.e_next.empty() ? frame.take<float>(numel)
                                                       : input.e_next;
  const float* const x = is_there ? static_cast<const float*>(input.g.data) : made.data();
  const std::span<float> norms = frame.take<float>(count);
  const size_t together = std::max<size_t>(1, kSelectChunk / grid.width);
  for_each_chunk(pool, (count + together - 1) / together, [&](size_t task) {
    const size_t end = std::min(count, (task + 1) * together);
    if (!is_there) {
      make_sum(input, blocks[task * together].begin, blocks[end - 1].end, made);
    }
    for (size_t block = task * together; block < end; ++block) {
      const auto [from, to] = blocks[block];
      norms[block] = norm_of_squares(sum_of_squares(x + from, to - from));
    }
  });
  const Selection best = select_largest(
      {.g = view_of(std::span<const float>(norms)), .k = std::min(input.k, count)}, frame, pool);

  const auto chunks = frame.take<Selection::Chunk>((numel + kSelectChunk - 1) / kSelectChunk);
  std::ranges::fill(chunks, Selection::Chunk{0, 0});
  if (!best.finite) {
    return {.chunks = chunks, .indices = {}, .values = {}, .finite = false};
  }
  const auto extents = frame.take<BlockExtent>(best.total);
  const auto first_extent = frame.take<size_t>(chunks.size());
  size_t total = 0, chosen = 0;
  for (size_t part = 0; part < best.chunks.size(); ++part) {
    for (uint32_t j = 0; j < best.chunks[part].count; ++j, ++chosen) {
      const BlockExtent block =
          blocks[part * kSelectChunk + best.indices[best.chunks[part].first + j]];
      extents[chosen] = block;
      total += block.end - block.begin;
      for (uint64_t at = block.begin; at < block.end;) {  // of one chunk or two
        const size_t chunk = at / kSelectChunk;
        const uint64_t end = std::min<uint64_t>(block.end, (chunk + 1) * kSelectChunk);
        first_extent[chunk] = chunks[chunk].count == 0 ? chosen : first_extent[chunk];
        chunks[chunk].count += static_cast<uint32_t>(end - at);
        at = end;
      }
    }
  }
  size_t entry = 0;
  for (Selection::Chunk& chunk : chunks) {
    chunk.first = entry;
    entry += chunk.count;
  }
  const auto indices = frame.take<uint16_t>(total);
  const auto values = frame.take<float>(total);
  for_each_chunk(pool, chunks.size(), [&](size_t c) {
    const uint64_t begin = c * kSelectChunk;
    size_t to = chunks[c].first;
    const size_t end = to + chunks[c].count;
    for (size_t i = first_extent[c]; to < end; ++i) {
      const uint64_t from = std::max(extents[i].begin, begin);
      const size_t length = std::min<uint64_t>(extents[i].end, begin + kSelectChunk) - from;
      for (size_t j = 0; j < length; ++j) {
        indices[to + j] = static_cast<uint16_t>(from - begin + j);
      }
      std::copy_n(x + from, length, values.begin() + static_cast<ptrdiff_t>(to));
      if (!input.e_next.empty()) {
        std::fill_n(input.e_next.begin() + static_cast<ptrdiff_t>(from), length, 0.0f);
      }
      to += length;
    }
  });
  return {.chunks = chunks,
          .indices = indices,
          .values = values,
          .total = total,
          .sampled = best.sampled};
}

}  // namespace gradwire::cpu
