#pragma once
// What compressors should choose and encode, written naively from their definitions. Includes
// nothing of the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
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

}  // namespace gradwire::reference
