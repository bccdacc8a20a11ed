#pragma once
// What compressors should choose and encode, written naively from their definitions. Includes
// nothing of the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace gradwire::reference {

/// Indices of the k largest |x|, ties to the smaller index, zeros never, in ascending order.
inline std::vector<size_t> top_k(const std::vector<float>& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  order.resize(std::min(k, order.size()));
  std::erase_if(order, [&](size_t i) { return x[i] == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

/// The largest error of nearest rounding of element i to a multiple of its block's scale.
inline std::vector<double> nearest_error_bound(const std::vector<float>& x, int bits,
                                               size_t block) {
  std::vector<double> bound(x.size());
  const double limit = std::pow(2.0, bits - 1) - 1;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t begin = i / block * block;
    double maximum = 0;
    for (size_t j = begin; j < std::min(begin + block, x.size()); ++j) {
      maximum = std::max(maximum, std::fabs(static_cast<double>(x[j])));
    }
    bound[i] = maximum / limit / 2;
  }
  return bound;
}

/// Word `word` of Philox4x32-10, from the equations of Salmon et al., SC 2011.
inline uint32_t philox_word(const std::vector<uint32_t>& counter, uint64_t key, size_t word) {
  std::vector<uint32_t> c = counter;
  for (uint64_t round = 0; round < 10; ++round) {
    const uint64_t low = c[0] * 0xD2511F53ull;
    const uint64_t high = c[2] * 0xCD9E8D57ull;
    const auto key_low = static_cast<uint32_t>(key % (1ull << 32) + round * 0x9E3779B9ull);
    const auto key_high = static_cast<uint32_t>((key >> 32) + round * 0xBB67AE85ull);
    c = {static_cast<uint32_t>(high >> 32) ^ c[1] ^ key_low, static_cast<uint32_t>(high),
         static_cast<uint32_t>(low >> 32) ^ c[3] ^ key_high, static_cast<uint32_t>(low)};
  }
  return c[word];
}

/// What randomk chooses of a chunk of `numel` elements, in its order: from a list of those left,
/// whose first one takes the place of the one that goes.
inline std::vector<size_t> drawn_elements(uint32_t draw, uint32_t chunk, size_t numel, size_t k) {
  std::vector<size_t> left(numel), chosen;
  std::iota(left.begin(), left.end(), size_t{0});
  for (uint32_t j = 0; j < k; ++j) {
    const double word = philox_word({j / 4, chunk, 0, 0}, draw, j % 4);
    const auto at = static_cast<size_t>(word * static_cast<double>(left.size()) / 4294967296.0);
    chosen.push_back(left[at]);
    left[at] = left.front();
    left.erase(left.begin());
  }
  return chosen;
}

}  // namespace gradwire::reference
