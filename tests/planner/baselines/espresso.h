#pragma once
// Espresso's released planner (Wang et al., EuroSys 2023; zhuangwang93/Espresso at a0294e3),
// written from what it does: its prices, and its greedy choice per tensor. Microseconds.

#include <string>
#include <vector>

#include "tests/planner/baselines/gradients.h"

namespace gradwire::planner::testing {

/// 0: float32, 1: float16, 2: compressed between nodes, 3: compressed in both levels.
inline constexpr size_t kEspressoOptions = 4;

struct EspressoCase {
  std::string model;
  std::string compressor;  ///< "randomk", "dgc" (1% of the elements) or "efsignsgd"
  bool nvlink = false;     ///< within a node, else PCIe
  bool two_level = false;  ///< whether option 3 is considered
  int nodes = 4;
  int gpus_per_node = 8;
};

/// What the released code charges. Its bandwidth option has no effect: 1.25 GB/s between nodes.
class EspressoPrices {
 public:
  explicit EspressoPrices(const EspressoCase& of);
  double encode_us(double numel, size_t option) const;
  /// Both levels, and for options 2 and 3 coding once more: the released code counts encoders
  /// where backward runs and again on the line.
  double line_us(double numel, size_t option) const;
  bool two_level() const { return case_.two_level; }
  /// The option a tensor of this size may be given, from fixed thresholds.
  size_t option_for(double numel) const;

 private:
  double coding_us(double numel, size_t option, bool decode_only) const;
  double transfer_us(double numel, size_t option) const;

  EspressoCase case_;
};

struct EspressoPlan {
  std::vector<size_t> options;
  size_t compressed = 0;  ///< tensors with option 2 or 3
};

/// Its choice: `as_shipped` adds up gaps modulo 1000 us, which is what the released code does; else
/// the gaps as they are.
EspressoPlan run_espresso(const std::vector<TensorGap>& tensors, const EspressoPrices& prices,
                          bool as_shipped);

/// The end of these options in its timeline with the gaps as they are.
double espresso_end_us(const std::vector<TensorGap>& tensors, const EspressoPrices& prices,
                       const std::vector<size_t>& options);

/// Its prices as options of plan_buckets().
std::vector<BucketOption> espresso_options(const EspressoPrices& prices);

/// Neighbouring tensors in buckets closed at `cap` elements: a bucket has the sum of the gaps.
std::vector<TensorGap> fused(const std::vector<TensorGap>& tensors, size_t cap);

}  // namespace gradwire::planner::testing
