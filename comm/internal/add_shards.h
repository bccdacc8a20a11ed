#pragma once
// The one sum over ranks.

#include <span>

#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// The same stretch of every rank's values, as rank `rank` holds it.
struct Shards {
  std::span<const float> own;
  std::span<const float> others;  ///< rank r's at r * own.size(); the place of `rank` is not read
  int rank = 0;
  int world_size = 1;
};

/// out = the sum over ranks, added in rank order in float32: the same bits on every rank. `out` may
/// be `own`. Runs on the pool of the context's stream, now.
void add_shards(const Shards& shards, std::span<float> out, Context& context);

}  // namespace gradwire
