#pragma once
// The eight-bit floats of the OFP8 specification, code by code, in double precision.

#include <algorithm>
#include <cmath>
#include <vector>

namespace gradwire::reference {

/// What codes 0 to `largest_code` decode to, of a float with so many bits of exponent (biased by
/// 2^(bits-1) - 1) and of mantissa.
inline std::vector<double> small_float_values(int exponent_bits, int mantissa_bits,
                                              int largest_code) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> values;
  for (int code = 0; code <= largest_code; ++code) {
    const int exponent = code >> mantissa_bits;
    const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                   : std::ldexp(1.0 + fraction, exponent - bias));
  }
  return values;
}

/// The code whose value is nearest to `y`, which is not negative; of two the even one.
inline int nearest_code(const std::vector<double>& values, double y) {
  const auto above = std::ranges::lower_bound(values, y);
  if (above == values.end()) {
    return static_cast<int>(values.size()) - 1;
  }
  const auto code = static_cast<int>(above - values.begin());
  if (code == 0 || *above == y) {
    return code;
  }
  const double up = *above - y;
  const double down = y - *(above - 1);
  return up < down || (up == down && code % 2 == 0) ? code : code - 1;
}

}  // namespace gradwire::reference
