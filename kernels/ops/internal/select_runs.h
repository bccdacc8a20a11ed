#pragma once
// How threads list the entries that they find: each scans runs of chunks into memory of its own and
// hands over what it holds, so that lists grow in whatever order threads come.

#include <algorithm>
#include <atomic>
#include <span>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_scan.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {

/// Chunks that one thread takes at once.
inline constexpr size_t kSelectRun = 16;

/// Entries of all threads. What there is no room for is only counted.
class FoundEntries {
 public:
  FoundEntries(std::span<float> values, std::span<uint16_t> indices)
      : values_(values), indices_(indices) {}

  size_t total() const { return total_; }
  /// The largest magnitude of an entry, as bits.
  uint32_t largest() const { return largest_; }

  /// Where entries begin in the lists.
  struct Place {
    size_t at;
    bool listed;
  };
  Place add(EntryList entries, size_t count) {
    const uint32_t mine = max_magnitude_bits({entries.values, count});
    uint32_t seen = largest_.load(std::memory_order_relaxed);
    while (mine > seen && !largest_.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
    }
    const size_t at = total_.fetch_add(count, std::memory_order_relaxed);
    const bool listed = at + count <= values_.size();
    if (listed) {
      std::copy_n(entries.values, count, values_.data() + at);
      std::copy_n(entries.indices, count, indices_.data() + at);
    }
    return {at, listed};
  }

 private:
  const std::span<float> values_;
  const std::span<uint16_t> indices_;
  std::atomic<size_t> total_{0};
  std::atomic<uint32_t> largest_{0};
};

/// The chunks of one run, and whether each is handed over at once, while it lies in cache.
struct SelectRun {
  size_t first, last;
  bool one_by_one;
};

/// Sets `chunks` of a run and adds their entries to `found`. `scan(chunk, list)` writes a chunk's
/// entries and returns how many; `handed_over(chunk, entries, listed)` is told when they were added.
template <class Scan, class HandedOver>
void scan_run(const SelectRun& run, std::span<Selection::Chunk> chunks, FoundEntries& found,
              const Scan& scan, const HandedOver& handed_over) {
  constexpr size_t kRoom = 2 * kSelectChunk;
  // At pages, because vector stores that cross one are slow.
  alignas(4096) float values[kRoom + kEntrySlack];
  alignas(4096) uint16_t indices[kRoom + kEntrySlack];
  size_t held = 0;
  size_t oldest = run.first;  // chunk whose entries are held
  const auto hand_over = [&](size_t end) {
    const auto [at, listed] = found.add({values, indices}, held);
    for (; oldest < end; ++oldest) {
      Selection::Chunk& chunk = chunks[oldest];
      handed_over(oldest, EntryList{values + chunk.first, indices + chunk.first}, listed);
      chunk.first += at;
    }
    held = 0;
  };
  for (size_t chunk = run.first; chunk < run.last; ++chunk) {
    if (run.one_by_one || held > kRoom - kSelectChunk) {
      hand_over(chunk);
    }
    chunks[chunk] = {held, scan(chunk, EntryList{values + held, indices + held})};
    held += chunks[chunk].count;
  }
  hand_over(run.last);
  finish_streaming();
}

}  // namespace gradwire::cpu
