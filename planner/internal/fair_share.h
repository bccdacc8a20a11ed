#pragma once
// Who gets how much of some cores that more is wanted of than there is.

#include <span>
#include <vector>

namespace gradwire::planner {

/// Cores that somebody can use, and over how many threads.
struct Demand {
  double cores = 0;
  double threads = 1;
};

/// Weighted max-min fairness (Bertsekas and Gallager, Data Networks, 1992, 6.5.2): there is a level
/// such that everybody gets the lesser of what is wanted and threads * level, and all that is there
/// is given away unless nobody wants it.
/// @throws nothing; cores and demands are at least 0, threads above 0.
std::vector<double> fair_shares(double cores, std::span<const Demand> demands);

}  // namespace gradwire::planner
