#pragma once
// Who takes part in the rebuild of a group, and whether they are enough.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradwire {

/// What those who rebuild a group know of one of its ranks.
enum class Presence : uint8_t {
  kUnknown,  ///< lives and has not come, is stopped, or cannot be reached
  kGone,     ///< its process has ended
  kJoined,
};

/// The ranks that joined, ascending.
std::vector<int> joined_ranks(std::span<const Presence> ranks);

/// Empty when those that joined may go on: more than half of the group, or half when all others are
/// gone. No two sets of ranks that do not overlap can both be so: two of more than half overlap;
/// and beside a half whose others are gone, the only set large enough is those others. Otherwise
/// why not, naming the missing.
std::string why_too_few(std::span<const Presence> ranks);

/// "rank 2", "ranks 0, 1".
std::string list_ranks(std::span<const int> ranks);

/// What a rank is told that comes after `members` have gone on.
std::string left_behind(int rank, std::span<const int> members);

}  // namespace gradwire
