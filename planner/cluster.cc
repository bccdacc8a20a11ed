#include "gradwire/planner/cluster.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

// Messages between machines of one exchange over one stream: their starts, and what they take of
// the whole rate.
ExchangeCost messages(const Cluster& cluster, double count, double bytes,
                      std::string_view exchange) {
  const LinkCost& link = cluster.inter;
  const double start = link.message_seconds(0, exchange, 1);
  return {count * start,
          count * (link.message_seconds(bytes, exchange, 1) - start) * stream_share(cluster)};
}

void check_factor(double factor, size_t worker, std::string_view what) {
  check(std::isfinite(factor) && factor > 0, "cluster: uneven[", worker, "].", what, ": ",
        text_of(factor), ", must be above 0");
}

// The same from every standard library, which std::normal_distribution is not.
double normal(std::mt19937_64& random) {
  const auto uniform = [&] {  // in (0, 1]
    return (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double slowest_link(const Cluster& cluster) {
  double most = cluster.uneven.empty() ? 1 : cluster.uneven[0].link;
  for (const Worker& worker : cluster.uneven) {
    most = std::max(most, worker.link);
  }
  return most;
}

ExchangeCost sum_cost(const Cluster& cluster, double bytes) {
  constexpr std::string_view kRing = "ring";
  const auto inside = static_cast<double>(std::min(cluster.gpus_per_node, cluster.workers));
  const double nodes = static_cast<double>(cluster.workers) / inside;
  const double within = 2 * (inside - 1) * cluster.intra.message_seconds(bytes / inside, kRing, 1);
  ExchangeCost cost = messages(cluster, 2 * (nodes - 1), bytes / nodes, kRing);
  cost.fixed_s += within;
  return cost;
}

ExchangeCost gather_cost(const Cluster& cluster, double bytes) {
  constexpr std::string_view kGather = "gather";
  const auto inside = static_cast<double>(std::min(cluster.gpus_per_node, cluster.workers));
  const double others = static_cast<double>(cluster.workers) - inside;
  // A machine's workers send side by side: each start once, all bytes over one link.
  ExchangeCost cost = messages(cluster, others, bytes, kGather);
  cost.shared_s *= inside;
  cost.fixed_s += (inside - 1) * cluster.intra.message_seconds(bytes, kGather, 1);
  return cost;
}

}  // namespace

void validate(const Cluster& cluster) {
  check(cluster.workers > 0, "cluster: workers: 0, must be at least 1");
  check(cluster.gpus_per_node > 0, "cluster: gpus_per_node: 0, must be at least 1");
  check(cluster.workers <= cluster.gpus_per_node || cluster.workers % cluster.gpus_per_node == 0,
        "cluster: ", cluster.workers, " workers, must be a multiple of gpus_per_node, ",
        cluster.gpus_per_node, ", or at most as many");
  validate(cluster.inter);
  validate(cluster.intra);
  for (const LinkCost* link : {&cluster.inter, &cluster.intra}) {
    check(link->alpha_s <= 60, "link ", link->name, ": a start-up of ", text_of(link->alpha_s),
          " s, must be at most 60 s; was it written in microseconds?");
  }
  check(cluster.streams > 0, "cluster: streams: 0, must be at least 1");
  check(cluster.draws > 0, "cluster: draws: 0, must be at least 1");
  check(cluster.jitter >= 0 && cluster.jitter <= 10, "cluster: jitter: ", text_of(cluster.jitter),
        ", must be in [0, 10], a share of the mean");
  check(cluster.uneven.empty() || cluster.uneven.size() == cluster.workers,
        "cluster: uneven: ", cluster.uneven.size(), " workers, must be none or all ",
        cluster.workers);
  for (size_t w = 0; w < cluster.uneven.size(); ++w) {
    check_factor(cluster.uneven[w].compute, w, "compute");
    check_factor(cluster.uneven[w].input, w, "input");
    check_factor(cluster.uneven[w].link, w, "link");
  }
}

double stream_share(const Cluster& cluster) {
  const LinkCost& link = cluster.inter;
  return link.effective_bytes_per_s(1) / (link.efficiency * link.bytes_per_s);
}

ExchangeCost exchange_cost(const Cluster& cluster, double bytes, Combine combine) {
  if (cluster.workers == 1) {
    return {};
  }
  if (cluster.measured) {
    const double fixed = std::min(cluster.measured(0), cluster.measured(bytes));
    return {fixed, (cluster.measured(bytes) - fixed) * stream_share(cluster)};
  }
  const ExchangeCost even =
      combine == Combine::kSum ? sum_cost(cluster, bytes) : gather_cost(cluster, bytes);
  const double slowest = slowest_link(cluster);
  return {even.fixed_s * slowest, even.shared_s * slowest};
}

double exchange_seconds(const Cluster& cluster, double bytes, Combine combine) {
  const ExchangeCost cost = exchange_cost(cluster, bytes, combine);
  return cost.fixed_s + cost.shared_s / stream_share(cluster);
}

std::vector<Worker> deciding_workers(const Cluster& cluster, size_t draw) {
  std::vector<Worker> workers = cluster.uneven;
  if (workers.empty()) {
    workers.resize(cluster.jitter > 0 ? cluster.workers : 1);
  }
  if (cluster.jitter > 0) {
    std::seed_seq seeds{cluster.seed, cluster.seed >> 32, static_cast<uint64_t>(draw)};
    std::mt19937_64 random(seeds);
    const double variance = std::log1p(cluster.jitter * cluster.jitter);
    for (Worker& worker : workers) {
      worker.compute *= std::exp(std::sqrt(variance) * normal(random) - variance / 2);
    }
  }
  std::stable_sort(workers.begin(), workers.end(), [](const Worker& a, const Worker& b) {
    return a.compute != b.compute ? a.compute > b.compute : a.input > b.input;
  });
  std::vector<Worker> deciding;
  for (const Worker& worker : workers) {
    if (deciding.empty() || worker.input > deciding.back().input) {
      deciding.push_back(worker);
    }
  }
  return deciding;
}

}  // namespace gradwire::planner
