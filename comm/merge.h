#pragma once
// Which gradients travel together, and which bucket leaves first: pure functions of when gradients
// appear in backward and of what an exchange costs.

#include <cstddef>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire {

/// When backward has made a parameter's gradient, and how large it is.
struct GradientTiming {
  ParamId parameter = 0;
  double ready_s = 0;  ///< since any fixed moment of the step
  size_t bytes = 0;    ///< of dense gradient
};

/// Seconds that the exchange of a bucket takes: startup_s + seconds_per_byte * its gradient bytes.
struct BucketCost {
  double startup_s = 0;
  double seconds_per_byte = 0;
};

/// Of buckets of which several wait: as they became ready, or those with the parameter that the
/// next forward pass needs first. Both follow from the timings alone, never from what is ready on a
/// rank: the order stands in the plan, and buckets leave in it on every rank.
enum class LeavingOrder : uint8_t { kReady, kNeeded };

struct MergeOptions {
  BucketCost cost{};
  size_t most_bytes = size_t{64} << 20;  ///< of a bucket; a larger gradient is a bucket alone
  LeavingOrder order = LeavingOrder::kReady;
};

/// Parameters of each bucket, buckets in the order they leave: PlanOptions::buckets.
///
/// Model: one exchange at a time; bucket l starts at start(l) = max(end(l - 1), ready(l)) and ends
/// startup + bytes * seconds_per_byte later; the step waits for the last end. Merging saves
/// start-ups and delays what is merged. Shi, Chu, Li, MG-WFBP (arXiv:1811.11141) merge a bucket
/// with the next gradient, pair by pair, where ready(next) - start(l) < startup. Here the smallest
/// end is searched over all partitions of the gradients in the order they become ready, by
///   end(j) = min over i < j of max(end(i), ready(j)) + startup + bytes(i..j) * seconds_per_byte,
/// which is exact in this model, in O(n^2): never later than the paper's rule, and sometimes
/// earlier, since the rule does not see the gradient after the next. Of equal ends the fewest
/// buckets. The last bucket, which nothing hides, comes out small by itself. @throws
/// InvalidArgument for no gradients, a parameter given twice, times or costs that are negative or
/// not finite.
std::vector<std::vector<ParamId>> merge_gradients(std::span<const GradientTiming> gradients,
                                                  const MergeOptions& options);

/// The end of the last exchange in that model, for buckets that leave in this order.
/// @throws InvalidArgument for a parameter without timing.
double exchange_end_s(std::span<const GradientTiming> gradients,
                      std::span<const std::vector<ParamId>> buckets, const BucketCost& cost);

}  // namespace gradwire
