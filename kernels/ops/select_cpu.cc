// Exact selection in one pass over memory:
//  1. a sample of the elements gives a threshold that a little more than k are likely to reach;
//  2. one pass computes the elements, writes them to e_next and lists those at or above the
//     threshold (the candidates); the larger ones, which will stay, leave zeros in e_next;
//  3. the k-th largest candidate is found, the smaller ones are dropped, and e_next is set right
//     at the few places where zeros and what was chosen do not agree.
// Where x is changed in place, a chunk's candidates are handed over, and then cleared, as soon as
// it was scanned: its lines lie in cache, only those that change are written, and what is cleared
// is always on record, so that x can be made whole again before anything else reads it.
//
// When the sample misled (too few candidates, or more than there is room for), three counting
// passes find the k-th largest of all elements, and 2. lists exactly the chosen ones. The sample
// decides how fast this is, never what is chosen.

#include "gradwire/kernels/ops/select.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_runs.h"
#include "gradwire/kernels/ops/internal/select_sample.h"
#include "gradwire/kernels/ops/internal/select_scan.h"

namespace gradwire::cpu {
namespace {

constexpr uint32_t kNothing = 0x80000000;  // no |x| reaches it
constexpr uint32_t kAllTies = 0xFFFFFFFF;

uint32_t count_equal(std::span<const float> x, uint32_t bits) {
  return static_cast<uint32_t>(
      std::ranges::count_if(x, [&](float element) { return magnitude(element) == bits; }));
}

class Selector {
 public:
  Selector(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool)
      : x_{input.g, input.e},
        e_next_(input.e_next),
        in_place_(input.in_place()),
        wanted_(std::min(input.k, x_.size())),
        pool_(pool),
        sizes_(x_.size(), input.k),
        chunks_(frame.take<Selection::Chunk>((x_.size() + kSelectChunk - 1) / kSelectChunk)),
        ties_(frame.take<uint32_t>(chunks_.size())),
        indices_(frame.take<uint16_t>(sizes_.capacity)),
        values_(frame.take<float>(sizes_.capacity)),
        sample_(frame.take<uint32_t>(sizes_.sample)),
        scratch_(frame.take<uint32_t>(std::max(sizes_.capacity, sizes_.sample))) {}

  Selection run() {
    if (wanted_ == 0) {
      scan({.threshold = kNothing, .zero_from = kNothing});
      return result(true, true);
    }
    const Guess guess = guess_thresholds(x_, wanted_, sizes_, sample_, scratch_);
    scan({.threshold = guess.safe, .zero_from = guess.likely});
    if (largest_ > kFiniteBits) {
      put_back();
      scan({.threshold = kNothing, .zero_from = kNothing});
      return result(false, true);
    }
    const bool missed = total_ < wanted_ && guess.safe > kSmallestNonZero;
    if (missed || total_ > values_.size()) {
      put_back();
      select_by_counting();
      return result(true, false);
    }
    if (total_ > wanted_ || guess.likely > guess.safe) {
      refine(guess);
    }
    return result(true, true);
  }

 private:
  size_t chunk_numel(size_t chunk) const {
    return std::min(kSelectChunk, x_.size() - chunk * kSelectChunk);
  }
  float* e_next(size_t chunk) const {
    return e_next_.empty() ? nullptr : e_next_.data() + chunk * kSelectChunk;
  }
  template <class Body>
  void for_each_run(const Body& body) const;

  /// Elements at or above the threshold are entries; of those equal to it, ties_ says how many of
  /// each chunk. e_next gets zeros from zero_from on, at first.
  struct Cut {
    uint32_t threshold;
    uint32_t zero_from;
    bool limit_ties = false;
  };
  Selection result(bool finite, bool sampled) const {
    return {chunks_, indices_, values_, total_, finite, sampled};
  }
  void scan(Cut cut);
  void put_back();
  void keep(Cut cut, EntryList entries, size_t chunk, LateWrites& writes);
  void refine(Guess guess);
  Cut cut_at_rank(Guess guess);
  void limit_ties(size_t kept);
  void select_by_counting();
  void count_bins(Digit digit);

