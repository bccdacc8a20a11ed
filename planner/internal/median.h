#pragma once
// The middle of some values, and of some seconds.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gradwire::planner {

/// The mean of the two in the middle where their number is even. At least one value.
inline double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// What something takes when nothing comes between: the median of the faster half. A user may
/// evaluate or save between any two steps, and of the two steps of a trial one may have met that.
inline double typical_of(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  seconds.resize((seconds.size() + 1) / 2);
  return median_of(std::move(seconds));
}

}  // namespace gradwire::planner
