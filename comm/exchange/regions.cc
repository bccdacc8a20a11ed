#include "gradwire/comm/exchange/regions.h"

#include <algorithm>

#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

Region between(size_t first, size_t last, size_t numel) {
  return first >= last ? Region{} : Region{first * kChunk, std::min(last * kChunk, numel)};
}

}  // namespace

Region owned_region(size_t numel, int world_size, int r) {
  const size_t chunks = chunk_count_of(numel);
  return between(shard_begin(chunks, world_size, r), shard_begin(chunks, world_size, r + 1), numel);
}

std::vector<Region> balanced_regions(size_t numel, std::span<const float> chunk_weights,
                                     int world_size) {
  const size_t chunks = chunk_count_of(numel);
  double total = 0;
  for (const float weight : chunk_weights) {
    total += double{weight};
  }
  std::vector<Region> regions;
  size_t first = 0, last = 0;
  double before = 0;  // weight of the chunks before `last`
  for (int r = 0; r < world_size; ++r) {
    if (total == 0) {
      regions.push_back(owned_region(numel, world_size, r));
      continue;
    }
    const double end = total * (r + 1) / world_size;
    // A chunk belongs to the side on which most of it lies.
    while (last < chunks &&
           (r + 1 == world_size || before + double{chunk_weights[last]} / 2 <= end)) {
      before += double{chunk_weights[last++]};
    }
    regions.push_back(between(first, last, numel));
    first = last;
  }
  return regions;
}

std::vector<uint64_t> region_edges(std::span<const Region> regions, size_t numel) {
  std::vector<uint64_t> edges{0};
  for (const Region& region : regions) {
    edges.push_back(region.numel() == 0 ? edges.back() : chunk_count_of(region.end));
  }
  edges.back() = chunk_count_of(numel);
  return edges;
}

std::vector<Region> regions_between(std::span<const uint64_t> edges, size_t numel) {
  const bool tiles = edges.size() >= 2 && edges.front() == 0 &&
                     edges.back() == chunk_count_of(numel) &&
                     std::is_sorted(edges.begin(), edges.end());
  check(tiles, "regions: ", edges.size(), " edges do not tile ", chunk_count_of(numel),
        " chunks, expected ascending ones from 0 to ", chunk_count_of(numel));
  std::vector<Region> regions;
  for (size_t r = 0; r + 1 < edges.size(); ++r) {
    regions.push_back(between(edges[r], edges[r + 1], numel));
  }
  return regions;
}

}  // namespace gradwire
