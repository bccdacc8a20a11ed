// Links and costs against hand-computed numbers and naive loops over messages.

#include "gradwire/planner/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

LinkCost straight(double alpha_s, double bytes_per_s) {
  LinkCost link;
  link.name = "test";
  link.alpha_s = alpha_s;
  link.bytes_per_s = bytes_per_s;
  return link;
}

TEST(SizeTables, LinesBetweenPointsAndBeyondThem) {
  const SizeTable table({{100, 1.0}, {200, 2.0}, {400, 2.0}, {800, 6.0}});
  EXPECT_EQ(table.seconds(0), 1.0);
  EXPECT_EQ(table.seconds(100), 1.0);
  EXPECT_EQ(table.seconds(150), 1.5);
  EXPECT_EQ(table.seconds(300), 2.0);
  EXPECT_EQ(table.seconds(600), 4.0);
  EXPECT_EQ(table.seconds(1600), 14.0);  // the last line goes on
  EXPECT_EQ(table.line_at(150).beta_s_per_byte, 0.01);
  EXPECT_EQ(table.line_at(150).alpha_s, 0.0);
  EXPECT_EQ(table.line_at(50).beta_s_per_byte, 0.0);
}

TEST(SizeTables, RefuseWhatIsNoCost) {
  using Points = std::vector<SizeTable::Point>;
  for (const Points& points :
       {Points{}, Points{{1, 1}}, Points{{1, 1}, {1, 2}}, Points{{2, 1}, {1, 2}},
        Points{{1, 2}, {2, 1}}, Points{{1, 0}, {2, 1}}, Points{{-1, 1}, {2, 1}},
        Points{{1, NAN}, {2, 1}}, Points{{1, 1}, {INFINITY, 2}}}) {
    EXPECT_THROW(SizeTable{points}, InvalidArgument);
  }
  EXPECT_THROW(SizeTable({{1, 1}, {2, 2}}).seconds(-1), InvalidArgument);
  EXPECT_THROW(SizeTable({{1, 1}, {2, 2}}).seconds(NAN), InvalidArgument);
}

TEST(Links, StreamsAddUpToTheLine) {
  LinkCost link = straight(0, 10e9);
  link.efficiency = 0.9;
  EXPECT_EQ(link.effective_bytes_per_s(1), 9e9);
  link.stream_bytes_per_s = 2e9;
  EXPECT_EQ(link.effective_bytes_per_s(1), 2e9);
  EXPECT_EQ(link.effective_bytes_per_s(4), 8e9);
  EXPECT_EQ(link.effective_bytes_per_s(5), 9e9);
  EXPECT_EQ(link.effective_bytes_per_s(64), 9e9);
  EXPECT_THROW(link.effective_bytes_per_s(0), InvalidArgument);
}

TEST(Links, MeasuredTablesTakeTheLinesPlace) {
  LinkCost link = straight(1, 1);
  link.tables.emplace(LinkCost::Key{"", 1}, SizeTable({{1, 10}, {2, 20}}));
  link.tables.emplace(LinkCost::Key{"ring", 2}, SizeTable({{1, 3}, {2, 4}}));
  EXPECT_EQ(link.message_seconds(2, "gather", 1), 20.0);
  EXPECT_EQ(link.message_seconds(2, "ring", 1), 20.0);
  EXPECT_EQ(link.message_seconds(2, "ring", 2), 4.0);
  EXPECT_EQ(link.message_seconds(2, "gather", 2), 3.0);  // the line: 1 + 2
}

TEST(Links, WithoutBandwidthAreRefused) {
  for (const double rate : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    EXPECT_THROW(validate(straight(0, rate)), InvalidArgument) << rate;
  }
  EXPECT_THROW(validate(straight(-1, 1)), InvalidArgument);
  LinkCost link = straight(0, 1);
  link.efficiency = 0;
  EXPECT_THROW(validate(link), InvalidArgument);
  link.efficiency = 1.1;
  EXPECT_THROW(validate(link), InvalidArgument);
}

TEST(Links, PresetsHaveTheFiguresOfTheirSources) {
  EXPECT_NEAR(find_link("pcie3").bytes_per_s, 15.754e9, 1e6);
  EXPECT_NEAR(find_link("pcie4").bytes_per_s, 31.508e9, 1e6);
  EXPECT_EQ(find_link("10gbe").bytes_per_s, 1.25e9);
  EXPECT_EQ(find_link("25gbe").bytes_per_s, 3.125e9);
  EXPECT_EQ(find_link("100gbe").bytes_per_s, 12.5e9);
  EXPECT_NEAR(find_link("infiniband").bytes_per_s, 54.545e9 / 8, 1e6);
  EXPECT_EQ(find_link("nvlink").bytes_per_s, 400e9);
  for (const LinkCost& preset : link_presets()) {
    EXPECT_NO_THROW(validate(preset)) << preset.name;
    EXPECT_FALSE(preset.source.empty()) << preset.name;
  }
  EXPECT_EQ(find_link("1.2GB/s").bytes_per_s, 1.2e9);
  EXPECT_EQ(find_link("50mbit").alpha_s, find_link("10gbe").alpha_s);
  EXPECT_THROW(find_link("carrier pigeon"), InvalidArgument);
  EXPECT_THROW(find_link(""), InvalidArgument);
  EXPECT_THROW(find_link("0gbit"), InvalidArgument);
}

