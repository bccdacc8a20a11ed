#pragma once
// State of eight bits as its table has it, in double precision: what every code is, the scale of a
// block, and the code of a number by looking for its neighbours. Nothing of the library is
// included.

#include <algorithm>
#include <cmath>
#include <vector>

namespace gradwire::reference {

/// What the codes 0, 1, .. are of a scale of 1, without their sign: eight to an octave, the last
/// one 1.875, and 0.
inline std::vector<double> code_values(bool has_sign) {
  std::vector<double> values{0.0};
  for (int code = 1; code < (has_sign ? 128 : 256); ++code) {
    values.push_back(std::ldexp(8 + code % 8, code / 8 - (has_sign ? 18 : 34)));
  }
  return values;
}

/// Of a block whose largest magnitude is `largest`.
inline double code_scale(double largest) {
  double scale = std::ldexp(1.0, -87);
  while (largest > 1.875 * scale && scale < std::ldexp(1.0, 127)) {
    scale *= 2.0;
  }
  return largest == 0.0 ? 0.0 : scale;
}

struct Code {
  int code;
  bool certain;  ///< it would be the same for a number that differs by a part in 10^5
};

/// The code of y >= 0, of a scale of 1, without its sign: the upper neighbour where y's place
/// between the two and `draw`, in (0, 1), reach 1 together.
inline Code code_of(const std::vector<double>& values, bool has_sign, double y, double draw) {
  const auto above = std::ranges::upper_bound(values, y);
  const int lower = static_cast<int>(above - values.begin()) - 1;
  if (above == values.end()) {
    return {lower, true};
  }
  if (!has_sign && lower == 0 && y > 0.0) {
    return {1, true};
  }
  const double place = (y - values[lower]) / (*above - values[lower]);
  // A part in 10^5 of y is at most 16 times that of the distance of codes.
  return {place + draw >= 1.0 ? lower + 1 : lower, std::fabs(place + draw - 1.0) > 1.6e-4};
}

}  // namespace gradwire::reference
