// Exact selection within every chunk, in one pass over memory: a threshold that the chunks before
// suggest gives a few more candidates than are wanted while g + e is computed and written; counting
// trials among those few find the exact cut. Where the suggestion is too high for a chunk, which
// lies in cache by then, trials over all of it find a better one. It decides how fast this is,
// never what is chosen.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_sample.h"
#include "gradwire/kernels/ops/internal/select_scan.h"
#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kRun = 16;             // chunks that one thread takes at once
constexpr size_t kListLanes = 16;           // lists are padded with zeros to a multiple of so many
constexpr uint32_t kOctave = 1u << 23;  // in the bits of magnitudes

[[gnu::always_inline]] inline uint32_t count_above(const float* x, size_t padded, uint32_t below) {
  int32_t lanes[kListLanes] = {};
  for (size_t i = 0; i < padded; i += kListLanes) {
    for (size_t j = 0; j < kListLanes; ++j) {
      const int32_t bits = std::bit_cast<int32_t>(x[i + j]) & 0x7FFFFFFF;
      lanes[j] += bits > static_cast<int32_t>(below) ? 1 : 0;
    }
  }
  int32_t count = 0;
  for (const int32_t lane : lanes) {
    count += lane;
  }
  return static_cast<uint32_t>(count);
}

/// Elements with magnitudes above `below` are `above` many: k, or as many as there are; fewer than
/// k where the elements just below are equal, and some of them have to be chosen.
struct Split {
  uint32_t below;
  uint32_t above;

  /// The magnitude that at least k elements reach, or all but zeros; at most infinity, so that
  /// whatever is not finite reaches it.
  uint32_t reached_by(uint32_t k) const {
    return std::clamp(above >= k ? below + 1 : below, kSmallestNonZero, kFiniteBits + 1);
  }
};

/// Of a bracket: more than k elements are above `low`, at most k above `high`.
struct Bracket {
  uint32_t low, above_low;
  uint32_t high, above_high;
};

[[gnu::always_inline]] inline Split narrow(const float* x, size_t padded, uint32_t k, Bracket b) {
  for (bool halve = false; b.high - b.low > 1; halve = !halve) {
    // Counts say where to look next; halving now and then keeps that from creeping.
    const uint64_t share = halve ? (b.above_low - b.above_high) / 2 : b.above_low - k;
    const auto step =
        static_cast<uint32_t>(uint64_t{b.high - b.low} * share / (b.above_low - b.above_high));
    const uint32_t middle = std::clamp(b.low + step, b.low + 1, b.high - 1);
    const uint32_t above = count_above(x, padded, middle);
    if (above == k) {
      return {middle, above};
    }
    (above > k ? b.low : b.high) = middle;
    (above > k ? b.above_low : b.above_high) = above;
  }
  return {b.high, b.above_high};
}

[[gnu::always_inline]] inline uint32_t largest_of(const float* x, size_t padded) {
  int32_t largest = 0;
  for (size_t i = 0; i < padded; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  }
  return static_cast<uint32_t>(largest);
}

/// Of a list whose `count` members are all above `low`, count > k; `likely` is tried first.
GRADWIRE_CLONES Split split_list(const float* x, uint32_t count, uint32_t k, uint32_t low,
                                 uint32_t likely) {
  const size_t padded = (count + kListLanes - 1) / kListLanes * kListLanes;
  Bracket bracket{low, count, largest_of(x, padded), 0};
  if (likely > low && likely < bracket.high) {
    const uint32_t above = count_above(x, padded, likely);
    if (above == k) {
      return {likely, above};
    }
    (above > k ? bracket.low : bracket.high) = likely;
    (above > k ? bracket.above_low : bracket.above_high) = above;
  }
  return narrow(x, padded, k, bracket);
}

/// Of anything.
GRADWIRE_CLONES Split split(const float* x, size_t padded, uint32_t k) {
  uint32_t high = largest_of(x, padded);
  uint32_t above_high = 0;
  for (uint32_t step = kOctave / 2; high > 0; step *= 2) {
    const uint32_t low = high > step ? high - step : 0;
    const uint32_t above = count_above(x, padded, low);
    if (above > k) {
      return narrow(x, padded, k, {low, above, high, above_high});
    }
    high = low;
    above_high = above;
  }
  return {0, above_high};
}

