#pragma once
// Which of a few arms to try next: UCB1 over times.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gradwire::planner {

/// Times are seconds; the shortest is best. Deterministic: of equals the first arm.
class Bandit {
 public:
  explicit Bandit(size_t arms) : times_(arms), in_(arms, true) {}

  void add(size_t arm, double seconds) { times_[arm].push_back(seconds); }
  /// It has no further turn and is not the best. Caller's duty: one remains.
  void drop(size_t arm) { in_[arm] = false; }
  size_t left() const { return static_cast<size_t>(std::ranges::count(in_, true)); }
  /// Of those not dropped the arm with the least mean - scale * sqrt(2 ln N / n): arms without a
  /// turn first (Auer, Cesa-Bianchi, Fischer, 2002; the scale is the spread of the arms' means).
  size_t next() const;
  /// The arm with the least median, among those with a turn that are not dropped.
  size_t best() const;
  double median(size_t arm) const;  ///< infinity before its first turn
  size_t turns(size_t arm) const { return times_[arm].size(); }

 private:
  std::vector<std::vector<double>> times_;
  std::vector<bool> in_;
};

}  // namespace gradwire::planner
