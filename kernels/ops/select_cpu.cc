// Exact selection in about one pass over memory:
//  1. a sample of the elements gives a threshold that a little more than k are likely to reach;
//  2. one pass computes the elements and marks those at or above it (the candidates);
//  3. the k-th largest candidate is found by counting, and the mask is cleared below it.
// Too few candidates: the threshold is lowered and only the marking is repeated. The sample decides
// how fast this is, never what is chosen.

#include "gradwire/kernels/ops/select.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire::cpu {
namespace {

constexpr uint32_t kSmallestNonZero = 1;  // as bits of |x|
constexpr size_t kLine = 16;              // elements sampled together: one cache line
constexpr size_t kSampleAbove = 4 * kSelectChunk;
constexpr int kLowerings = 4;

inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

/// flags[i] = whether |x[i]| reaches the threshold. @returns the largest magnitude.
GRADWIRE_CLONES uint32_t flag_elements(const float* x, size_t count, int32_t threshold,
                                       uint8_t* flags) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    flags[i] = bits >= threshold ? 1 : 0;
    largest = std::max(largest, bits);
  }
  return static_cast<uint32_t>(largest);
}

/// Eight flag bytes to eight bits each. @returns how many are set.
GRADWIRE_CLONES uint32_t flags_to_mask(const uint8_t* flags, uint64_t* mask) {
  uint32_t count = 0;
  for (size_t word = 0; word < kMaskWords; ++word) {
    uint64_t bits = 0;
    for (size_t byte = 0; byte < 8; ++byte) {
      uint64_t eight;
      std::memcpy(&eight, flags + word * 64 + byte * 8, sizeof eight);
      bits |= ((eight * 0x0102040810204080ull) >> 56) << (8 * byte);
    }
    mask[word] = bits;
    count += static_cast<uint32_t>(std::popcount(bits));
  }
  return count;
}

template <class F>
void for_each_set(std::span<const uint64_t> mask, F&& f) {
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      f(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
    }
  }
}

class Selector {
 public:
  Selector(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool)
      : input_(input),
        frame_(frame),
        pool_(pool),
        chunks_((input.x.size() + kSelectChunk - 1) / kSelectChunk) {
    result_.mask = frame.take<uint64_t>(chunks_ * kMaskWords);
    result_.counts = frame.take<uint32_t>(chunks_);
  }

  Selection run() {
    uint32_t threshold = guess();
    mark(threshold, input_.source);
    for (int lowering = 1; finite() && result_.total < wanted() && threshold > kSmallestNonZero;
         ++lowering) {
      threshold = lowering < kLowerings && threshold > (1u << 23) ? threshold - (1u << 22)
                                                                  : kSmallestNonZero;
      mark(threshold, nullptr);
    }
    if (!finite()) {
      std::ranges::fill(result_.mask, 0);
      std::ranges::fill(result_.counts, 0);
      result_.total = 0;
      result_.finite = false;
    } else if (result_.total > input_.k) {
      refine();
    }
    return result_;
  }

 private:
  size_t wanted() const { return std::min(input_.k, input_.x.size()); }
  bool finite() const { return largest_ <= kFiniteBits; }
  std::span<const float> chunk(size_t index) const {
    const size_t begin = index * kSelectChunk;
    return input_.x.subspan(begin, std::min(kSelectChunk, input_.x.size() - begin));
  }
  std::span<uint64_t> mask(size_t index) const {
    return result_.mask.subspan(index * kMaskWords, kMaskWords);
  }

  uint32_t guess() const;
  void mark(uint32_t threshold, const ElementSource* source);
  void refine();
  std::span<const uint32_t> gather_candidates(std::span<const size_t> begins) const;

  const SelectInput input_;
  Workspace::Frame& frame_;
  ThreadPool& pool_;
  const size_t chunks_;
  Selection result_;
  uint32_t largest_ = 0;
};

/// The sample's element at the rank of k, four standard deviations on the safe side.
uint32_t Selector::guess() const {
  const size_t n = input_.x.size();
  if (n <= kSampleAbove || input_.k >= n / 2) {
    return kSmallestNonZero;
  }
  const double density = static_cast<double>(input_.k) / static_cast<double>(n);
  const size_t enough = density < 0.005 ? 65536 : 32768;
  const size_t lines = std::min(enough, n / 8) / kLine;
  const size_t stride = n / lines;
  const std::span<uint32_t> sample = frame_.take<uint32_t>(lines * kLine);
  for (size_t line = 0; line < lines; ++line) {
    // A hash of the line's number spreads the lines, so that no period of the data is met.
    const uint64_t jitter = (static_cast<uint32_t>(line * 2654435761u) * (stride - kLine)) >> 32;
    const size_t begin = line * stride + jitter;
    std::array<float, kLine> x;
    if (input_.source != nullptr) {
      input_.source->peek(begin, x);
    } else {
      std::copy_n(input_.x.data() + begin, kLine, x.data());
    }
    std::ranges::transform(x, sample.data() + line * kLine, magnitude);
  }
  const double expected = density * static_cast<double>(sample.size());
  const double rank = expected + 4 * std::sqrt(expected) + 2;
  const size_t k = std::min(sample.size(), static_cast<size_t>(rank));
  return std::max(kSmallestNonZero, kth_largest(sample, k).value);
}

