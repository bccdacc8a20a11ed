#pragma once
// Products of what callers give: extents of shapes, parts and their sizes.

#include <cstddef>
#include <limits>

namespace gradwire {

/// The product of all extents, 1 where there are none. One that does not fit is the largest number
/// there is, which no memory holds and every upper bound refuses: it does not begin anew at 0.
template <class Extents>
constexpr size_t product_of(const Extents& extents) {
  size_t product = 1;
  bool fits = true;
  for (const auto each : extents) {
    const auto extent = static_cast<size_t>(each);
    if (extent == 0) {
      return 0;
    }
    fits = fits && product <= std::numeric_limits<size_t>::max() / extent;
    product = fits ? product * extent : product;
  }
  return fits ? product : std::numeric_limits<size_t>::max();
}
constexpr size_t product_of(size_t a, size_t b) {
  const size_t both[] = {a, b};
  return product_of(both);
}

}  // namespace gradwire
