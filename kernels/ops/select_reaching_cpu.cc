// Selection by a given threshold, in one pass; in two where more reach it than there is room for.

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_sample.h"
#include "gradwire/kernels/ops/internal/select_scan.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kRun = 16;  // chunks that one thread takes at once

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
  std::atomic<size_t> total{0};
  std::atomic<uint32_t> largest{0};
  const auto body = [&](size_t index) {
    constexpr size_t kRoom = 2 * kSelectChunk;
    // At pages, because vector stores that cross one are slow.
    alignas(4096) float values[kRoom + kEntrySlack];
    alignas(4096) uint16_t indices[kRoom + kEntrySlack];
    const size_t end = std::min(chunks_.size(), (index + 1) * kRun);
    size_t held = 0;
    size_t oldest = index * kRun;  // chunk whose entries are held
    const auto hand_over = [&](size_t before) {
      const uint32_t mine = max_magnitude_bits({values, held});
      uint32_t seen = largest.load(std::memory_order_relaxed);
      while (mine > seen && !largest.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
      }
      const size_t at = total.fetch_add(held, std::memory_order_relaxed);
      const bool room = at + held <= values_.size();
      if (room) {
        std::copy_n(values, held, values_.data() + at);
        std::copy_n(indices, held, indices_.data() + at);
      }
      for (; oldest < before; ++oldest) {
        Selection::Chunk& chunk = chunks_[oldest];
        if (in_place_ && room) {
          clear_entries({values + chunk.first, indices + chunk.first}, chunk.count, 0,
                        e_next_.data() + oldest * kSelectChunk);
        }
        room_[oldest] = room ? room_[oldest] : 0;
        chunk.first += at;
      }
      held = 0;
    };
    for (size_t chunk = oldest; chunk < end; ++chunk) {
      if (in_place_ || held > kRoom - kSelectChunk) {
        hand_over(chunk);
      }
      chunks_[chunk] = {held, scan_one(chunk, {values + held, indices + held})};
      held += chunks_[chunk].count;
    }
    hand_over(end);
    finish_streaming();
  };
  pool.parallel_for((chunks_.size() + kRun - 1) / kRun, std::cref(body));
  total_ = total;
  largest_ = largest;
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
