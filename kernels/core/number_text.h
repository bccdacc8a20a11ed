#pragma once
// Numbers in messages and specs, with all their digits.

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// The shortest text that reads back as `value`: six digits would show 0.9999999 as 1.
inline std::string text_of(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// The same, and what float32 makes of it where that is 0, 1 or infinite and the value is not:
/// "1e-50 and 0 as float32", of a value that is out of range only so.
inline std::string text_with_float(double value) {
  constexpr auto kLargest = static_cast<double>(std::numeric_limits<float>::max());
  const double size = std::fabs(value);
  const double rounded = size <= kLargest ? static_cast<double>(static_cast<float>(size))
                                          : std::numeric_limits<double>::infinity();
  const bool is_bound = rounded == 0.0 || rounded == 1.0 || rounded > kLargest;
  return is_bound && rounded != size && std::isfinite(value)
             ? concat(text_of(value), " and ", std::copysign(rounded, value), " as float32")
             : text_of(value);
}

}  // namespace gradwire
