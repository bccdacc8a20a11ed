#include "gradwire/planner/internal/fair_share.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace gradwire::planner {

std::vector<double> fair_shares(double cores, std::span<const Demand> demands) {
  std::vector<size_t> modest_first(demands.size());
  std::iota(modest_first.begin(), modest_first.end(), size_t{0});
  std::ranges::stable_sort(modest_first, {}, [&](size_t i) {  // by the level at which one has all
    return demands[i].cores / demands[i].threads;
  });
  double left = cores, threads = 0, wanted = 0;
  for (const Demand& demand : demands) {
    threads += demand.threads;
    wanted += demand.cores;
  }
  std::vector<double> shares(demands.size());
  const bool enough = wanted <= cores;  // then nothing is rounded
  for (const size_t i : modest_first) {
    const Demand& demand = demands[i];
    shares[i] = enough ? demand.cores
                       : std::min(demand.cores, std::max(0.0, left * demand.threads / threads));
    left -= shares[i];
    threads -= demand.threads;
  }
  return shares;
}

}  // namespace gradwire::planner
