#pragma once
// Where the groups of a bucket lie, and what this rank compresses of each.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/internal/bucket_memory.h"
#include "gradwire/comm/plan.h"

namespace gradwire {

/// Of each group in the bucket's own memory, and the end of the last one, in elements: each begins on a
/// multiple of 64 bytes.
std::vector<size_t> begins_of(std::span<const PlanGroup> groups, DType dtype);

/// Of each group, what this rank compresses.
std::vector<Region> shares_of(std::span<const PlanGroup> groups, int ranks_per_node, int rank);

/// Of each group's share, in the step that the start says.
Compressors make_compressors(const Plan& plan, BucketId id, std::span<const Region> shares,
                             const Transport& transport, const BucketStart& start);

/// The buckets in the order in which their exchanges are made: in the memory of the largest one's
/// messages those of the others have room.
std::vector<BucketId> largest_first(const Plan& plan);

/// "bucket 2 (gather, bf16 + topk:1%)", where `what` is "bucket 2".
std::string describe(const PlanBucket& bucket, std::string_view what);

}  // namespace gradwire
