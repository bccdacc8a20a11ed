#pragma once
// Where a training step's time goes, and where it would go on other hardware or in another
// arrangement of workers. After Wang et al., "Characterizing Deep Learning Training Workloads on
// Alibaba-PAI" (arXiv:1910.05930). Parts are added up: no overlap is modelled, so that shares say
// what matters, not how long a well hidden step takes.
//
//   T   = T_data + T_compute + T_weights
//   T_data    = input bytes / PCIe
//   T_compute = FLOP / peak + memory bytes / memory bandwidth
//   T_weights = sum over the media that weights and gradients cross: bytes / bandwidth
//
// Graph splitting, placement of computation and model design are no part of it.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

/// What one GPU does and moves in a step.
struct StepDemand {
  std::string name = {};
  double flops = 0;         ///< of compute-bound operations
  double memory_bytes = 0;  ///< moved by memory-bound operations
  double input_bytes = 0;   ///< of training data, to the GPU
  double weight_bytes = 0;  ///< of weights and gradients, where all are replicated
  /// Of weight_bytes those of embeddings, and what of them a step touches: read for the
  /// arrangements that cut embeddings up.
  double embedding_bytes = 0;
  double touched_bytes = 0;
  int gpus_per_server = 1;  ///< share PCIe in one_worker_many_gpus
};

/// What there is. The defaults are the reference configuration of the paper.
struct Hardware {
  double flops_per_s = 11e12;
  double memory_bytes_per_s = 1e12;
  double ethernet_bytes_per_s = 25e9 / 8;
  double pcie_bytes_per_s = 10e9;
  double nvlink_bytes_per_s = 50e9;
  double efficiency = 0.7;  ///< what can be had of each of them
};

enum class Capacity : uint8_t { kCompute, kMemory, kEthernet, kPcie, kNvlink };

/// How workers are arranged, and what their weights and gradients cross.
enum class Arrangement : uint8_t {
  kOneGpu,             ///< 1w1g: nothing
  kOneWorkerManyGpus,  ///< 1wng: PCIe, which all its GPUs share for their input
  kParameterServer,    ///< PS/Worker: Ethernet and PCIe
  kAllReduceLocal,     ///< NVLink
  kAllReduceCluster,   ///< Ethernet and NVLink
  kPearlLocal,         ///< NVLink; embeddings cut up: only the touched rows travel
  kPearlCluster,       ///< Ethernet and NVLink; likewise
};

inline constexpr std::array kArrangements = {
    Arrangement::kOneGpu,         Arrangement::kOneWorkerManyGpus, Arrangement::kParameterServer,
    Arrangement::kAllReduceLocal, Arrangement::kAllReduceCluster,  Arrangement::kPearlLocal,
    Arrangement::kPearlCluster};
inline constexpr std::array kCapacities = {Capacity::kCompute, Capacity::kMemory,
                                           Capacity::kEthernet, Capacity::kPcie, Capacity::kNvlink};

std::string_view to_string(Arrangement arrangement);  ///< "1w1g", "ps", "allreduce-cluster", ...
std::string_view to_string(Capacity capacity);        ///< "compute", "ethernet", ...
/// @throws InvalidArgument listing the known names.
Arrangement find_arrangement(std::string_view name);
Capacity find_capacity(std::string_view name);

/// Seconds of a step.
struct StepBreakdown {
  double data_s = 0;
  double compute_bound_s = 0;
  double memory_bound_s = 0;
  double weights_ethernet_s = 0;
  double weights_pcie_s = 0;
  double weights_nvlink_s = 0;

  double weights_s() const { return weights_ethernet_s + weights_pcie_s + weights_nvlink_s; }
  double total_s() const { return data_s + compute_bound_s + memory_bound_s + weights_s(); }
  double communication_share() const { return weights_s() / total_s(); }
  double seconds_of(Capacity capacity) const;  ///< kPcie: data and weights
  Capacity bottleneck() const;                 ///< what takes the most seconds
};

/// @throws InvalidArgument for a demand that is negative, no number, or nothing at all, for
/// embeddings beyond the weights or touched rows beyond the embeddings, hardware that is not
/// positive, an efficiency outside (0, 1], fewer than one GPU.
StepBreakdown break_down(const StepDemand& demand, Arrangement arrangement,
                         const Hardware& hardware = {});

/// A step with one capacity changed.
struct WhatIf {
  double value = 0;  ///< of it: bytes/s or FLOP/s
  double total_s = 0;
  double gain = 1;  ///< total before / total after
  Capacity bottleneck{};
  bool has_effect = false;  ///< false: the step does not use this capacity
};

/// The step at each value in turn. @throws InvalidArgument as break_down(), and for no values.
std::vector<WhatIf> what_if(const StepDemand& demand, Arrangement arrangement,
                            const Hardware& hardware, Capacity capacity,
                            std::span<const double> values);

/// A step in another arrangement.
struct Move {
  Arrangement to{};
  double total_s = 0;
  double gain = 1;  ///< total before / total after: below 1 the move loses
  Capacity bottleneck{};
};

/// All other arrangements, fastest first. @throws InvalidArgument as break_down().
std::vector<Move> moves_from(const StepDemand& demand, Arrangement from,
                             const Hardware& hardware = {});

}  // namespace gradwire::planner