  const Elements x_;
  const std::span<float> e_next_;
  const bool in_place_;
  const size_t wanted_;
  ThreadPool& pool_;
  const SampleSizes sizes_;
  const std::span<Selection::Chunk> chunks_;
  const std::span<uint32_t> ties_;  // of each chunk: how many of the k-th magnitude are chosen
  const std::span<uint16_t> indices_;
  const std::span<float> values_;
  const std::span<uint32_t> sample_, scratch_;
  Bins bins_;
  size_t total_ = 0;
  uint32_t largest_ = 0;  // magnitude of a candidate
};

/// Calls body(first, last) for runs of chunks, from all threads.
template <class Body>
void Selector::for_each_run(const Body& body) const {
  const auto run = [&](size_t index) {
    body(index * kSelectRun, std::min(chunks_.size(), (index + 1) * kSelectRun));
  };
  pool_.parallel_for((chunks_.size() + kSelectRun - 1) / kSelectRun, std::cref(run));
}

/// Fills e_next and lists the entries. When there are more than there is room for, only total_ and
/// largest_ mean something.
void Selector::scan(Cut cut) {
  FoundEntries found(values_, indices_);
  const auto scan_one = [&](size_t chunk, EntryList entries) {
    const size_t begin = chunk * kSelectChunk;
    const size_t count = scan_chunk({.g = x_.gradient(begin),
                                     .dtype = x_.g.dtype,
                                     .e = x_.e.empty() ? nullptr : x_.e.data() + begin,
                                     .e_next = in_place_ ? nullptr : e_next(chunk),
                                     .count = chunk_numel(chunk),
                                     .below = cut.threshold - 1,
                                     .zero_above = cut.zero_from - 1,
                                     .past_cache = x_.size() >= kStreamingNumel},
                                    entries);
    chunks_[chunk].count = static_cast<uint32_t>(count);
    if (cut.limit_ties) {
      LateWrites writes;
      keep(cut, entries, chunk, writes);
    }
    return chunks_[chunk].count;
  };
  const auto handed_over = [&](size_t chunk, EntryList entries, bool listed) {
    uint32_t& count = chunks_[chunk].count;
    if (in_place_ && listed) {
      clear_entries(entries, count, cut.zero_from - 1, e_next(chunk));
    }
    count = listed ? count : 0;
  };
  for_each_run([&](size_t first, size_t last) {
    scan_run({first, last, in_place_}, chunks_, found, scan_one, handed_over);
  });
  total_ = found.total();
  largest_ = found.largest();
}

/// Makes x whole after a scan in place.
void Selector::put_back() {
  if (!in_place_) {
    return;
  }
  for_each_run([&](size_t first, size_t last) {
    LateWrites writes;
    for (size_t chunk = first; chunk < last; ++chunk) {
      const auto [at, count] = chunks_[chunk];
      put_back_entries({values_.data() + at, indices_.data() + at}, count, e_next(chunk), writes);
    }
  });
}

/// Drops those of a chunk's entries that the cut does not let pass.
void Selector::keep(Cut cut, EntryList entries, size_t chunk, LateWrites& writes) {
  uint32_t& count = chunks_[chunk].count;
  const uint32_t ties = cut.limit_ties ? ties_[chunk] : kAllTies;
  if (ties == kAllTies || ties == 0) {
    const EntryCut simple{.below = cut.threshold - (ties == 0 ? 0 : 1),
                          .zero_above = cut.zero_from - 1,
                          .e_next = e_next(chunk)};
    count = static_cast<uint32_t>(keep_above(entries, count, simple, writes));
    return;
  }
  uint32_t kept = 0;
  uint32_t ties_left = ties;
  for (uint32_t i = 0; i < count; ++i) {
    const float x = entries.values[i];
    const uint16_t index = entries.indices[i];
    const bool tie = magnitude(x) == cut.threshold && ties_left > 0;
    const bool stays = tie || magnitude(x) > cut.threshold;
    ties_left -= tie ? 1 : 0;
    entries.values[kept] = x;
    entries.indices[kept] = index;
    kept += stays ? 1 : 0;
    if (float* const rest = e_next(chunk)) {
      rest[index] = stays ? 0.0f : x;
    }
  }
  count = kept;
}

/// Drops the smallest candidates, of equal ones the last, until k are left.
void Selector::refine(Guess guess) {
  const Cut cut = total_ > wanted_ ? cut_at_rank(guess) : Cut{guess.safe, guess.likely};
  for_each_run([&](size_t first, size_t last) {
    LateWrites writes;
    for (size_t chunk = first; chunk < last; ++chunk) {
      const size_t at = chunks_[chunk].first;
      keep(cut, {values_.data() + at, indices_.data() + at}, chunk, writes);
    }
  });
  total_ = std::min(total_, wanted_);
}

/// What lets k of more candidates pass.
Selector::Cut Selector::cut_at_rank(Guess guess) {
  const std::span<const float> candidates = values_.first(total_);
  const size_t excess = total_ - wanted_;
  const uint32_t lowest = guess.safe;
  const int shift = std::bit_width((largest_ - lowest) / kBins);
  const auto bin_of = [&](float x) { return (magnitude(x) - lowest) >> shift; };
  Bins bins{};
  for (const float x : candidates) {
    ++bins[bin_of(x)];
  }
  size_t smaller = 0;
  uint32_t bin = 0;
  while (smaller + bins[bin] <= excess) {
    smaller += bins[bin++];
  }
  const std::span<uint32_t> members = scratch_.first(bins[bin]);
  size_t copied = 0;
  for (const float x : candidates) {
    if (bin_of(x) == bin) {
      members[copied++] = magnitude(x);
    }
  }
  const auto kth = members.begin() + static_cast<ptrdiff_t>(excess - smaller);
  std::ranges::nth_element(members, kth);
  const uint32_t threshold = *kth;
  const auto equal = static_cast<size_t>(std::ranges::count(members, threshold));
  const auto below = static_cast<size_t>(
      std::ranges::count_if(members, [&](uint32_t member) { return member < threshold; }));
  const size_t dropped = excess - smaller - below;  // of those equal to the threshold
  if (dropped > 0) {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      const auto mine = candidates.subspan(chunks_[chunk].first, chunks_[chunk].count);
      ties_[chunk] = count_equal(mine, threshold);
    }
    limit_ties(equal - dropped);
  }
  return {.threshold = threshold, .zero_from = guess.likely, .limit_ties = dropped > 0};
}

/// From how many ties each chunk has to how many of them are chosen: the first `kept`.
void Selector::limit_ties(size_t kept) {
  for (uint32_t& ties : ties_) {
    ties = static_cast<uint32_t>(std::min<size_t>(ties, kept));
    kept -= ties;
  }
}

/// Fills bins_ with how many elements lie in each.
void Selector::count_bins(Digit digit) {
  bins_.fill(0);
  for_each_run([&](size_t first, size_t last) {
    alignas(64) float x[kSelectChunk];
    Bins mine{};
    for (size_t chunk = first; chunk < last; ++chunk) {
      const std::span<float> elements(x, chunk_numel(chunk));
      x_.read(chunk * kSelectChunk, elements);
      for (const float element : elements) {
        const uint32_t bits = magnitude(element);
        mine[digit.bin(bits)] += digit.holds(bits) ? 1 : 0;
      }
    }
    for (size_t bin = 0; bin < kBins; ++bin) {
      std::atomic_ref(bins_[bin]).fetch_add(mine[bin], std::memory_order_relaxed);
    }
  });
}

/// Three passes find the k-th largest element, one more where it has ties too many.
void Selector::select_by_counting() {
  size_t rank = wanted_;
  uint32_t threshold = 0;
  uint32_t equal = 0;
  for (int place = 0; place < 3; ++place) {
    const Digit next = digit(place, threshold);
    count_bins(next);
    const uint32_t bin = bin_of_rank(bins_, rank);
    threshold = threshold << next.width | bin;
    equal = bins_[bin];
  }
  const uint32_t lowest = std::max(threshold, kSmallestNonZero);
  const Cut cut{
      .threshold = lowest, .zero_from = lowest, .limit_ties = threshold > 0 && equal > rank};
  if (cut.limit_ties) {
    for_each_run([&](size_t first, size_t last) {
      alignas(64) float x[kSelectChunk];
      for (size_t chunk = first; chunk < last; ++chunk) {
        const std::span<float> elements(x, chunk_numel(chunk));
        x_.read(chunk * kSelectChunk, elements);
        ties_[chunk] = count_equal(elements, threshold);
      }
    });
    limit_ties(rank);
  }
  scan(cut);
}

}  // namespace

Selection select_largest(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool) {
  return Selector(input, frame, pool).run();
}

}  // namespace gradwire::cpu
