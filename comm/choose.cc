#include "gradwire/comm/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gradwire {
namespace {

constexpr double kFrame = kFrameHeaderBytes;
constexpr double kKept = 1.25;  // of a selection's entries, by the owners of two_shot

/// The load in the formulas' terms: start-ups and bytes one after another on the busiest rank.
struct Terms {
  double ranks, payload, dense, growth;
  double levels;  ///< floor(log2 P)
  bool folds;     ///< P is no power of two
};

MessagePath of_gather(const Terms& t) {
  return {t.ranks - 1, (t.ranks - 1) * (t.payload + kFrame)};
}

MessagePath of_all_reduce(const Terms& t) {
  return {2 * (t.ranks - 1), (t.ranks - 1) * (2 * t.dense / t.ranks + 2 * kFrame)};
}

MessagePath of_rabenseifner(const Terms& t) {
  const double cube = std::exp2(t.levels);
  MessagePath path{2 * t.levels, 2 * t.dense * (cube - 1) / cube + 2 * kFrame * t.levels};
  if (t.folds) {
    path.messages += 2;
    path.bytes += 2 * (t.dense + kFrame);
  }
  return path;
}

MessagePath of_two_shot(const Terms& t) {
  return {2 * (t.ranks - 1),
          (t.ranks - 1) * ((1 + t.growth) * t.payload / t.ranks + 2 * kFrame)};
}

MessagePath of_gtopk(const Terms& t) {
  const double steps = t.levels + (t.folds ? 2 : 0);
  return {steps, steps * (t.payload + kFrame)};
}

struct Formula {
  std::string_view exchange;
  MessagePath (*path)(const Terms&);
};

constexpr Formula kFormulas[] = {
    {"dense", of_all_reduce}, {"sum", of_all_reduce},
    {"ring", of_all_reduce},  {"rabenseifner", of_rabenseifner},
    {"gather", of_gather},    {"two_shot", of_two_shot},
    {"gtopk", of_gtopk},
};

constexpr std::string_view kByNode = "hierarchical";

MessagePath (*path_of(std::string_view exchange))(const Terms&) {
  std::vector<std::string_view> known;
  for (const Formula& formula : kFormulas) {
    if (formula.exchange == exchange) {
      return formula.path;
    }
    known.push_back(formula.exchange);
  }
  known.push_back(kByNode);
  throw_unknown_name("exchange cost", exchange, known);
}

/// Of `world_size` ranks that each have this share of the group.
Terms terms_of(const ExchangeLoad& load, int world_size, double share) {
  const bool selects = load.density < 1;
  const double together = load.union_density > 0 ? load.union_density
                                                 : independent_union(load.density, world_size);
  const double payload = share * static_cast<double>(load.payload_bytes) / load.rounds;
  const auto ranks = static_cast<unsigned>(world_size);
  return {.ranks = static_cast<double>(world_size),
          .payload = payload,
          .dense = selects ? share * sizeof(float) * static_cast<double>(load.numel) : payload,
          .growth = selects ? std::min(together / load.density, kKept) : 1.0,
          .levels = static_cast<double>(std::bit_width(ranks) - 1),
          .folds = !std::has_single_bit(ranks)};
}

ExchangePath path_by_node(const ExchangeLoad& load) {
  const double per_node = load.ranks_per_node;
  return {
      .between = path_of(load.between_nodes)(
          terms_of(load, load.world_size / load.ranks_per_node, 1 / per_node)),
      .within = {2 * (per_node - 1),
                 (per_node - 1) * (2 * sizeof(float) * static_cast<double>(load.numel) / per_node +
                                   2 * kFrame + sizeof(int32_t))}};
}

ExchangePath unchecked_path(std::string_view exchange, const ExchangeLoad& load) {
  if (exchange == kByNode) {
    return path_by_node(load);
  }
  const MessagePath one = path_of(exchange)(terms_of(load, load.world_size, 1));
  return {.between = {load.rounds * one.messages, load.rounds * one.bytes}, .within = {}};
}

double seconds_of(std::string_view exchange, const ExchangeLoad& load) {
  const ExchangePath path = unchecked_path(exchange, load);
  double seconds = path.between.seconds(load.alpha_s, load.bytes_per_s);
  if (exchange == kByNode) {
    seconds += path.within.seconds(load.node_alpha_s, load.node_bytes_per_s);
  }
  return seconds;
}

void check_nodes(const ExchangeLoad& load) {
  check(load.ranks_per_node >= 1 && load.world_size % load.ranks_per_node == 0,
        "exchange cost: ranks_per_node is ", load.ranks_per_node,
        ", must divide the world size, ", load.world_size);
}

void check_line_within(const ExchangeLoad& load) {
  check(std::isfinite(load.node_alpha_s) && load.node_alpha_s >= 0,
        "exchange cost: alpha within a node is ", load.node_alpha_s, " s, must be at least 0");
  check(std::isfinite(load.node_bytes_per_s) && load.node_bytes_per_s > 0,
        "exchange cost: rate within a node is ", load.node_bytes_per_s,
        " bytes/s, must be positive");
}

void check_line(const ExchangeLoad& load) {
  check(std::isfinite(load.alpha_s) && load.alpha_s >= 0, "exchange cost: alpha is ", load.alpha_s,
        " s, must be at least 0");
  check(std::isfinite(load.bytes_per_s) && load.bytes_per_s > 0, "exchange cost: rate is ",
        load.bytes_per_s, " bytes/s, must be positive");
}

void check_load(const ExchangeLoad& load) {
  check(load.world_size >= 1, "exchange cost: world_size is ", load.world_size,
        ", must be at least 1");
  check(load.rounds >= 1, "exchange cost: rounds is ", load.rounds, ", must be at least 1");
  check(load.density > 0 && load.density <= 1, "exchange cost: density is ", load.density,
        ", must be in (0, 1]");
  check(load.union_density >= 0 && load.union_density <= 1, "exchange cost: union density is ",
        load.union_density, ", must be in [0, 1]");
}

}  // namespace

