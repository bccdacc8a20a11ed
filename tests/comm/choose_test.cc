// The switch rule against costs worked out by hand and the points where the formulas cross.

#include "gradwire/comm/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace gradwire {
namespace {

using Names = std::vector<std::string_view>;

/// 100 us, 125 MB/s (1 Gbit/s), a selection of `density` of 10M floats at 8 bytes an entry.
ExchangeLoad load_of(int world_size, double density, double alpha_s = 1e-4) {
  return {.alpha_s = alpha_s,
          .bytes_per_s = 125e6,
          .world_size = world_size,
          .numel = 10'000'000,
          .payload_bytes = static_cast<size_t>(8 * density * 10e6),
          .density = density,
          .union_density = 0};
}

std::map<std::string_view, double> costs_of(const ExchangeLoad& load, const Names& names) {
  std::map<std::string_view, double> seconds;
  for (const ExchangeCost& cost : exchange_costs(load, names)) {
    seconds[cost.exchange] = cost.seconds;
  }
  return seconds;
}

std::string_view cheapest(const ExchangeLoad& load, const Names& names) {
  return exchange_costs(load, names).front().exchange;
}

TEST(Choose, CostsAreTheHandComputedOnes) {
  // 4 ranks, 1 %: B = 800 kB (6.4 ms), dense 40 MB.
  const auto four = costs_of(load_of(4, 0.01),
                             {"gather", "two_shot", "gtopk", "ring", "sum", "dense", "rabenseifner"});
  EXPECT_NEAR(four.at("gather"), 3e-4 + 3 * 800064 / 125e6, 1e-12);
  // Four independent selections of 1 % are 3.94 % together: owners keep 1.25 times 1 %.
  EXPECT_NEAR(four.at("two_shot"), 6e-4 + (2.25 * 600000 + 384) / 125e6, 1e-12);
  EXPECT_NEAR(four.at("gtopk"), 2e-4 + 2 * 800064 / 125e6, 1e-12);
  EXPECT_NEAR(four.at("ring"), 6e-4 + (60e6 + 384) / 125e6, 1e-12);
  EXPECT_EQ(four.at("sum"), four.at("ring"));
  EXPECT_EQ(four.at("dense"), four.at("ring"));
  EXPECT_NEAR(four.at("rabenseifner"), 4e-4 + (60e6 + 256) / 125e6, 1e-12);

  // 6 ranks: four of them form the cube, two are folded in before it and told after it.
  const auto six = costs_of(load_of(6, 0.01), {"rabenseifner", "gtopk"});
  EXPECT_NEAR(six.at("rabenseifner"), 6e-4 + (60e6 + 256 + 2 * (40e6 + 64)) / 125e6, 1e-12);
  EXPECT_NEAR(six.at("gtopk"), 4e-4 + 4 * 800064 / 125e6, 1e-12);

  // Quantised to 5 MB: nothing is selected, both shots carry the same.
  ExchangeLoad quantised = load_of(8, 1);
  quantised.payload_bytes = 5'000'000;
  const auto eight = costs_of(quantised, {"two_shot", "gather", "dense"});
  EXPECT_NEAR(eight.at("two_shot"), 14e-4 + (2 * 7 * 625000 + 7 * 128) / 125e6, 1e-12);
  EXPECT_NEAR(eight.at("gather"), 7e-4 + 7 * 5000064 / 125e6, 1e-12);
  EXPECT_NEAR(eight.at("dense"), eight.at("two_shot"), 1e-12);

  for (const auto& [name, seconds] : costs_of(load_of(1, 0.01), {"gather", "two_shot", "ring",
                                                               "rabenseifner", "gtopk"})) {
    EXPECT_EQ(seconds, 0.0) << name << " with one rank";
  }
}

TEST(Choose, GatherBeatsDenseBelowTwoWOverEP) {
  for (const int ranks : {2, 8, 64, 256}) {
    const double crossing = 2 * 4.0 / (8 * ranks);  // 1 / P at 8 bytes an entry
    if (crossing < 1) {
      EXPECT_EQ(cheapest(load_of(ranks, 0.99 * crossing, 0), {"ring", "gather"}), "gather") << ranks;
      EXPECT_EQ(cheapest(load_of(ranks, std::min(1.01 * crossing, 0.999), 0), {"ring", "gather"}),
                "ring")
          << ranks;
    }
  }
}

TEST(Choose, TwoShotBeatsDenseWhereBothShotsAreShorter) {
  // (d + 1.25 d) e < 2 w: 44.4 % at 8 bytes an entry.
  const double crossing = 8.0 / (2.25 * 8);
  EXPECT_EQ(cheapest(load_of(8, 0.99 * crossing, 0), {"ring", "two_shot"}), "two_shot");
  EXPECT_EQ(cheapest(load_of(8, 1.01 * crossing, 0), {"ring", "two_shot"}), "ring");
  // All ranks chose the same: the second shot is as long as the first.
  ExchangeLoad overlap = load_of(8, 0.49, 0);
  overlap.union_density = 0.49;
  EXPECT_EQ(cheapest(overlap, {"ring", "two_shot"}), "two_shot");
  overlap.density = overlap.union_density = 0.51;
  overlap.payload_bytes = 40'800'000;
  EXPECT_EQ(cheapest(overlap, {"ring", "two_shot"}), "ring");
}

TEST(Choose, GatherBeatsTwoShotForFewRanksOrSmallPayloads) {
  // Bytes alone: (P-1) B against (P-1) / P 2.25 B.
  EXPECT_EQ(cheapest(load_of(2, 0.01, 0), {"two_shot", "gather"}), "gather");
  EXPECT_EQ(cheapest(load_of(3, 0.01, 0), {"two_shot", "gather"}), "two_shot");
  // With start-ups: (P-1) (1 - 2.25 / P) B / rate > (P-1) alpha, here B > alpha rate / 0.4375.
  ExchangeLoad load = load_of(4, 0.01);
  const double crossing = 1e-4 * 125e6 / 0.4375;
  load.payload_bytes = static_cast<size_t>(0.98 * crossing);
  EXPECT_EQ(cheapest(load, {"two_shot", "gather"}), "gather");
  load.payload_bytes = static_cast<size_t>(1.02 * crossing);
  EXPECT_EQ(cheapest(load, {"two_shot", "gather"}), "two_shot");
}

TEST(Choose, RabenseifnerWinsWhereStartUpsCount) {
  ExchangeLoad load = load_of(16, 1);
  load.payload_bytes = 1000;
  EXPECT_EQ(cheapest(load, {"ring", "rabenseifner"}), "rabenseifner");
  load.world_size = 15;  // folding sends everything twice more
  load.payload_bytes = 40'000'000;
  EXPECT_EQ(cheapest(load, {"ring", "rabenseifner"}), "ring");
}

TEST(Choose, TheUnionThatWasSeenCountsNotTheOneExpected) {
  ExchangeLoad load = load_of(4, 0.1, 0);
  const double expected = costs_of(load, {"two_shot"}).at("two_shot");
  load.union_density = 0.1;  // all ranks chose alike
  EXPECT_NEAR(costs_of(load, {"two_shot"}).at("two_shot") / expected, 2 / 2.25, 1e-4);
  EXPECT_NEAR(independent_union(0.01, 4), 0.03940399, 1e-12);
  EXPECT_NEAR(independent_union(0.01, 8), 0.0772553056, 1e-9);
}

TEST(Choose, OrdersAllCandidatesAndKeepsTheFirstOfEquals) {
  const auto costs = exchange_costs(load_of(4, 0.01), Names{"sum", "gather", "ring", "two_shot"});
  Names order;
  for (const ExchangeCost& cost : costs) {
    order.push_back(cost.exchange);
  }
  EXPECT_EQ(order, (Names{"two_shot", "gather", "sum", "ring"}));
}

TEST(Choose, EveryRowOfTheRegistryHasAFormula) {
  ExchangeLoad load = load_of(4, 0.01);
  load.ranks_per_node = 2;
  load.node_bytes_per_s = 1e9;
  load.between_nodes = "gather";
  for (const ExchangeRow& row : exchange_registry()) {
    EXPECT_GT(costs_of(load, {row.name}).at(row.name), 0.0) << row.name;
  }
}

/// The formulas of choose.h, written down once more, to the letter.
double by_formula(std::string_view name, const ExchangeLoad& l) {
  const double P = l.world_size, n = static_cast<double>(l.numel),
               B = static_cast<double>(l.payload_bytes), a = l.alpha_s, b = 1 / l.bytes_per_s;
  const double D = l.density < 1 ? 4 * n : B;
  double q = 0, Q = 1;
  for (; 2 * Q <= P; Q *= 2) {
    q += 1;
  }
  if (name == "gather") {
    return (P - 1) * a + (P - 1) * (B + 64) * b;
  }
  if (name == "dense" || name == "sum" || name == "ring") {
    return 2 * (P - 1) * a + (P - 1) * (2 * D / P + 128) * b;
  }
  if (name == "rabenseifner") {
    return 2 * q * a + (2 * D * (Q - 1) / Q + 128 * q) * b + (P > Q ? 2 * (a + (D + 64) * b) : 0);
  }
  if (name == "two_shot") {
    double not_sent = 1;
    for (int r = 0; r < l.world_size; ++r) {
      not_sent *= 1 - l.density;
    }
    const double u = l.union_density > 0 ? l.union_density : 1 - not_sent;
    const double f = l.density < 1 ? std::min(u / l.density, 1.25) : 1;
    return 2 * (P - 1) * a + (P - 1) * ((1 + f) * B / P + 128) * b;
  }
  if (name == "gtopk") {
    return (q + (P > Q ? 2 : 0)) * (a + (B + 64) * b);
  }
  const auto L = static_cast<size_t>(l.ranks_per_node);  // hierarchical
  ExchangeLoad between = l;
  between.world_size /= l.ranks_per_node;
  between.numel /= L;
  between.payload_bytes /= L;
  const double within = 2 * static_cast<double>(L - 1) * l.node_alpha_s +
                        static_cast<double>(L - 1) * (8 * n / static_cast<double>(L) + 132) /
                            l.node_bytes_per_s;
  return within + by_formula(l.between_nodes, between);
}

/// Point `index` of a grid: a value of each list in turn.
struct GridPoint {
  size_t index;
  double pick(std::initializer_list<double> values) {
    const double value = values.begin()[index % values.size()];
    index /= values.size();
    return value;
  }
};

ExchangeLoad grid_load(size_t index) {
  GridPoint point{index};
  ExchangeLoad load;
  load.world_size = static_cast<int>(point.pick({2, 3, 4, 6, 8, 16, 24, 64}));
  load.alpha_s = point.pick({0, 1e-5, 1e-4, 1e-2});
  load.bytes_per_s = point.pick({1e6, 125e6, 1e10});
  load.numel = static_cast<size_t>(point.pick({4096, 1 << 20, 1 << 26}));
  load.density = point.pick({0.001, 0.01, 0.2, 1});
  load.union_density = std::min(1.0, load.density * point.pick({0, 1.1, 100}));
  load.ranks_per_node = static_cast<int>(point.pick({1, 2, 8}));
  // A multiple of 8, to be divided among the ranks of a node.
  const double bytes = (load.density < 1 ? 8 * load.density : 4) * static_cast<double>(load.numel);
  load.payload_bytes = static_cast<size_t>(bytes) / 8 * 8;
  load.node_alpha_s = load.alpha_s / 10;
  load.node_bytes_per_s = 20 * load.bytes_per_s;
  const bool many = load.world_size / load.ranks_per_node >= 4;
  load.between_nodes = load.density == 1 ? "dense" : many ? "two_shot" : "gather";
  return load;
}

TEST(Choose, TakesTheLeastOfTheFormulasOverAGrid) {
  const Names in_rank_order{"dense", "gather", "two_shot", "sum"};
  std::map<std::string_view, int> chosen;
  for (size_t index = 0; index < 8 * 4 * 3 * 3 * 4 * 3 * 3; ++index) {
    const ExchangeLoad load = grid_load(index);
    const int per_node = load.ranks_per_node;
    Names names{"gather", "two_shot", "gtopk"};
    if (load.density == 1) {
      names = {"dense", "gather", "two_shot", "gtopk", "sum", "ring", "rabenseifner"};
    }
    if (per_node > 1 && load.world_size % per_node == 0 && load.world_size > per_node) {
      names.push_back("hierarchical");
    }
    double least = HUGE_VAL, least_of_others = HUGE_VAL;
    for (const std::string_view name : names) {
      const bool ordered = std::ranges::find(in_rank_order, name) != in_rank_order.end();
      double& of_its_kind = ordered ? least : least_of_others;
      of_its_kind = std::min(of_its_kind, by_formula(name, load));
    }
    const auto costs = exchange_costs(load, names);
    ASSERT_NEAR(by_formula(choose_exchange(costs, MeanBits::kOfRankOrder), load) / least, 1, 1e-9)
        << index;
    const std::string_view free = choose_exchange(costs, MeanBits::kSameOnAllRanks);
    const double gain = 1 - least_of_others / least;
    if (std::abs(gain - 0.1) > 1e-6) {  // else rounding decides
      ASSERT_NEAR(by_formula(free, load) / (gain > 0.1 ? least_of_others : least), 1, 1e-9)
          << index << ": " << free;
    }
    ++chosen[free];
  }
  for (const std::string_view name :
       {"dense", "gather", "two_shot", "gtopk", "rabenseifner", "hierarchical"}) {
    EXPECT_GT(chosen[name], 0) << name << " is never the best of the grid";
  }
}

TEST(Choose, OfMeansThatAreNotAllowedNothingIsTaken) {
  const std::vector<ExchangeCost> costs{{"gtopk", 0.5}, {"ring", 0.8}};
  EXPECT_EQ(choose_exchange(costs, MeanBits::kSameOnAllRanks), "gtopk");
  EXPECT_THROW(choose_exchange(costs, MeanBits::kOfRankOrder), InvalidArgument);
  // A gain of less than a tenth is not worth it.
  const std::vector<ExchangeCost> close{{"gtopk", 0.91}, {"gather", 1.0}, {"two_shot", 1.0}};
  EXPECT_EQ(choose_exchange(close, MeanBits::kSameOnAllRanks), "gather");
}

TEST(Choose, CandidatesAreTheRowsThatCarryTheCompressor) {
  CompressorShape shape;
  shape.numel = 100;
  const auto none = make_compressor(parse_spec("none"), shape);
  const auto int4 = make_compressor(parse_spec("int4"), shape);
  const Names of_none = exchanges_that_carry(*none), of_int4 = exchanges_that_carry(*int4);
  EXPECT_NE(std::find(of_none.begin(), of_none.end(), "ring"), of_none.end());
  EXPECT_EQ(std::find(of_int4.begin(), of_int4.end(), "ring"), of_int4.end());
  EXPECT_NE(std::find(of_int4.begin(), of_int4.end(), "two_shot"), of_int4.end());
  EXPECT_EQ(std::find(of_int4.begin(), of_int4.end(), "hierarchical"), of_int4.end());
}

TEST(Choose, OnAGpuTheyAreThoseThatAreThere) {
  const auto on_gpu = [](const char* spec) {
    CompressorShape shape;
    shape.numel = 100;
    return exchanges_that_carry(*make_compressor(parse_spec(spec), shape), DeviceType::kCuda);
  };
  EXPECT_EQ(on_gpu("none"), (Names{"dense", "gather", "two_shot"}));
  EXPECT_EQ(on_gpu("int4"), (Names{"gather", "two_shot"}));
  EXPECT_EQ(on_gpu("topk:1%"), (Names{"gather"}));  // a slice would have room for every entry
  EXPECT_EQ(on_gpu("chunktopk:64/4096"), (Names{"gather", "two_shot"}));
}

TEST(Choose, RefusesWhatItCannotCompute) {
  const auto refused = [](auto change) {
    ExchangeLoad load = load_of(4, 0.01);
    change(load);
    EXPECT_THROW(exchange_costs(load, Names{"gather"}), InvalidArgument);
  };
  refused([](ExchangeLoad& l) { l.alpha_s = -1; });
  refused([](ExchangeLoad& l) { l.bytes_per_s = 0; });
  refused([](ExchangeLoad& l) { l.world_size = 0; });
  refused([](ExchangeLoad& l) { l.density = 0; });
  refused([](ExchangeLoad& l) { l.union_density = 1.5; });
  EXPECT_THROW(exchange_costs(load_of(4, 0.01), Names{}), InvalidArgument);
  ExchangeLoad nodes = load_of(4, 0.01);
  nodes.between_nodes = "gather";
  nodes.ranks_per_node = 3;
  nodes.node_bytes_per_s = 1e9;
  EXPECT_THROW(exchange_costs(nodes, Names{"hierarchical"}), InvalidArgument);
  nodes.ranks_per_node = 2;
  EXPECT_NO_THROW(exchange_costs(nodes, Names{"hierarchical"}));
  nodes.node_bytes_per_s = 0;
  EXPECT_THROW(exchange_costs(nodes, Names{"hierarchical"}), InvalidArgument);
  try {
    exchange_costs(load_of(4, 0.01), Names{"telepathy"});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "exchange cost: unknown name 'telepathy', known: dense, sum, ring, rabenseifner, "
                 "gather, two_shot, gtopk, hierarchical");
  }
}

}  // namespace
}  // namespace gradwire
