#include "gradwire/planner/cluster.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"
#include "gradwire/planner/internal/normals.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kNames[kPatterns] = {"ring",     "tree",   "rabenseifner",
                                                "two_shot", "gather", "parameter_server"};

void check_factor(double factor, size_t worker, std::string_view what) {
  check(std::isfinite(factor) && factor > 0, "cluster: uneven[", worker, "].", what, ": ",
        text_of(factor), ", must be above 0");
}

double slowest_link(const Cluster& cluster) {
  double most = cluster.uneven.empty() ? 1 : cluster.uneven[0].link;
  for (const Worker& worker : cluster.uneven) {
    most = std::max(most, worker.link);
  }
  return most;
}

// Messages one after another; of_one: the bytes of each.
struct Messages {
  double count = 0, of_one = 0;
};

// What goes over a machine's link and over those inside it.
struct Path {
  Messages between, within;
  double side_by_side = 1;  // messages over a machine's link at the same time, each starting once
};

Path path_of(const Cluster& cluster, double bytes) {
  const auto workers = static_cast<double>(cluster.workers);
  const double inside = static_cast<double>(std::min(cluster.gpus_per_node, cluster.workers));
  const double nodes = workers / inside, others = workers - inside;
  const Messages ring_inside{2 * (inside - 1), bytes / inside};
  switch (cluster.pattern) {
    case Pattern::kRing:
      return {{2 * (nodes - 1), bytes / nodes}, ring_inside};
    case Pattern::kTree:
      return {{2 * std::ceil(std::log2(nodes)), bytes}, ring_inside};
    case Pattern::kRabenseifner: {
      const double levels = std::floor(std::log2(nodes)), cube = std::exp2(levels);
      const double folded = nodes > cube ? 2 : 0;
      const double count = 2 * levels + folded;
      const double sent = (2 * (cube - 1) / cube + folded) * bytes;
      return {{count, count > 0 ? sent / count : 0}, ring_inside};
    }
    case Pattern::kTwoShot:
      return {{2 * others, bytes / workers}, {2 * (inside - 1), bytes / workers}, inside};
    case Pattern::kGather:
      return {{others, bytes}, {inside - 1, bytes}, inside};
    case Pattern::kParameterServer: {
      const auto servers = static_cast<double>(cluster.servers);
      return {{2 * std::max(workers, servers * inside), bytes / servers}, {}};
    }
  }
  return {};
}

// What one worker's processor does of an exchange over that path.
double cpu_of(const Cluster& cluster, const Path& path, double bytes) {
  const auto inside = static_cast<double>(std::min(cluster.gpus_per_node, cluster.workers));
  Messages own = path.between;
  if (cluster.pattern == Pattern::kParameterServer) {
    const auto servers = static_cast<double>(cluster.servers);
    own = {2 * servers, bytes / servers};
  } else if (cluster.pattern != Pattern::kTwoShot && cluster.pattern != Pattern::kGather) {
    own.of_one /= inside;
  }
  return cluster.inter.cpu_seconds(own.count, own.of_one) +
         cluster.intra.cpu_seconds(path.within.count, path.within.of_one);
}

}  // namespace

std::string_view name_of(Pattern pattern) { return kNames[static_cast<size_t>(pattern)]; }

Pattern pattern_named(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    throw_unknown_name("exchange", name, kNames);
  }
  return static_cast<Pattern>(found - std::begin(kNames));
}

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
  check(cluster.servers > 0, "cluster: servers: 0, must be at least 1");
  check(cluster.draws > 0, "cluster: draws: 0, must be at least 1");
  check(cluster.jitter >= 0 && cluster.jitter <= 10, "cluster: jitter: ", text_of(cluster.jitter),
        ", must be in [0, 10], a share of the mean");
  check(cluster.uneven.empty() || cluster.uneven.size() == cluster.workers,
        "cluster: uneven: ", cluster.uneven.size(), " workers, must be none or all ",
        cluster.workers);
  check(std::isfinite(cluster.cores_per_worker) && cluster.cores_per_worker >= 0,
        "cluster: cores_per_worker: ", text_of(cluster.cores_per_worker),
        ", must be above 0, or 0 for enough");
  check(std::isfinite(cluster.threads) && cluster.threads >= 1,
        "cluster: threads: ", text_of(cluster.threads), ", must be at least 1");
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

ExchangeCost exchange_cost(const Cluster& cluster, double bytes) {
  if (cluster.workers == 1) {
    return {};
  }
  if (cluster.measured) {
    const double fixed = std::min(cluster.measured(0), cluster.measured(bytes));
    return {fixed, (cluster.measured(bytes) - fixed) * stream_share(cluster), 0};
  }
  const Path path = path_of(cluster, bytes);
  const std::string_view name = name_of(cluster.pattern);
  const double start = cluster.inter.message_seconds(0, name, 1);
  const double sends = cluster.inter.message_seconds(path.between.of_one, name, 1) - start;
  const double within =
      path.within.count * cluster.intra.message_seconds(path.within.of_one, name, 1);
  const double slowest = slowest_link(cluster);
  return {slowest * (path.between.count * start + within),
          slowest * path.between.count * path.side_by_side * sends * stream_share(cluster),
          cpu_of(cluster, path, bytes)};
}

double exchange_seconds(const Cluster& cluster, double bytes) {
  const ExchangeCost cost = exchange_cost(cluster, bytes);
  return cost.fixed_s + cost.shared_s / stream_share(cluster);
}

std::vector<Worker> deciding_workers(const Cluster& cluster, size_t draw) {
  std::vector<Worker> workers = cluster.uneven;
  if (workers.empty()) {
    workers.resize(cluster.jitter > 0 ? cluster.workers : 1);
  }
  if (cluster.jitter > 0) {
    std::seed_seq seeds{cluster.seed, cluster.seed >> 32, static_cast<uint64_t>(draw)};
    Normals normals{std::mt19937_64(seeds)};
    const double variance = std::log1p(cluster.jitter * cluster.jitter);
    for (Worker& worker : workers) {
      worker.compute *= std::exp(std::sqrt(variance) * normals.next() - variance / 2);
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