double independent_union(double density, int world_size) {
  return 1 - std::pow(1 - density, world_size);
}

std::vector<ExchangeCost> exchange_costs(const ExchangeLoad& load,
                                         std::span<const std::string_view> candidates) {
  check_line(load);
  check_load(load);
  check(!candidates.empty(), "exchange cost: 0 candidates, expected at least one");
  if (std::ranges::find(candidates, kByNode) != candidates.end()) {
    check_nodes(load);
    check_line_within(load);
  }
  std::vector<ExchangeCost> costs;
  for (const std::string_view candidate : candidates) {
    costs.push_back({candidate, seconds_of(candidate, load)});
  }
  std::stable_sort(costs.begin(), costs.end(), [](const ExchangeCost& a, const ExchangeCost& b) {
    return a.seconds < b.seconds;
  });
  return costs;
}

ExchangePath exchange_path(std::string_view exchange, const ExchangeLoad& load) {
  check_load(load);
  if (exchange == kByNode) {
    check_nodes(load);
  }
  return unchecked_path(exchange, load);
}

std::string_view choose_exchange(std::span<const ExchangeCost> costs, MeanBits allowed) {
  const ExchangeCost* in_rank_order = nullptr;
  const ExchangeCost* other = nullptr;
  for (const ExchangeCost& cost : costs) {
    const ExchangeCost*& cheapest = find_exchange(cost.exchange).rank_order ? in_rank_order : other;
    if (cheapest == nullptr || cost.seconds < cheapest->seconds) {
      cheapest = &cost;
    }
  }
  other = allowed == MeanBits::kSameOnAllRanks ? other : nullptr;
  check(in_rank_order != nullptr || other != nullptr, "exchange choice: none of ", costs.size(),
        " candidates has a mean that is allowed, expected at least one");
  const bool clearly = in_rank_order == nullptr ||
                       (other != nullptr &&
                        other->seconds < (1 - kClearGain) * in_rank_order->seconds);
  return (clearly ? other : in_rank_order)->exchange;
}

std::vector<std::string_view> exchanges_that_carry(const Compressor& compressor,
                                                   DeviceType device) {
  std::vector<std::string_view> names;
  for (const ExchangeRow& row : exchange_registry()) {
    if (carries(row, compressor, device) && !row.by_node) {
      names.push_back(row.name);
    }
  }
  return names;
}

}  // namespace gradwire
