#pragma once
// How select.h guesses the k-th largest element from a few, and how it counts where that misled.

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::cpu {

inline constexpr uint32_t kSmallestNonZero = 1;  // as bits of |x|

inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

/// x = g + e, or g where e is empty.
struct Elements {
  ConstGradient g;
  std::span<const float> e;

  size_t size() const { return g.numel; }
  const std::byte* gradient(size_t begin) const {
    return static_cast<const std::byte*>(g.data) + begin * size_of(g.dtype);
  }
  /// x[begin, begin + out.size())
  void read(size_t begin, std::span<float> out) const;
};

/// How much is sampled, and how many candidates there is room for: from n and k alone.
struct SampleSizes {
  size_t sample = 0;  ///< elements; 0: every element but zeros is a candidate
  size_t capacity = 0;
  double expected = 0;  ///< sampled elements among the k largest

  SampleSizes(size_t n, size_t k);
  /// Four standard deviations above what is expected of independent elements.
  double most_ranks() const { return expected + 4 * std::sqrt(expected) + 4; }
};

struct Guess {
  uint32_t safe;    ///< at least k elements are likely to reach it, and not many more
  uint32_t likely;  ///< about k elements are likely to reach it; safe or above
};

/// Thresholds, from a sample. `sample` has sizes.sample elements, `scratch` as many or more.
Guess guess_thresholds(const Elements& x, size_t k, const SampleSizes& sizes,
                       std::span<uint32_t> sample, std::span<uint32_t> scratch);

/// A place in the bits of magnitudes: those above the next `width` bits are `prefix`.
struct Digit {
  int shift;
  int width;
  uint32_t prefix;

  bool holds(uint32_t bits) const { return uint64_t{bits} >> (shift + width) == prefix; }
  uint32_t bin(uint32_t bits) const { return bits >> shift & ((1u << width) - 1); }
};

inline constexpr size_t kBins = 2048;
using Bins = std::array<uint32_t, kBins>;

/// The 31 bits from the top: 11, 11, and 9.
constexpr Digit digit(int place, uint32_t prefix) {
  return place == 0   ? Digit{20, 11, prefix}
         : place == 1 ? Digit{9, 11, prefix}
                      : Digit{0, 9, prefix};
}

/// The bin of the rank-th largest; takes from rank what lies in higher bins.
uint32_t bin_of_rank(const Bins& bins, size_t& rank);

}  // namespace gradwire::cpu
