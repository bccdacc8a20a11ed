#pragma once
// Comparisons that say where arrays differ first, and by how much.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <span>

namespace gradwire::testing {

/// Equal as numbers (so -0 equals 0), NaN nowhere.
inline ::testing::AssertionResult all_equal(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " elements against " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i])) {
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size() << ": "
                                           << std::hexfloat << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// |a - b| <= relative * max(|a|, |b|) + absolute, computed in double.
template <class A, class B>
::testing::AssertionResult all_close(std::span<A> a, std::span<B> b, double relative,
                                     double absolute) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " elements against " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i];
    const double y = b[i];
    if (!(std::abs(x - y) <= relative * std::max(std::abs(x), std::abs(y)) + absolute)) {
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size() << ": " << x
                                           << " against " << y << ", apart by " << std::abs(x - y);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gradwire::testing
