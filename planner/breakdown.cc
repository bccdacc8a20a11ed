#include "gradwire/planner/breakdown.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

/// An arrangement, as far as the equations know it.
struct ArrangementRow {
  Arrangement arrangement;
  std::string_view name;
  bool ethernet, pcie, nvlink;  ///< what weights and gradients cross
  bool cuts_embeddings = false;
  bool shares_pcie = false;
};

constexpr ArrangementRow kRows[] = {
    {Arrangement::kOneGpu, "1w1g", false, false, false},
    {Arrangement::kOneWorkerManyGpus, "1wng", false, true, false, false, true},
    {Arrangement::kParameterServer, "ps", true, true, false},
    {Arrangement::kAllReduceLocal, "allreduce-local", false, false, true},
    {Arrangement::kAllReduceCluster, "allreduce-cluster", true, false, true},
    {Arrangement::kPearlLocal, "pearl-local", false, false, true, true},
    {Arrangement::kPearlCluster, "pearl-cluster", true, false, true, true},
};

struct CapacityRow {
  Capacity capacity;
  std::string_view name;
  double Hardware::*per_second;
};

constexpr CapacityRow kCapacityRows[] = {
    {Capacity::kCompute, "compute", &Hardware::flops_per_s},
    {Capacity::kMemory, "memory", &Hardware::memory_bytes_per_s},
    {Capacity::kEthernet, "ethernet", &Hardware::ethernet_bytes_per_s},
    {Capacity::kPcie, "pcie", &Hardware::pcie_bytes_per_s},
    {Capacity::kNvlink, "nvlink", &Hardware::nvlink_bytes_per_s},
};

const ArrangementRow& row_of(Arrangement arrangement) {
  return kRows[static_cast<size_t>(arrangement)];
}

const CapacityRow& row_of(Capacity capacity) {
  return kCapacityRows[static_cast<size_t>(capacity)];
}

void check_demand(const StepDemand& demand) {
  const auto require = [&demand](const char* what, double value) {
    check(std::isfinite(value) && value >= 0, "step '", demand.name, "': ", what, " is ", value,
          ", must be finite and at least 0");
  };
  require("FLOP", demand.flops);
  require("memory traffic (bytes)", demand.memory_bytes);
  require("input (bytes)", demand.input_bytes);
  require("weight traffic (bytes)", demand.weight_bytes);
  require("embedding traffic (bytes)", demand.embedding_bytes);
  require("touched embedding rows (bytes)", demand.touched_bytes);
  check(demand.flops + demand.memory_bytes > 0, "step '", demand.name,
        "': 0 FLOP and 0 bytes of memory traffic, expected a step that computes");
  check(demand.embedding_bytes <= demand.weight_bytes, "step '", demand.name, "': embeddings are ",
        demand.embedding_bytes, " bytes, must be at most the ", demand.weight_bytes,
        " of all weights");
  check(demand.touched_bytes <= demand.embedding_bytes, "step '", demand.name,
        "': touched rows are ", demand.touched_bytes, " bytes, must be at most the ",
        demand.embedding_bytes, " of all embeddings");
  check(demand.gpus_per_server >= 1, "step '", demand.name, "': ", demand.gpus_per_server,
        " GPUs per server, expected at least 1");
}

void check_hardware(const Hardware& hardware) {
  for (const CapacityRow& row : kCapacityRows) {
    const double capacity = hardware.*row.per_second;
    check(std::isfinite(capacity) && capacity > 0, "hardware: ", row.name, " is ", capacity,
          " per second, must be positive and finite");
  }
  check(hardware.efficiency > 0 && hardware.efficiency <= 1, "hardware: efficiency is ",
        hardware.efficiency, ", must be in (0, 1]");
}

}  // namespace

std::string_view to_string(Arrangement arrangement) { return row_of(arrangement).name; }
std::string_view to_string(Capacity capacity) { return row_of(capacity).name; }

