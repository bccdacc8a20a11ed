#pragma once
// The middle of some values.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gradwire::planner {

/// The mean of the two in the middle where their number is even. At least one value.
inline double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace gradwire::planner