class ChunkSelector {
 public:
  ChunkSelector(const SelectInput& input, Workspace::Frame& frame)
      : x_{input.g, input.e},
        e_next_(input.e_next),
        in_place_(input.in_place()),
        k_(static_cast<uint32_t>(std::min(input.k, kSelectChunk))),
        chunks_(frame.take<Selection::Chunk>((x_.size() + kSelectChunk - 1) / kSelectChunk)),
        indices_(frame.take<uint16_t>(chunks_.size() * k_)),
        values_(frame.take<float>(chunks_.size() * k_)) {}

  Selection run(ThreadPool& pool) {
    const auto body = [&](size_t index) {
      select_run(index * kRun, std::min(chunks_.size(), (index + 1) * kRun));
    };
    pool.parallel_for((chunks_.size() + kRun - 1) / kRun, std::cref(body));
    if (in_place_ && !finite_) {
      put_back(pool);
    }
    Selection result{.chunks = chunks_, .indices = indices_, .values = values_, .finite = finite_};
    for (Selection::Chunk& chunk : chunks_) {
      chunk.count = finite_ ? chunk.count : 0;
      result.total += chunk.count;
    }
    return result;
  }

 private:
  /// A chunk at work.
  struct Place {
    size_t chunk;
    uint32_t numel;
    uint32_t wanted;
    float* e_next;
  };
  Place place_of(size_t chunk) const {
    const size_t begin = chunk * kSelectChunk;
    const auto numel = static_cast<uint32_t>(std::min(kSelectChunk, x_.size() - begin));
    return {chunk, numel, kept_in_chunk(k_, numel),
            e_next_.empty() || in_place_ ? nullptr : e_next_.data() + begin};
  }
  /// So many candidates are likely to hold the wanted ones.
  static uint32_t target(uint32_t wanted) {
    return wanted + 4 + static_cast<uint32_t>(3 * std::sqrt(static_cast<float>(wanted)));
  }

  void prefetch(size_t chunk) const;
  void select_run(size_t first, size_t last);
  void put_back(ThreadPool& pool) const;
  size_t scan(const Place& place, Guess guess, EntryList room) const;
  Guess search(const Place& place) const;
  uint32_t cut(const Place& place, Guess& guess, EntryList list, uint32_t count,
               LateWrites& writes) const;

  const Elements x_;
  const std::span<float> e_next_;
  const bool in_place_;
  const uint32_t k_;
  const std::span<Selection::Chunk> chunks_;
  const std::span<uint16_t> indices_;
  const std::span<float> values_;
  std::atomic<bool> finite_{true};
  std::atomic<Guess> last_guess_{};  // of any thread
};

size_t ChunkSelector::scan(const Place& place, Guess guess, EntryList room) const {
  const size_t begin = place.chunk * kSelectChunk;
  return scan_chunk({.g = x_.gradient(begin),
                     .dtype = x_.g.dtype,
                     .e = x_.e.empty() ? nullptr : x_.e.data() + begin,
                     .e_next = place.e_next,
                     .count = place.numel,
                     .below = guess.safe - 1,
                     .zero_above = guess.likely - 1,
                     .past_cache = x_.size() >= kStreamingNumel},
                    room);
}

/// Asks for a chunk's first lines, so that memory works while the chunk before is cut.
void ChunkSelector::prefetch(size_t chunk) const {
  constexpr size_t kLine = 64;
  constexpr size_t kAhead = 64 * kLine;
  if (chunk + 1 >= chunks_.size()) {
    return;
  }
  const std::byte* const g = x_.gradient(chunk * kSelectChunk);
  for (size_t at = 0; at < kAhead; at += kLine) {
    __builtin_prefetch(g + at);
    if (!x_.e.empty()) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(&x_.e[chunk * kSelectChunk]) + at);
    }
  }
}

/// Thresholds from the chunk itself.
Guess ChunkSelector::search(const Place& place) const {
  if (place.wanted == place.numel) {
    return {kSmallestNonZero, kSmallestNonZero};
  }
  alignas(64) float x[kSelectChunk];
  x_.read(place.chunk * kSelectChunk, {x, place.numel});
  const size_t padded = (place.numel + kListLanes - 1) / kListLanes * kListLanes;
  std::fill(x + place.numel, x + padded, 0.0f);
  const auto reached_by = [&](uint32_t rank) { return split(x, padded, rank).reached_by(rank); };
  const uint32_t likely = reached_by(place.wanted);
  return {std::min(reached_by(target(place.wanted)), likely), likely};
}

