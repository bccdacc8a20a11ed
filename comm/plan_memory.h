#pragma once
// What a rank will hold for a plan, before there is a rank: worked out by the compressors and exchanges
// that a Reducer makes.

#include "gradwire/comm/plan.h"

namespace gradwire {

/// What a rank holds for a plan, in bytes, the same on all ranks: of a node's ranks what the one that
/// holds most does. As room: memory of the CPU that nobody writes to is not taken.
struct PlanMemory {
  size_t gradients = 0;    ///< room of the Reducer's own, for callers that hand over none of theirs
  size_t residuals = 0;    ///< in float32, both buffers
  size_t narrow = 0;       ///< and in bfloat16
  size_t estimates = 0;    ///< of ef21, both buffers
  size_t compressors = 0;  ///< such as velocities, and what low rank has learned
  size_t scratch = 0;      ///< in place of residuals that are kept narrow or on the host, in float32
  size_t payloads = 0;     ///< of all buckets
  size_t messages = 0;     ///< of the buckets in turn
};

/// Of a world of so many ranks, behind the steps of start= and warmup=, in memory of the CPU, where one
/// bucket is exchanged at a time.
/// @throws InvalidArgument for nodes that do not divide the world.
PlanMemory memory_of(const Plan& plan, int world_size);

/// The part that does not depend on the number of ranks: without payloads and messages.
PlanMemory kept_between_steps(const Plan& plan);

}  // namespace gradwire
