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
  std::vector<size_t> arms;
  std::vector<double> means;
  size_t all = 0;
  for (size_t arm = 0; arm < times_.size(); ++arm) {
    const std::vector<double>& times = times_[arm];
    if (!in_[arm]) {
      continue;
    }
    if (times.empty()) {
      return arm;
    }
    all += times.size();
    arms.push_back(arm);
    means.push_back(std::accumulate(times.begin(), times.end(), 0.0) /
                    static_cast<double>(times.size()));
  }
  const auto [least, most] = std::ranges::minmax_element(means);
  const double scale = *most - *least;
  size_t chosen = 0;
  double chosen_bound = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < arms.size(); ++i) {
    const auto turns_of = static_cast<double>(times_[arms[i]].size());
    const double bound =
        means[i] - scale * std::sqrt(2 * std::log(static_cast<double>(all)) / turns_of);
    if (bound < chosen_bound) {
      chosen = arms[i];
      chosen_bound = bound;
    }
  }
  return chosen;
}

size_t Bandit::best() const {
  size_t chosen = times_.size();
  for (size_t arm = 0; arm < times_.size(); ++arm) {
    if (in_[arm] && (chosen == times_.size() || median(arm) < median(chosen))) {
      chosen = arm;
    }
  }
  return chosen;
}

}  // namespace gradwire::planner