void Selector::mark(uint32_t threshold, const ElementSource* source) {
  std::atomic<uint32_t> largest{0};
  for_each_chunk(pool_, chunks_, [&](size_t index) {
    const std::span<const float> x = chunk(index);
    if (source != nullptr) {
      source->fill(index * kSelectChunk, x.size());
    }
    alignas(64) uint8_t flags[kSelectChunk];
    std::fill(flags + x.size(), flags + kSelectChunk, uint8_t{0});
    const uint32_t mine = flag_elements(x.data(), x.size(), static_cast<int32_t>(threshold), flags);
    result_.counts[index] = flags_to_mask(flags, mask(index).data());
    uint32_t seen = largest.load(std::memory_order_relaxed);
    while (mine > seen && !largest.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
    }
  });
  largest_ = largest;
  result_.total = 0;
  for (const uint32_t count : result_.counts) {
    result_.total += count;
  }
}

std::span<const uint32_t> Selector::gather_candidates(std::span<const size_t> begins) const {
  const std::span<uint32_t> candidates = frame_.take<uint32_t>(result_.total);
  for_each_chunk(pool_, chunks_, [&](size_t index) {
    const float* const x = chunk(index).data();
    uint32_t* out = candidates.data() + begins[index];
    for_each_set(mask(index), [&](size_t i) { *out++ = magnitude(x[i]); });
  });
  return candidates;
}

/// Clears candidates below the k-th largest, and of those equal to it the last ones.
void Selector::refine() {
  const std::span<size_t> begins = frame_.take<size_t>(chunks_ + 1);
  const std::span<size_t> ties_kept = frame_.take<size_t>(chunks_);
  begins[0] = 0;
  for (size_t index = 0; index < chunks_; ++index) {
    begins[index + 1] = begins[index] + result_.counts[index];
  }
  const std::span<const uint32_t> candidates = gather_candidates(begins);
  const auto [threshold, larger] = kth_largest(candidates, input_.k);
  size_t ties_left = input_.k - larger;
  for (size_t index = 0; index < chunks_; ++index) {
    const auto mine = candidates.subspan(begins[index], begins[index + 1] - begins[index]);
    const size_t ties = static_cast<size_t>(std::ranges::count(mine, threshold));
    ties_kept[index] = std::min(ties, ties_left);
    ties_left -= ties_kept[index];
  }
  for_each_chunk(pool_, chunks_, [&](size_t index) {
    const uint32_t* candidate = candidates.data() + begins[index];
    const std::span<uint64_t> marks = mask(index);
    size_t ties = ties_kept[index];
    uint32_t kept = 0;
    for_each_set(marks, [&](size_t i) {
      const uint32_t bits = *candidate++;
      const bool tie = bits == threshold && ties > 0;
      ties -= tie ? 1 : 0;
      const bool keep = bits > threshold || tie;
      kept += keep ? 1 : 0;
      marks[i / 64] &= ~(static_cast<uint64_t>(!keep) << (i % 64));
    });
    result_.counts[index] = kept;
  });
  result_.total = input_.k;
}

/// Counts values by the 11 (last: 9) bits below those already known to be `prefix`.
Rank narrow_down(std::span<const uint32_t> magnitudes, size_t k, int shift, uint64_t prefix) {
  std::array<uint32_t, 2048> bins{};
  const int width = shift == 0 ? 9 : 11;
  const uint32_t bin_mask = (1u << width) - 1;
  for (const uint32_t value : magnitudes) {
    if (static_cast<uint64_t>(value) >> (shift + width) == prefix) {
      ++bins[(value >> shift) & bin_mask];
    }
  }
  size_t larger = 0;
  uint32_t bin = bin_mask;
  while (larger + bins[bin] < k) {
    larger += bins[bin--];
  }
  return {static_cast<uint32_t>(prefix << width) | bin, larger};
}

}  // namespace

Rank kth_largest(std::span<const uint32_t> magnitudes, size_t k) {
  const Rank top = narrow_down(magnitudes, k, 20, 0);  // bits 30 to 20
  const Rank middle = narrow_down(magnitudes, k - top.larger, 9, top.value);
  const size_t above = top.larger + middle.larger;
  const Rank exact = narrow_down(magnitudes, k - above, 0, middle.value);
  return {exact.value, above + exact.larger};
}

Selection select_largest(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool) {
  return Selector(input, frame, pool).run();
}

size_t mask_to_indices(std::span<const uint64_t> mask, std::span<uint16_t> indices) {
  size_t count = 0;
  for_each_set(mask, [&](size_t i) { indices[count++] = static_cast<uint16_t>(i); });
  return count;
}

}  // namespace gradwire::cpu
