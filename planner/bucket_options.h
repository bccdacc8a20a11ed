#pragma once
// The ways to send a bucket on a machine whose costs are known: specs x exchanges x streams.

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/plan_memory.h"
#include "gradwire/planner/bucket_plan.h"
#include "gradwire/planner/cost.h"
#include "gradwire/planner/profile.h"

namespace gradwire::planner {

/// What a spec puts on the line.
struct SpecTraffic {
  std::string spec;                              ///< as to_string() writes it
  double bytes_per_element = 0;                  ///< of a payload's capacity, for large buckets
  double density = 1;                            ///< of a selection; 1 where nothing is selected
  std::vector<std::string_view> exchanges = {};  ///< rows that carry it, in the registry's order
};
/// `device`: of the gradients. @throws InvalidArgument for a spec that does not parse or whose
/// bytes depend on the shapes of parameters (powersgd).
SpecTraffic spec_traffic(const std::string& spec, int world_size,
                         DeviceType device = DeviceType::kCpu);

/// Every search considers them: the planner must be able to answer "off".
inline constexpr std::array<std::string_view, 2> kAlwaysConsidered = {"none", "bf16"};
inline bool is_always_considered(std::string_view spec) {
  return std::ranges::find(kAlwaysConsidered, spec) != kAlwaysConsidered.end();
}

struct BucketOptionRequest {
  int world_size = 1;
  /// Compressors to choose from, beside kAlwaysConsidered.
  std::vector<std::string> specs = {};
  std::vector<std::string> exchanges = {};  ///< rows to choose from; empty: all that carry the spec
  std::vector<int> streams = {1};
  MeanBits mean = MeanBits::kOfRankOrder;  ///< which exchanges are allowed
  DeviceType device = DeviceType::kCpu;    ///< of gradients: not all exchanges are there on a GPU
};

/// Options of the request, each spec with every exchange that can carry it and every number of
/// streams, priced by `costs`. Payload bytes are capacities (at most a quarter above the true
/// ones); loss is the part of the dense bytes that is not sent. Decoding: `gather` decodes one
/// payload per rank, all others one. A codec without an entry in `costs` is refused, but for
/// "none", which costs nothing. @throws InvalidArgument for a spec that does not parse or whose
/// bytes depend on the shapes of parameters (powersgd), costs without it, an exchange that carries
/// none of the specs, fewer than one rank or stream.
std::vector<BucketOption> make_bucket_options(const BucketOptionRequest& request,
                                              const Costs& costs);

/// What a rank holds where these buckets travel so, for gradients of float32.
PlanMemory memory_of(std::span<const ReadyGradient> gradients, std::span<const BucketOption> options,
                     std::span<const PlannedBucket> buckets, int world_size);

/// The gradients of a profile in the order backward makes them, ready when what precedes them in
/// backward has run. @throws InvalidArgument as validate(), and for a profile without gradients.
std::vector<ReadyGradient> ready_gradients(const Profile& profile);

}  // namespace gradwire::planner