Arrangement find_arrangement(std::string_view name) {
  std::vector<std::string_view> known;
  for (const ArrangementRow& row : kRows) {
    if (row.name == name) {
      return row.arrangement;
    }
    known.push_back(row.name);
  }
  throw_unknown_name("arrangement", name, known);
}

Capacity find_capacity(std::string_view name) {
  std::vector<std::string_view> known;
  for (const CapacityRow& row : kCapacityRows) {
    if (row.name == name) {
      return row.capacity;
    }
    known.push_back(row.name);
  }
  throw_unknown_name("capacity", name, known);
}

double StepBreakdown::seconds_of(Capacity capacity) const {
  switch (capacity) {
    case Capacity::kCompute:
      return compute_bound_s;
    case Capacity::kMemory:
      return memory_bound_s;
    case Capacity::kEthernet:
      return weights_ethernet_s;
    case Capacity::kPcie:
      return data_s + weights_pcie_s;
    case Capacity::kNvlink:
      return weights_nvlink_s;
  }
  throw InvalidArgument("capacity: no such value, expected one of kCapacities");
}

Capacity StepBreakdown::bottleneck() const {
  return *std::ranges::max_element(kCapacities, {},
                                   [this](Capacity capacity) { return seconds_of(capacity); });
}

StepBreakdown break_down(const StepDemand& demand, Arrangement arrangement,
                         const Hardware& hardware) {
  check_demand(demand);
  check_hardware(hardware);
  const ArrangementRow& row = row_of(arrangement);
  const double traffic = row.cuts_embeddings
                             ? demand.weight_bytes - demand.embedding_bytes + demand.touched_bytes
                             : demand.weight_bytes;
  const double sharing = row.shares_pcie ? demand.gpus_per_server : 1;
  const auto takes = [&hardware](double amount, double capacity) {
    return amount / (hardware.efficiency * capacity);
  };
  StepBreakdown step;
  step.data_s = sharing * takes(demand.input_bytes, hardware.pcie_bytes_per_s);
  step.compute_bound_s = takes(demand.flops, hardware.flops_per_s);
  step.memory_bound_s = takes(demand.memory_bytes, hardware.memory_bytes_per_s);
  step.weights_ethernet_s = row.ethernet ? takes(traffic, hardware.ethernet_bytes_per_s) : 0;
  step.weights_pcie_s = row.pcie ? takes(traffic, hardware.pcie_bytes_per_s) : 0;
  step.weights_nvlink_s = row.nvlink ? takes(traffic, hardware.nvlink_bytes_per_s) : 0;
  return step;
}

std::vector<WhatIf> what_if(const StepDemand& demand, Arrangement arrangement,
                            const Hardware& hardware, Capacity capacity,
                            std::span<const double> values) {
  check(!values.empty(), "what-if: 0 values of ", to_string(capacity), ", expected at least 1");
  const StepBreakdown before = break_down(demand, arrangement, hardware);
  std::vector<WhatIf> steps;
  for (const double value : values) {
    Hardware changed = hardware;
    changed.*row_of(capacity).per_second = value;
    const StepBreakdown after = break_down(demand, arrangement, changed);
    steps.push_back({.value = value,
                     .total_s = after.total_s(),
                     .gain = before.total_s() / after.total_s(),
                     .bottleneck = after.bottleneck(),
                     .has_effect = before.seconds_of(capacity) > 0});
  }
  return steps;
}

std::vector<Move> moves_from(const StepDemand& demand, Arrangement from, const Hardware& hardware) {
  const double before_s = break_down(demand, from, hardware).total_s();
  std::vector<Move> moves;
  for (const Arrangement to : kArrangements) {
    if (to != from) {
      const StepBreakdown after = break_down(demand, to, hardware);
      moves.push_back({to, after.total_s(), before_s / after.total_s(), after.bottleneck()});
    }
  }
  std::ranges::stable_sort(moves, {}, &Move::total_s);
  return moves;
}

}  // namespace gradwire::planner
