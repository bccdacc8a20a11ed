#pragma once
// Which groups a split makes.

#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/comm/collectives.h"

namespace gradwire {

/// What a rank says in a split.
struct GroupChoice {
  int64_t color = 0;
  uint64_t next_group = 0;  ///< the first group id it has not used
};

/// The groups of all colors, ascending, from what all ranks of `parent` said; `rank` is -1 in those
/// this rank is not in. `next_group` is advanced past their ids.
/// @throws InvalidArgument when the ids have run out.
std::vector<RankGroup> split_groups(const RankGroup& parent, std::span<const GroupChoice> choices,
                                    uint16_t& next_group);

/// The one this rank is in.
RankGroup& own_group(std::span<RankGroup> groups);

}  // namespace gradwire