/// Keeps the wanted ones of more candidates, and moves the guess to what would have been right.
uint32_t ChunkSelector::cut(const Place& place, Guess& guess, EntryList list, uint32_t count,
                            LateWrites& writes) const {
  std::fill_n(list.values + count, kListLanes, 0.0f);
  const Guess used = guess;
  const uint32_t aim = target(place.wanted);
  if (count > 4 * aim) {
    guess.safe = split_list(list.values, count, aim, used.safe - 1, used.safe).reached_by(aim);
  } else {
    const auto off = static_cast<int32_t>(count - aim);
    const auto move = static_cast<int64_t>(off) * (kOctave / 16) / aim;
    guess.safe = static_cast<uint32_t>(
        std::clamp<int64_t>(int64_t{used.safe} + move, kSmallestNonZero, kFiniteBits + 1));
  }
  Split kept{used.safe - 1, count};
  if (count > place.wanted) {
    kept = split_list(list.values, count, place.wanted, used.safe - 1, used.likely);
    const uint32_t right = kept.reached_by(place.wanted);
    guess.likely = count > 4 * aim ? right : used.likely / 4 * 3 + right / 4;
  }
  guess.likely = std::max(guess.likely, guess.safe);

  const uint32_t zero_above = used.likely - 1;
  if (kept.above == std::min(count, place.wanted)) {
    if (count > place.wanted || used.likely > used.safe) {
      return static_cast<uint32_t>(
          keep_above(list, count, {kept.below, zero_above, place.e_next}, writes));
    }
    return count;
  }
  // Too many are equal: `kept.below` is their magnitude, and the first of them are chosen.
  uint32_t ties = place.wanted - kept.above;
  uint32_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const float x = list.values[i];
    const uint16_t index = list.indices[i];
    const bool tie = magnitude(x) == kept.below && ties > 0;
    const bool stays = tie || magnitude(x) > kept.below;
    ties -= tie ? 1 : 0;
    list.values[at] = x;
    list.indices[at] = index;
    at += stays ? 1 : 0;
    if (place.e_next != nullptr) {
      place.e_next[index] = stays ? 0.0f : x;
    }
  }
  return at;
}

void ChunkSelector::select_run(size_t first, size_t last) {
  // At pages, because vector stores that cross one are slow.
  alignas(4096) float values[kSelectChunk + kEntrySlack];
  alignas(4096) uint16_t indices[kSelectChunk + kEntrySlack];
  const EntryList list{values, indices};
  LateWrites writes;
  Guess guess = last_guess_.load(std::memory_order_relaxed);
  for (size_t chunk = first; chunk < last; ++chunk) {
    const Place place = place_of(chunk);
    if (guess.safe == 0 || place.wanted == place.numel) {
      guess = search(place);
    }
    size_t found = scan(place, guess, list);
    if (found < place.wanted && guess.safe > kSmallestNonZero) {
      guess = search(place);
      found = scan(place, guess, list);
    }
    if (max_magnitude_bits({values, found}) > kFiniteBits) {
      finite_.store(false, std::memory_order_relaxed);
    }
    prefetch(chunk + 1);
    const uint32_t kept = cut(place, guess, list, static_cast<uint32_t>(found), writes);
    std::copy_n(values, kept, values_.data() + chunk * k_);
    std::copy_n(indices, kept, indices_.data() + chunk * k_);
    chunks_[chunk] = {chunk * k_, kept};
    if (in_place_) {
      clear_entries(list, kept, 0, e_next_.data() + chunk * kSelectChunk);
    }
  }
  last_guess_.store(guess, std::memory_order_relaxed);
  finish_streaming();
}

/// Makes x whole after it was changed in place.
void ChunkSelector::put_back(ThreadPool& pool) const {
  const auto body = [&](size_t chunk) {
    LateWrites writes;
    const auto [at, count] = chunks_[chunk];
    put_back_entries({values_.data() + at, indices_.data() + at}, count,
                     e_next_.data() + chunk * kSelectChunk, writes);
  };
  pool.parallel_for(chunks_.size(), std::cref(body));
}

}  // namespace

Selection select_largest_in_chunks(const SelectInput& input, Workspace::Frame& frame,
                                   ThreadPool& pool) {
  return ChunkSelector(input, frame).run(pool);
}

}  // namespace gradwire::cpu
