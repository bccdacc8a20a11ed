// What the rank does that the others follow: whom it waits for, Decide, Go.

#include "gradwire/comm/internal/quorum.h"
#include "gradwire/comm/internal/succession_rank.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::succession {

void Succession::lead_attempt(Ms now) {
  bool all = phase_ == Phase::kConfirmed;
  for (const int rank : current_->members) {
    if (is_mine(rank)) {
      continue;
    }
    const Frame* const frame = frame_of(rank);
    const bool confirmed = frame != nullptr && contains(frame->pending, *current_);
    if (!is_heard(rank, now) ||
        (frame != nullptr && !confirmed && frame->vote > current_->vote_of(rank))) {
      leave();
      return;
    }
    all = all && confirmed;
  }
  if (all) {
    adopt(Attempt(*current_), now);  // Go
  }
}

/// Fewer than half of its members, without the dead, could never follow it with a group of their
/// own.
bool Succession::could_go_on_without(const Attempt& attempt, const std::vector<int>& ranks) const {
  const auto elsewhere = std::count_if(
      attempt.members.begin(), attempt.members.end(),
      [&](int member) { return !contains(ranks, member) && !gone_.contains(member); });
  return 2 * static_cast<size_t>(elsewhere) >= attempt.members.size();
}

/// A pending decision of one of these that may have become a group that goes on without them.
const Attempt* Succession::blocked_by(const std::vector<int>& joined) const {
  for (const int rank : joined) {
    for (const Attempt& attempt : is_mine(rank) ? pending_ : frame_of(rank)->pending) {
      if (could_go_on_without(attempt, joined) && !is_void(attempt)) {
        return &attempt;
      }
    }
  }
  return nullptr;
}

void Succession::lead(Ms now) {
  std::vector<int> joined;
  bool waits = false;
  Ms end = begun_ + limits_.timeout;
  for (const int rank : base_) {
    const Frame* const frame = frame_of(rank);
    if (is_mine(rank)) {
      joined.push_back(rank);
    } else if (is_heard(rank, now) && frame != nullptr && frame->phase == Phase::kJoined &&
               frame->follows == rank_ && peers_.at(rank).heard > begun_) {
      // (What was heard before is of an earlier call.)
      joined.push_back(rank);
      // A tenth less than it has: the decision must still arrive.
      end = std::min(end, peers_.at(rank).heard + frame->left_ms - limits_.timeout / 10);
    } else if (!gone_.contains(rank) && (is_heard(rank, now) || now - since_ < limits_.silence)) {
      waits = true;
    }
  }
  if (waits && now < end) {
    return;
  }
  if (!enough(joined, {gone_.begin(), gone_.end()})) {
    fail(too_few(joined), joined);
  } else if (const Attempt* const blocked = blocked_by(joined)) {
    std::vector<int> unheard;
    for (const int member : blocked->members) {
      if (!contains(joined, member) && !gone_.contains(member)) {
        unheard.push_back(member);
      }
    }
    if (now >= end) {
      fail(concat("rebuild: ", list_ranks(places_of(blocked->members)),
                  " may have gone on together; not heard: ", list_ranks(places_of(unheard))),
           joined);
    }
  } else {
    decide(std::move(joined));
  }
}

// Decide.
void Succession::decide(std::vector<int> joined) {
  Attempt attempt{.leader = rank_, .number = ++number_, .members = std::move(joined)};
  for (const int rank : attempt.members) {
    attempt.votes.push_back(is_mine(rank) ? vote_ : frame_of(rank)->vote);
  }
  attempt.place = limits_.open_place();
  current_ = std::move(attempt);
  phase_ = Phase::kConnecting;
  changed_ = true;
}

std::string Succession::too_few(const std::vector<int>& joined) const {
  std::vector<Presence> presence;
  for (const int rank : base_) {
    presence.push_back(contains(joined, rank) ? Presence::kJoined
                       : gone_.contains(rank) ? Presence::kGone
                                              : Presence::kUnknown);
  }
  return why_too_few(presence);
}

}  // namespace gradwire::succession
