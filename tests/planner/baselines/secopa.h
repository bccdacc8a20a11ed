#pragma once
// SeCoPa, the planner of HiPress (Bai et al., SOSP 2021): per tensor whether to compress it and
// into how many parts to cut it. Constants measured by its authors on a cluster of the 56 Gbit/s
// class, from mark14wu/hipress at aa1b594, src/SeCoPa. Milliseconds; float32 elements.

#include <cstddef>
#include <vector>

#include "gradwire/planner/bucket_plan.h"

namespace gradwire::planner::testing {

enum class SeCoPaPattern { kServers, kRing };

struct SeCoPaChoice {
  bool compress = false;
  int parts = 1;  ///< K
  double ms = 0;

  bool operator==(const SeCoPaChoice&) const = default;
};

/// The cheapest number of parts for `numel` elements over 4, 8 or 16 nodes.
SeCoPaChoice secopa_cost(SeCoPaPattern pattern, int nodes, double numel, bool compress);
/// Compressed where that is cheaper.
SeCoPaChoice secopa_choose(SeCoPaPattern pattern, int nodes, double numel);

/// Both prices as options of plan_buckets(): coding happens on the line.
std::vector<BucketOption> secopa_options(SeCoPaPattern pattern, int nodes);

}  // namespace gradwire::planner::testing
