#include "gradwire/planner/internal/bandit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "gradwire/planner/internal/median.h"

namespace gradwire::planner {

double Bandit::median(size_t arm) const {
  return times_[arm].empty() ? std::numeric_limits<double>::infinity() : median_of(times_[arm]);
}

size_t Bandit::next() const {
  std::vector<double> means;
  size_t all = 0;
  for (size_t arm = 0; arm < times_.size(); ++arm) {
    const std::vector<double>& times = times_[arm];
    if (times.empty()) {
      return arm;
    }
    all += times.size();
    means.push_back(std::accumulate(times.begin(), times.end(), 0.0) /
                    static_cast<double>(times.size()));
  }
  const auto [least, most] = std::ranges::minmax_element(means);
  const double scale = *most - *least;
  size_t chosen = 0;
  double chosen_bound = std::numeric_limits<double>::infinity();
  for (size_t arm = 0; arm < means.size(); ++arm) {
    const double bound = means[arm] - scale * std::sqrt(2 * std::log(static_cast<double>(all)) /
                                                        static_cast<double>(times_[arm].size()));
    if (bound < chosen_bound) {
      chosen = arm;
      chosen_bound = bound;
    }
  }
  return chosen;
}

size_t Bandit::best() const {
  size_t chosen = 0;
  for (size_t arm = 1; arm < times_.size(); ++arm) {
    if (median(arm) < median(chosen)) {
      chosen = arm;
    }
  }
  return chosen;
}

}  // namespace gradwire::planner
