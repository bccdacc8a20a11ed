// The breakdown of six published workloads: shares, orders and bottlenecks.

#include "gradwire/planner/breakdown.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

constexpr double kMB = 1e6, kGB = 1e9;

/// The case studies of arXiv:1910.05930, as far as they are known to us: inputs, no reference.
std::array<StepDemand, 6> workloads() {
  return {{{.name = "ResNet50",
            .flops = 1.56e12,
            .memory_bytes = 31.9 * kGB,
            .input_bytes = 38 * kMB,
            .weight_bytes = 357 * kMB},
           {.name = "NMT",
            .flops = 2.5e12,
            .memory_bytes = 101.6 * kGB,
            .input_bytes = 22e3,
            .weight_bytes = 1.33 * kGB},
           {.name = "BERT",
            .flops = 2.1e12,
            .memory_bytes = 107.3 * kGB,
            .input_bytes = 46e3,
            .weight_bytes = 1.5 * kGB},
           {.name = "Speech",
            .flops = 7.9e12,
            .memory_bytes = 20.4 * kGB,
            .input_bytes = 804 * kMB,
            .weight_bytes = 728 * kMB},
           {.name = "Multi-Interests",
            .flops = 105.8e9,
            .memory_bytes = 100.4 * kGB,
            .input_bytes = 261 * kMB,
            .weight_bytes = 122 * kMB},
           {.name = "GCN",
            .flops = 330.7e9,
            .memory_bytes = 25.79 * kGB,
            .input_bytes = 1.2 * kMB,
            .weight_bytes = 3 * kGB,
            .embedding_bytes = 2.9 * kGB,
            .touched_bytes = 100 * kMB}}};
}

TEST(Breakdown, OfAStepByHand) {
  const StepDemand step{.name = "x",
                        .flops = 11e12,
                        .memory_bytes = 2e12,
                        .input_bytes = 10 * kGB,
                        .weight_bytes = 25e9 / 8,
                        .gpus_per_server = 4};
  Hardware hardware;
  hardware.efficiency = 0.5;
  const StepBreakdown ps = break_down(step, Arrangement::kParameterServer, hardware);
  EXPECT_DOUBLE_EQ(ps.compute_bound_s, 2);
  EXPECT_DOUBLE_EQ(ps.memory_bound_s, 4);
  EXPECT_DOUBLE_EQ(ps.data_s, 2);
  EXPECT_DOUBLE_EQ(ps.weights_ethernet_s, 2);
  EXPECT_DOUBLE_EQ(ps.weights_pcie_s, 0.625);
  EXPECT_EQ(ps.weights_nvlink_s, 0);
  EXPECT_DOUBLE_EQ(ps.total_s(), 10.625);
  EXPECT_EQ(ps.bottleneck(), Capacity::kMemory);
  // The GPUs of a worker share its PCIe for the input.
  EXPECT_DOUBLE_EQ(break_down(step, Arrangement::kOneWorkerManyGpus, hardware).data_s, 8);
  EXPECT_EQ(break_down(step, Arrangement::kOneGpu, hardware).weights_s(), 0);
}

TEST(Breakdown, ParameterServersCommunicateMostAndLocalAllReduceLeast) {
  // Shares in per cent, computed offline from the same inputs and equations.
  constexpr int kServers[] = {46, 63, 68, 27, 27, 96};
  constexpr int kLocal[] = {4, 7, 9, 2, 2, 52};
  constexpr int kCluster[] = {41, 58, 63, 23, 23, 95};
  size_t i = 0;
  for (const StepDemand& step : workloads()) {
    const double ps = break_down(step, Arrangement::kParameterServer).communication_share();
    const double local = break_down(step, Arrangement::kAllReduceLocal).communication_share();
    const double cluster = break_down(step, Arrangement::kAllReduceCluster).communication_share();
    EXPECT_GT(ps, cluster) << step.name;
    EXPECT_GT(cluster, local) << step.name;
    EXPECT_NEAR(100 * ps, kServers[i], 0.51) << step.name;
    EXPECT_NEAR(100 * local, kLocal[i], 0.51) << step.name;
    EXPECT_NEAR(100 * cluster, kCluster[i], 0.51) << step.name;
    ++i;
  }
}

TEST(Breakdown, EachArrangementHasTheResourceItDependsOn) {
  for (const StepDemand& step : workloads()) {
    // What a tenfold of each capacity gains: the largest is what the arrangement depends on.
    const auto most_sensitive = [&step](Arrangement arrangement,
                                        std::initializer_list<Capacity> among) {
      Capacity best = *among.begin();
      double most = 0;
      for (const Capacity capacity : among) {
        const Hardware base;
        const double now = capacity == Capacity::kEthernet ? base.ethernet_bytes_per_s
                           : capacity == Capacity::kPcie   ? base.pcie_bytes_per_s
                                                           : base.nvlink_bytes_per_s;
        const double gain =
            what_if(step, arrangement, base, capacity, std::array{10 * now})[0].gain;
        if (gain > most) {
          most = gain;
          best = capacity;
        }
      }
      return best;
    };
    const auto media = {Capacity::kEthernet, Capacity::kPcie, Capacity::kNvlink};
    EXPECT_EQ(most_sensitive(Arrangement::kOneWorkerManyGpus, media), Capacity::kPcie) << step.name;
    EXPECT_EQ(
        most_sensitive(Arrangement::kParameterServer, {Capacity::kEthernet, Capacity::kNvlink}),
        Capacity::kEthernet)
        << step.name;
    EXPECT_EQ(break_down(step, Arrangement::kParameterServer).weights_ethernet_s >
                  break_down(step, Arrangement::kParameterServer).weights_pcie_s,
              true)
        << step.name;
  }
  EXPECT_EQ(break_down(workloads()[2], Arrangement::kParameterServer).bottleneck(),
            Capacity::kEthernet);
  EXPECT_EQ(break_down(workloads()[2], Arrangement::kOneGpu).bottleneck(), Capacity::kCompute);
  EXPECT_EQ(break_down(workloads()[4], Arrangement::kOneGpu).bottleneck(), Capacity::kMemory);
}

