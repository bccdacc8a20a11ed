#pragma once
// Standard normal numbers that are the same with every standard library.

#include <cmath>
#include <numbers>
#include <random>

namespace gradwire::planner {

/// Standard normal numbers. std::normal_distribution differs between standard libraries; the
/// engine's bits do not.
class Normals {
 public:
  explicit Normals(const std::mt19937_64& bits) : bits_(bits) {}

  double next() {
    if (has_second_) {
      has_second_ = false;
      return second_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    second_ = radius * std::sin(angle);
    has_second_ = true;
    return radius * std::cos(angle);
  }

 private:
  double uniform() {  // in (0, 1]
    return (static_cast<double>(bits_() >> 11) + 1) * 0x1p-53;
  }

  std::mt19937_64 bits_;
  double second_ = 0;
  bool has_second_ = false;
};

}  // namespace gradwire::planner
