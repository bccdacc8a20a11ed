#pragma once
// The inner loops of select.h, in one form per instruction set.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire::cpu {

/// Elements that vector stores may write past the last entry of a list.
inline constexpr size_t kEntrySlack = 32;

/// Entries of one chunk: values and where in the chunk they are.
struct EntryList {
  float* values;
  uint16_t* indices;
};

/// x[i] = g[i] + e[i] for one chunk.
struct ChunkScan {
  const std::byte* g;  ///< elements of `dtype`, at any address
  DType dtype;
  const float* e;   ///< nullptr: x = g, and e_next is nullptr too
  float* e_next;    ///< x with zeros where an entry was made
  size_t count;     ///< elements, at most 4096
  uint32_t below;   ///< entries are the elements whose |x|, as bits, is larger
  bool past_cache;  ///< e_next is written past the caches: finish_streaming() has to follow
};

/// Writes the entries in order; `room` holds scan.count + kEntrySlack. @returns how many.
size_t scan_chunk(const ChunkScan& scan, EntryList room);

/// Keeps the entries whose magnitude is above `below`, in order, and writes the others back into
/// e_next (of the chunk), unless it is nullptr. @returns how many are kept.
size_t keep_above(EntryList entries, size_t count, uint32_t below, float* e_next);

/// Asks caches for the places in e_next that keep_above() will write to; not nullptr.
void prefetch_rest(EntryList entries, size_t count, uint32_t below, const float* e_next);

}  // namespace gradwire::cpu
