#pragma once
// Which elements of a group each rank owns: whole chunks, dealt out evenly, or so that every rank
// owns about as many chosen entries.

#include <span>
#include <vector>

#include "gradwire/kernels/compress/payload.h"

namespace gradwire {

/// ceil(numel / kChunk)
constexpr size_t chunk_count_of(size_t numel) { return (numel + kChunk - 1) / kChunk; }

/// Rank r's elements of a group: whole chunks, split as evenly as whole chunks allow.
Region owned_region(size_t numel, int world_size, int r);

/// One region per rank, in order, tiling [0, numel): each holds about the same sum of
/// `chunk_weights` (not negative, one per chunk). No weight at all: owned_region().
/// Cutting at quantiles: Li and Hoefler (Ok-Topk), arXiv:2201.07598, section 3.2.
std::vector<Region> balanced_regions(size_t numel, std::span<const float> chunk_weights,
                                     int world_size);

/// The chunk at which each region begins, and the end: world_size + 1 words.
std::vector<uint64_t> region_edges(std::span<const Region> regions, size_t numel);
/// The reverse. @throws InvalidArgument where `edges` do not tile a group of `numel` elements.
std::vector<Region> regions_between(std::span<const uint64_t> edges, size_t numel);

}  // namespace gradwire
