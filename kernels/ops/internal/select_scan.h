#pragma once
// The inner loops of select.h, in one form per instruction set.

#include <bit>
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
  const float* e;       ///< nullptr: x = g, and e_next is not written
  float* e_next;        ///< x, with zeros where |x| is above zero_above
  size_t count;         ///< elements, at most 4096
  uint32_t below;       ///< entries are the elements whose |x|, as bits, is larger
  uint32_t zero_above;  ///< at least `below`
  bool past_cache;      ///< e_next is written past the caches: finish_streaming() has to follow
};

/// Writes the entries in order; `room` holds scan.count + kEntrySlack. @returns how many.
size_t scan_chunk(const ChunkScan& scan, EntryList room);

/// x in place, while it lies in cache: zeros where entries are above `zero_above`, else what is
/// there anyway.
inline void clear_entries(EntryList entries, size_t count, uint32_t zero_above, float* x) {
  for (size_t i = 0; i < count; ++i) {
    const float value = entries.values[i];
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
    x[entries.indices[i]] = bits > zero_above ? 0.0f : value;
  }
}

/// Scattered writes, made some time after their lines were asked for.
class LateWrites {
 public:
  LateWrites() = default;
  ~LateWrites() { flush(); }
  LateWrites(const LateWrites&) = delete;
  LateWrites& operator=(const LateWrites&) = delete;

  void add(float* place, float value) {
    if (count_ == kMost) {
      flush();
    }
    __builtin_prefetch(place, 1);
    places_[count_] = place;
    values_[count_++] = value;
  }
  void flush() {
    for (size_t i = 0; i < count_; ++i) {
      *places_[i] = values_[i];
    }
    count_ = 0;
  }

 private:
  static constexpr size_t kMost = 64;
  float* places_[kMost];
  float values_[kMost];
  size_t count_ = 0;
};

/// What clear_entries() took, or was about to, bit for bit.
inline void put_back_entries(EntryList entries, size_t count, float* x, LateWrites& writes) {
  for (size_t i = 0; i < count; ++i) {
    writes.add(x + entries.indices[i], entries.values[i]);
  }
}

/// Which entries of a chunk stay, and what its e_next holds until then.
struct EntryCut {
  uint32_t below;       ///< those with larger magnitudes stay
  uint32_t zero_above;  ///< as the scan was told
  float* e_next;        ///< may be nullptr
};

/// Keeps the entries whose magnitude is above cut.below, in order, and sets e_next where it has to
/// change: to 0 where an entry stays, to x where not. @returns how many are kept.
size_t keep_above(EntryList entries, size_t count, const EntryCut& cut, LateWrites& writes);

}  // namespace gradwire::cpu
