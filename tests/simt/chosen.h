#pragma once
// What a selection has to choose, by sorting everything.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace gradwire::testing {

inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

/// Which elements have to be chosen, by sorting all of them.
inline std::vector<bool> chosen_by_sorting(const std::vector<float>& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return magnitude(x[a]) > magnitude(x[b]);
  });
  std::vector<bool> chosen(x.size());
  for (size_t i = 0; i < std::min(k, x.size()) && magnitude(x[order[i]]) != 0; ++i) {
    chosen[order[i]] = true;
  }
  return chosen;
}

}  // namespace gradwire::testing
