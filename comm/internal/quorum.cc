#include "gradwire/comm/internal/quorum.h"

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

std::vector<int> ranks_that_are(std::span<const Presence> ranks, Presence presence) {
  std::vector<int> found;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] == presence) {
      found.push_back(static_cast<int>(r));
    }
  }
  return found;
}

}  // namespace

std::vector<int> joined_ranks(std::span<const Presence> ranks) {
  return ranks_that_are(ranks, Presence::kJoined);
}

std::string list_ranks(std::span<const int> ranks) {
  std::string list = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) {
    list += concat(i == 0 ? " " : ", ", ranks[i]);
  }
  return list;
}

std::string why_too_few(std::span<const Presence> ranks) {
  const std::vector<int> joined = joined_ranks(ranks);
  const std::vector<int> gone = ranks_that_are(ranks, Presence::kGone);
  const std::vector<int> unknown = ranks_that_are(ranks, Presence::kUnknown);
  if (2 * joined.size() > ranks.size() || (2 * joined.size() == ranks.size() && unknown.empty())) {
    return {};
  }
  std::string why = concat("rebuild: only ", list_ranks(joined), " of ", ranks.size(), " came");
  why += gone.empty() ? "" : concat("; gone: ", list_ranks(gone));
  why += unknown.empty() ? "" : concat("; not heard: ", list_ranks(unknown));
  return why + "; expected more than half, or half when all others are gone";
}

std::string left_behind(int rank, std::span<const int> members) {
  return concat("rebuild: ", list_ranks(members), " went on without rank ", rank);
}

}  // namespace gradwire
