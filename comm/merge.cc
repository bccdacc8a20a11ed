#include "gradwire/comm/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace gradwire {
namespace {

void check_not_negative(const char* what, double value) {
  check(std::isfinite(value) && value >= 0, "merge: ", what, " is ", value,
        ", must be finite and not negative");
}

// In the order they become ready; of those ready together the last of the forward pass first.
std::vector<GradientTiming> sorted(std::span<const GradientTiming> gradients) {
  std::vector<GradientTiming> order(gradients.begin(), gradients.end());
  std::sort(order.begin(), order.end(), [](const GradientTiming& a, const GradientTiming& b) {
    return a.ready_s != b.ready_s ? a.ready_s < b.ready_s : a.parameter > b.parameter;
  });
  return order;
}

void check_gradients(std::span<const GradientTiming> gradients, const BucketCost& cost) {
  check(!gradients.empty(), "merge: 0 gradients, expected at least one");
  check_not_negative("startup_s", cost.startup_s);
  check_not_negative("seconds_per_byte", cost.seconds_per_byte);
  std::vector<ParamId> ids;
  for (const GradientTiming& gradient : gradients) {
    check_not_negative("ready_s", gradient.ready_s);
    ids.push_back(gradient.parameter);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  check(twice == ids.end(), "merge: parameter ", twice == ids.end() ? 0 : *twice,
        " is given twice, expected once");
}

/// The best way to have exchanged the first gradients.
struct Best {
  double end_s = 0;
  size_t buckets = 0;
  size_t last_begin = 0;  // of the last bucket
};

// [begin, end) of each bucket among the ordered gradients.
std::vector<std::pair<size_t, size_t>> best_partition(std::span<const GradientTiming> order,
                                                      const MergeOptions& options) {
  std::vector<Best> best(order.size() + 1);
  for (size_t j = 1; j <= order.size(); ++j) {
    best[j].end_s = std::numeric_limits<double>::infinity();
    size_t bytes = 0;
    for (size_t i = j; i-- > 0;) {
      bytes += order[i].bytes;
      if (bytes > options.most_bytes && i + 1 < j) {
        break;
      }
      const double end_s = std::max(best[i].end_s, order[j - 1].ready_s) + options.cost.startup_s +
                           static_cast<double>(bytes) * options.cost.seconds_per_byte;
      const Best found{end_s, best[i].buckets + 1, i};
      if (std::pair(found.end_s, found.buckets) < std::pair(best[j].end_s, best[j].buckets)) {
        best[j] = found;
      }
    }
  }
  std::vector<std::pair<size_t, size_t>> partition;
  for (size_t end = order.size(); end > 0; end = best[end].last_begin) {
    partition.emplace_back(best[end].last_begin, end);
  }
  std::reverse(partition.begin(), partition.end());
  return partition;
}

/// A bucket as the order of leaving sees it.
struct Waiting {
  std::vector<ParamId> parameters;
  double ready_s = 0;
  double takes_s = 0;
};

// Whenever the line is free, of the buckets that are ready by then the one needed first; if there
// is none, the next to be ready. The line rests no longer than in the order of readiness.
void order_by_need(std::vector<Waiting>& buckets) {
  double now_s = 0;
  for (size_t at = 0; at < buckets.size(); ++at) {
    const auto rest = buckets.begin() + static_cast<std::ptrdiff_t>(at);
    now_s = std::max(now_s, rest->ready_s);  // the rest are in the order of readiness
    const auto waiting = std::find_if(
        rest, buckets.end(), [now_s](const Waiting& bucket) { return bucket.ready_s > now_s; });
    const auto first = std::min_element(rest, waiting, [](const Waiting& a, const Waiting& b) {
      return std::ranges::min(a.parameters) < std::ranges::min(b.parameters);
    });
    std::rotate(rest, first, first + 1);
    now_s += rest->takes_s;
  }
}

}  // namespace

std::vector<std::vector<ParamId>> merge_gradients(std::span<const GradientTiming> gradients,
                                                  const MergeOptions& options) {
  check_gradients(gradients, options.cost);
  const std::vector<GradientTiming> order = sorted(gradients);
  std::vector<Waiting> waiting;
  for (const auto& [begin, end] : best_partition(order, options)) {
    Waiting& bucket = waiting.emplace_back();
    bucket.takes_s = options.cost.startup_s;
    for (size_t i = begin; i < end; ++i) {
      bucket.parameters.push_back(order[i].parameter);
      bucket.takes_s += static_cast<double>(order[i].bytes) * options.cost.seconds_per_byte;
    }
    bucket.ready_s = order[end - 1].ready_s;
  }
  if (options.order == LeavingOrder::kNeeded) {
    order_by_need(waiting);
  }
  std::vector<std::vector<ParamId>> buckets;
  for (Waiting& bucket : waiting) {
    buckets.push_back(std::move(bucket.parameters));
  }
  return buckets;
}

double exchange_end_s(std::span<const GradientTiming> gradients,
                      std::span<const std::vector<ParamId>> buckets, const BucketCost& cost) {
  std::map<ParamId, GradientTiming> timings;
  for (const GradientTiming& gradient : gradients) {
    timings[gradient.parameter] = gradient;
  }
  double end_s = 0;
  for (const std::vector<ParamId>& bucket : buckets) {
    double ready_s = 0, bytes = 0;
    for (const ParamId p : bucket) {
      check(timings.contains(p), "exchange_end_s: parameter ", p, " has no timing, expected one");
      ready_s = std::max(ready_s, timings[p].ready_s);
      bytes += static_cast<double>(timings[p].bytes);
    }
    end_s = std::max(end_s, ready_s) + cost.startup_s + bytes * cost.seconds_per_byte;
  }
  return end_s;
}

}  // namespace gradwire