/// Messages one after another, sent in a loop.
double naive(std::string_view form, double bytes, int ranks, const LinkCost& link) {
  const auto t = [&](double size) { return link.alpha_s + size / link.bytes_per_s; };
  double seconds = 0;
  if (form == "ring" || form == "two_shot") {
    for (int phase = 0; phase < 2; ++phase) {
      for (int step = 1; step < ranks; ++step) {
        seconds += t(bytes / ranks);
      }
    }
  } else if (form == "allgather") {
    for (int step = 1; step < ranks; ++step) {
      seconds += t(bytes);
    }
  } else {  // a tree: up and down
    for (int reached = 1; reached < ranks; reached *= 2) {
      seconds += 2 * t(bytes);
    }
  }
  return seconds;
}

TEST(Costs, ClosedFormsAreTheLoopsOverMessages) {
  constexpr unsigned kSeed = 20261;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> exponent(0, 1);
  for (int round = 0; round < 500; ++round) {
    const LinkCost link =
        straight(std::pow(10, -6 + 4 * exponent(random)), std::pow(10, 6 + 5 * exponent(random)));
    const int ranks = 1 + static_cast<int>(random() % 130);
    const double bytes = std::pow(10, 9 * exponent(random));
    for (const char* form : {"ring", "tree", "allgather", "two_shot"}) {
      const double expected = naive(form, bytes, ranks, link);
      ASSERT_NEAR(closed_form_seconds(form, bytes, ranks, link), expected, 1e-9 * expected)
          << form << ", " << ranks << " ranks, seed " << kSeed << ", round " << round;
    }
  }
}

TEST(Costs, OverAStraightLineExchangesCostWhatCommSays) {
  constexpr unsigned kSeed = 20262;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> unit(0, 1);
  const std::array<std::string_view, 8> names{"dense",  "sum",      "ring",  "rabenseifner",
                                              "gather", "two_shot", "gtopk", "hierarchical"};
  for (int round = 0; round < 300; ++round) {
    Costs costs;
    costs.link = straight(1e-4 * unit(random), 1e6 + 1e9 * unit(random));
    costs.node_link = straight(1e-6 * unit(random), 1e9 + 1e10 * unit(random));
    ExchangeLoad load;
    load.alpha_s = costs.link.alpha_s;
    load.bytes_per_s = costs.link.bytes_per_s;
    load.node_alpha_s = costs.node_link.alpha_s;
    load.node_bytes_per_s = costs.node_link.bytes_per_s;
    load.ranks_per_node = 1 + static_cast<int>(random() % 4);
    load.world_size = load.ranks_per_node * (2 + static_cast<int>(random() % 20));
    load.numel = 1000 + random() % 1000000;
    load.payload_bytes = 8 + random() % (4 * load.numel);
    load.density = round % 2 == 0 ? 1 : 0.01 + 0.5 * unit(random);
    load.rounds = 1 + round % 3 / 2;
    load.between_nodes = "gather";
    for (const std::string_view name : names) {
      if (name == "hierarchical" && load.rounds > 1) {
        continue;  // it carries no compressor of two rounds
      }
      const double expected = exchange_costs(load, std::array{name})[0].seconds;
      ASSERT_NEAR(exchange_seconds(name, load, costs), expected, 1e-9 * expected)
          << name << ", seed " << kSeed << ", round " << round;
    }
  }
}

TEST(Costs, ATablePricesSmallAndLargeMessagesApart) {
  Costs costs;
  costs.link = straight(1e-4, 1e9);
  // Small messages cost a tenth of the start-up that large ones show.
  costs.link.tables.emplace(LinkCost::Key{"", 1},
                            SizeTable({{1000, 1e-5}, {1e6, 1.1e-3}, {2e6, 2.1e-3}}));
  ExchangeLoad load;
  load.world_size = 4;
  load.numel = 100;
  load.payload_bytes = 400;
  EXPECT_NEAR(exchange_seconds("ring", load, costs), 6 * 1e-5, 1e-12);
  load.numel = 1'000'000;
  load.payload_bytes = 4'000'000 - 64 * 4;  // six messages of 1 MB with their frames
  EXPECT_NEAR(exchange_seconds("ring", load, costs), 6 * 1.1e-3, 1e-8);
}

TEST(Costs, TreesAndServersByHand) {
  Costs costs;
  costs.link = straight(1e-3, 1e6);
  ExchangeLoad load;
  load.world_size = 5;
  load.payload_bytes = 1000;
  load.numel = 250;
  EXPECT_NEAR(exchange_seconds("tree", load, costs), 6 * (1e-3 + 1e-3), 1e-12);
  EXPECT_NEAR(exchange_seconds("parameter_server", load, costs), 10 * (1e-3 + 1e-3), 1e-12);
  EXPECT_EQ(pattern_path("parameter_server", load, 2).between.bytes, 5000);
  load.world_size = 1;
  EXPECT_EQ(exchange_seconds("tree", load, costs), 0);
  EXPECT_EQ(exchange_seconds("ring", load, costs), 0);
  EXPECT_THROW(exchange_seconds("pigeon", load, costs), InvalidArgument);
  load.world_size = 0;
  EXPECT_THROW(exchange_seconds("ring", load, costs), InvalidArgument);
}

TEST(Costs, CodingTakesItsFloorAndItsRate) {
  const CodecCost cost{1e-3, 1e9, 2e-3, 0.5e9};
  EXPECT_DOUBLE_EQ(cost.encode_s(1e6), 2e-3);
  EXPECT_DOUBLE_EQ(cost.decode_s(1e6), 4e-3);
  EXPECT_DOUBLE_EQ(cost.decode_s(1e6, 3), 12e-3);
  EXPECT_EQ(CodecCost{}.encode_s(1e9), 0.0);
  EXPECT_THROW(validate(CodecCost{-1, 0, 0, 0}, "x"), InvalidArgument);
  EXPECT_THROW(validate(CodecCost{0, NAN, 0, 0}, "x"), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
