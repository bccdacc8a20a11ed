// Slices of payloads that select, with room for some of their entries.

#include <algorithm>
#include <atomic>
#include <cmath>

#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/threshold_state.h"

namespace gradwire {

size_t SelectingFormat::capacity_for_entries(Region region, size_t most_entries) const {
  const size_t entries = std::min(most_entries, region.numel());
  size_t bytes = 0;
  for (const SparseBody& body : bodies_) {
    bytes = std::max(bytes, body.capacity_bytes(region.numel(), {entries, entries}));
  }
  return sizeof(PayloadHeader) + bytes;
}

void SelectingFormat::write_slice_at_most(const Part& part, const SliceInput& input,
                                          Residual e_next, Payload out, const Work& work) const {
  const Region region = input.region;
  const size_t first = (region.begin - part.region.begin) / kChunk;
  const auto places = part.places.subspan(first, chunks_of(region.numel()));
  size_t entries = 0;
  for (const ChunkPlace& place : places) {
    entries += place.count;
  }
  if (entries <= input.most_entries) {
    write_slice(part, region, out);
    return;
  }
  Workspace::Frame frame(work.workspace);
  const auto taken = frame.take<SparseBody::Taken>(places.size());
  size_t room = input.most_entries;
  size_t i = first_chunk_taken(work.step, places.size());
  for (size_t visited = 0; visited < places.size(); ++visited) {
    const uint32_t count = places[i].count;
    taken[i].count = static_cast<uint32_t>(std::min<size_t>(count, room));
    taken[i].first = taken[i].count == count
                         ? 0
                         : static_cast<uint32_t>(first_chunk_taken(work.step, count));
    room -= taken[i].count;
    i = i + 1 == places.size() ? 0 : i + 1;
  }
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, places.size(), [&](size_t c) {
    const auto [from, count] = taken[c];
    const uint32_t all = places[c].count;
    if (count == all) {
      return;
    }
    SparseBody::EntryRoom entry_room;
    const SparseBody::Entries left = body_of(part).read_entries(part, first + c, entry_room);
    float* const residual = e_next.data() + region.begin + c * kChunk;
    for (uint32_t j = count; j < all; ++j) {
      const size_t at = (size_t{from} + j) % all;
      float& kept = residual[left.indices[at]];
      kept += left.values[at];
      if (!std::isfinite(kept)) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  const size_t bytes = body_of(part).copy_some(part, region, taken, frame.take<ChunkPlace>(places.size()),
                                       out.data() + sizeof(PayloadHeader));
  const uint8_t overflow = finite ? 0 : kFlagNonFinite;
  write_header(out, region, part.flags | overflow, sizeof(PayloadHeader) + bytes, part.variant);
}

}  // namespace gradwire
