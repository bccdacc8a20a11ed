// Selection by a given threshold, in one pass; in two where more reach it than there is room for.

#include <algorithm>
#include <bit>
#include <functional>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_runs.h"
#include "gradwire/kernels/ops/internal/select_sample.h"
#include "gradwire/kernels/ops/internal/select_scan.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {
namespace {

class ReachSelector {
 public:
  ReachSelector(const SelectInput& input, const Reach& reach, Workspace::Frame& frame)
      : x_{input.g, input.e},
        e_next_(input.e_next),
        in_place_(input.in_place()),
        reach_(reach),
        chunks_(frame.take<Selection::Chunk>((x_.size() + kSelectChunk - 1) / kSelectChunk)),
        room_(frame.take<uint32_t>(chunks_.size())),
        indices_(frame.take<uint16_t>(reach.capacity)),
        values_(frame.take<float>(reach.capacity)) {}

  Reached run(ThreadPool& pool) {
    std::ranges::fill(room_, static_cast<uint32_t>(kSelectChunk));
    scan(pool);
    const size_t reached = total_;
    if (largest_ > kFiniteBits || reached > reach_.capacity) {
      put_back(pool);
    }
    if (largest_ > kFiniteBits) {
      std::ranges::fill(chunks_, Selection::Chunk{0, 0});
      return {{.chunks = chunks_, .indices = indices_, .values = values_, .finite = false}, 0};
    }
    if (reached > reach_.capacity) {
      size_t left = reach_.capacity;
      for (size_t i = 0; i < chunks_.size(); ++i) {
        const size_t chunk = (reach_.first_chunk + i) % chunks_.size();
        room_[chunk] = static_cast<uint32_t>(std::min<size_t>(chunks_[chunk].count, left));
        left -= room_[chunk];
      }
      scan(pool);
    }
    return {{.chunks = chunks_, .indices = indices_, .values = values_, .total = total_}, reached};
  }

 private:
  void scan(ThreadPool& pool);
  void put_back(ThreadPool& pool) const;
  uint32_t scan_one(size_t chunk, EntryList list) const;

  const Elements x_;
  const std::span<float> e_next_;
  const bool in_place_;
  const Reach reach_;
  const std::span<Selection::Chunk> chunks_;
  const std::span<uint32_t> room_;  // of each chunk: so many of its first are chosen and listed
  const std::span<uint16_t> indices_;
  const std::span<float> values_;
  size_t total_ = 0;
  uint32_t largest_ = 0;  // magnitude
};

/// Lists what is chosen of a chunk and fills its e_next. @returns how many.
uint32_t ReachSelector::scan_one(size_t chunk, EntryList list) const {
  const size_t begin = chunk * kSelectChunk;
  const uint32_t below = magnitude(reach_.threshold) - 1;
  float* const e_next = e_next_.empty() || in_place_ ? nullptr : e_next_.data() + begin;
  const size_t found = scan_chunk({.g = x_.gradient(begin),
                                   .dtype = x_.g.dtype,
                                   .e = x_.e.empty() ? nullptr : x_.e.data() + begin,
                                   .e_next = e_next,
                                   .count = std::min(kSelectChunk, x_.size() - begin),
                                   .below = below,
                                   .zero_above = below,
                                   .past_cache = x_.size() >= kStreamingNumel},
                                  list);
  const size_t chosen = std::min<size_t>(found, room_[chunk]);
  for (size_t i = chosen; e_next != nullptr && i < found; ++i) {
    e_next[list.indices[i]] = list.values[i];
  }
  return static_cast<uint32_t>(chosen);
}

/// Lists what is chosen of all. Where that is more than there is room for, only the counts of
/// chunks, total_ and largest_ mean something.
void ReachSelector::scan(ThreadPool& pool) {
  FoundEntries found(values_, indices_);
  const auto handed_over = [&](size_t chunk, EntryList entries, bool listed) {
    if (in_place_ && listed) {
      clear_entries(entries, chunks_[chunk].count, 0, e_next_.data() + chunk * kSelectChunk);
    }
    room_[chunk] = listed ? room_[chunk] : 0;
  };
  const auto body = [&](size_t index) {
    const size_t first = index * kSelectRun;
    scan_run({first, std::min(chunks_.size(), first + kSelectRun), in_place_}, chunks_, found,
             [&](size_t chunk, EntryList list) { return scan_one(chunk, list); }, handed_over);
  };
  pool.parallel_for((chunks_.size() + kSelectRun - 1) / kSelectRun, std::cref(body));
  total_ = found.total();
  largest_ = found.largest();
}

/// Makes x whole after a scan in place.
void ReachSelector::put_back(ThreadPool& pool) const {
  const auto body = [&](size_t chunk) {
    LateWrites writes;
    const auto [at, count] = chunks_[chunk];
    if (room_[chunk] > 0) {
      put_back_entries({values_.data() + at, indices_.data() + at}, count,
                       e_next_.data() + chunk * kSelectChunk, writes);
    }
  };
  if (in_place_) {
    pool.parallel_for(chunks_.size(), std::cref(body));
  }
}

}  // namespace

Reached select_reaching(const SelectInput& input, const Reach& reach, Workspace::Frame& frame,
                        ThreadPool& pool) {
  return ReachSelector(input, reach, frame).run(pool);
}

}  // namespace gradwire::cpu