TEST(WhatIf, FasterEthernetHelpsParameterServersWithinThePublishedRange) {
  constexpr double kGains[] = {1.35, 1.56, 1.63, 1.18, 1.19, 2.21};  // computed offline
  size_t i = 0;
  for (const StepDemand& step : workloads()) {
    const auto steps = what_if(step, Arrangement::kParameterServer, {}, Capacity::kEthernet,
                               std::array{25e9 / 8, 100e9 / 8});
    EXPECT_DOUBLE_EQ(steps[0].gain, 1) << step.name;
    EXPECT_NEAR(steps[1].gain, kGains[i++], 0.01) << step.name;
    EXPECT_GE(steps[1].gain, 1.15) << step.name;
    EXPECT_LE(steps[1].gain, 2.25) << step.name;
    EXPECT_TRUE(steps[1].has_effect);
    const auto local =
        what_if(step, Arrangement::kAllReduceLocal, {}, Capacity::kEthernet, std::array{100e9 / 8});
    EXPECT_EQ(local[0].gain, 1) << step.name;
    EXPECT_FALSE(local[0].has_effect) << step.name;
  }
}

TEST(Moves, FromParameterServersToNvlinkGain) {
  for (const StepDemand& step : workloads()) {
    const auto moves = moves_from(step, Arrangement::kParameterServer);
    ASSERT_EQ(moves.size(), kArrangements.size() - 1);
    for (size_t m = 0; m < moves.size(); ++m) {
      const double after = break_down(step, moves[m].to).total_s();
      EXPECT_EQ(moves[m].total_s, after);
      EXPECT_DOUBLE_EQ(moves[m].gain,
                       break_down(step, Arrangement::kParameterServer).total_s() / after);
      EXPECT_TRUE(m == 0 || moves[m - 1].total_s <= after);
      if (moves[m].to == Arrangement::kAllReduceLocal) {
        EXPECT_GT(moves[m].gain, 1) << step.name;
      }
    }
  }
  // Embeddings that are cut up send the rows that were touched.
  const StepDemand gcn = workloads()[5];
  const double whole = break_down(gcn, Arrangement::kAllReduceLocal).weights_s();
  EXPECT_NEAR(break_down(gcn, Arrangement::kPearlLocal).weights_s(), whole * 0.2 / 3, 1e-12);
}

TEST(Breakdown, RefusesWhatCannotBe) {
  const StepDemand good{.name = "x", .flops = 1, .weight_bytes = 10};
  const auto refused = [&](auto change) {
    StepDemand step = good;
    change(step);
    EXPECT_THROW(break_down(step, Arrangement::kOneGpu), InvalidArgument);
  };
  refused([](StepDemand& s) { s.flops = 0; });
  refused([](StepDemand& s) { s.flops = -1; });
  refused([](StepDemand& s) { s.memory_bytes = NAN; });
  refused([](StepDemand& s) { s.input_bytes = INFINITY; });
  refused([](StepDemand& s) { s.embedding_bytes = 11; });
  refused([](StepDemand& s) { s.touched_bytes = 1; });
  refused([](StepDemand& s) { s.gpus_per_server = 0; });
  Hardware hardware;
  hardware.pcie_bytes_per_s = 0;
  EXPECT_THROW(break_down(good, Arrangement::kOneGpu, hardware), InvalidArgument);
  hardware = {};
  hardware.efficiency = 0;
  EXPECT_THROW(break_down(good, Arrangement::kOneGpu, hardware), InvalidArgument);
  EXPECT_THROW(what_if(good, Arrangement::kOneGpu, {}, Capacity::kPcie, {}), InvalidArgument);
  EXPECT_THROW(what_if(good, Arrangement::kOneGpu, {}, Capacity::kPcie, std::array{0.0}),
               InvalidArgument);
  EXPECT_THROW(find_arrangement("mesh"), InvalidArgument);
  EXPECT_THROW(find_capacity("luck"), InvalidArgument);
  for (const Arrangement arrangement : kArrangements) {
    EXPECT_EQ(find_arrangement(to_string(arrangement)), arrangement);
  }
  for (const Capacity capacity : kCapacities) {
    EXPECT_EQ(find_capacity(to_string(capacity)), capacity);
  }
}

}  // namespace
}  // namespace gradwire::planner
