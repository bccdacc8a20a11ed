#include "gradwire/comm/internal/succession.h"

#include "gradwire/comm/internal/quorum.h"
#include "gradwire/comm/internal/succession_rank.h"
#include "gradwire/comm/internal/within.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace succession {

bool Succession::enough(const std::vector<int>& ranks, const std::vector<int>& gone) const {
  size_t there = 0, dead = 0;
  for (const int rank : base_) {
    there += contains(ranks, rank) ? 1 : 0;
    dead += !contains(ranks, rank) && contains(gone, rank) ? 1 : 0;
  }
  return 2 * there > base_.size() || (2 * there == base_.size() && there + dead == base_.size());
}

std::vector<int> Succession::heard_ranks(Ms now) const {
  std::vector<int> ranks;
  for (const int rank : base_) {
    if (is_mine(rank) || is_heard(rank, now)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

bool Succession::leads(int rank, Ms now) const {
  const Frame* const frame = frame_of(rank);
  return !is_mine(rank) && frame != nullptr && is_heard(rank, now) &&
         frame->phase != Phase::kIdle && frame->follows == rank;
}

bool Succession::reaches_enough(int rank, Ms now) const {
  return is_mine(rank) ? enough(heard_ranks(now), {gone_.begin(), gone_.end()})
                       : enough(frame_of(rank)->hears, frame_of(rank)->gone);
}

/// The lowest that leads, or is this one. Once there has been time to hear of all, only one that
/// reaches enough counts where there is any. Who follows another stays with it: a decision that is
/// on its way must find the vote that it answers.
int Succession::best_leader(Ms now) const {
  const bool settled = now - since_ >= limits_.silence / 2;
  const auto fits = [&](int rank) { return !settled || reaches_enough(rank, now); };
  if (leads(follows_, now) && fits(follows_)) {
    return follows_;
  }
  int lowest = leads(follows_, now) ? follows_ : rank_;
  for (const int rank : base_) {
    if (is_mine(rank) || leads(rank, now)) {
      if (fits(rank)) {
        return rank;
      }
      lowest = std::min(lowest, rank);
    }
  }
  return lowest;
}

// Join.
void Succession::follow(int leader) {
  follows_ = leader;
  ++vote_;
  changed_ = true;
}

// Leave. What was confirmed stays pending: whether the leader said Go this rank cannot know; a
// leader knows that it has not.
void Succession::leave() {
  if (!current_) {
    return;
  }
  if (phase_ == Phase::kConfirmed) {
    news_.push_back({.kind = News::Kind::kDisconnect});
  }
  if (is_mine(current_->leader)) {
    std::erase_if(pending_, [&](const Attempt& attempt) { return attempt.is(*current_); });
  }
  current_.reset();
  announced_ = false;
  phase_ = Phase::kJoined;
  follow(rank_);
}

/// Void. True for good: a vote never comes back.
bool Succession::is_void(const Attempt& attempt) const {
  return std::any_of(attempt.members.begin(), attempt.members.end(), [&](int rank) {
    const Frame* const frame = frame_of(rank);
    const uint64_t left = attempt.vote_of(rank);
    return is_mine(rank)
               ? vote_ > left && !contains(pending_, attempt)
               : frame != nullptr && frame->vote > left && !contains(frame->pending, attempt);
  });
}

void Succession::drop_void() {
  if (std::erase_if(pending_, [&](const Attempt& attempt) { return is_void(attempt); }) > 0) {
    changed_ = true;
  }
}

void Succession::heard(const std::string& text, Ms now) {
  std::optional<Frame> frame = Frame::parse(text);
  if (!frame || frame->rank == rank_ || !contains(base_, frame->rank)) {
    return;
  }
  Peer& peer = peers_[frame->rank];
  if (peer.frame.sequence >= frame->sequence) {
    return;  // it was late
  }
  peer.heard = now;
  peer.frame = std::move(*frame);
  const std::vector<Attempt>& theirs = peer.frame.history;
  if (theirs.size() > history_.size() && is_mine(theirs)) {
    const Attempt next = theirs[history_.size()];
    drop_void();
    // One that was confirmed later than that group rules it out, unless it is void itself (whoever
    // says so is one of its members then) or could not go on without this rank: the others have
    // died.
    const bool confirmed = contains(pending_, next);
    std::erase_if(pending_, [&](const Attempt& attempt) {
      return !attempt.is(next) && (attempt.has(peer.frame.rank) ||
                                   (confirmed && !could_go_on_without(attempt, {rank_})));
    });
    if (!pending_.empty() && pending_.back().is(next)) {
      adopt(next, now);
    } else if (!next.has(rank_) && phase_ != Phase::kIdle) {
      fail(left_behind(place_of(rank_), places_of(next.members)), {});
    }
  }
  tick(now);
}

// Adopt, and Go.
void Succession::adopt(const Attempt& attempt, Ms now) {
  const bool there = current_ && current_->is(attempt) && phase_ == Phase::kConfirmed;
  if (!there) {
    leave();
  }
  history_.push_back(attempt);
  base_ = attempt.members;
  pending_.clear();
  current_.reset();
  announced_ = false;
  changed_ = true;
  if (there) {
    phase_ = Phase::kIdle;
    follows_ = -1;
    news_.push_back({.kind = News::Kind::kFormed, .members = base_});
  } else if (phase_ != Phase::kIdle) {
    since_ = now;
    follow(rank_);
  }
}

void Succession::connected(bool fine, Ms now) {
  connecting_ = false;
  if (!current_ || !announced_) {  // it was left meanwhile
    if (fine) {
      news_.push_back({.kind = News::Kind::kDisconnect});
    }
  } else if (!fine) {
    leave();
  } else if (!is_mine(current_->leader) && !is_heard(current_->leader, now)) {
    leave();  // it could not hear this rank confirm
    news_.push_back({.kind = News::Kind::kDisconnect});
  } else {  // Confirm
    phase_ = Phase::kConfirmed;
    pending_.push_back(*current_);
    changed_ = true;
  }
  tick(now);
}

void Succession::tick(Ms now) {
  drop_void();
  if (phase_ == Phase::kIdle) {
    return;
  }
  if (current_) {
    if (is_mine(current_->leader)) {
      lead_attempt(now);
    } else {
      follow_attempt(now);
    }
  }
  if (phase_ == Phase::kJoined) {
    const std::pair<int, uint64_t> me{rank_, vote_};
    const Frame* const last = frame_of(follows_);
    if (last != nullptr &&
        std::find(last->failed.begin(), last->failed.end(), me) != last->failed.end() &&
        (reaches_enough(follows_, now) || !reaches_enough(rank_, now))) {
      fail(last->failure, {});
      return;
    }
    if (const int best = best_leader(now); best != follows_) {
      follow(best);
    }
    if (is_mine(follows_)) {
      lead(now);
    } else if (const Frame* const leader = frame_of(follows_)) {
      if (leader->decision && leader->decision->has(rank_) &&
          leader->decision->vote_of(rank_) == vote_) {
        current_ = leader->decision;
        phase_ = Phase::kConnecting;
        changed_ = true;
      } else if (now >= begun_ + limits_.timeout) {
        fail(concat("rebuild: rank ", place_of(follows_),
                    ", which collects the others, did not decide ",
                    within(std::chrono::milliseconds(limits_.timeout))),
             {});
      }
    }
  }
  if (phase_ == Phase::kConnecting && !announced_ && !connecting_) {
    announced_ = connecting_ = true;
    news_.push_back({.kind = News::Kind::kConnect,
                     .members = current_->members,
                     .place = current_->place,
                     .leader = current_->leader});
  }
}

void Succession::follow_attempt(Ms now) {
  const Frame* const leader = frame_of(current_->leader);
  const bool left = leader != nullptr && leader->vote > current_->vote_of(current_->leader);
  if (left || (phase_ == Phase::kConfirmed && !is_heard(current_->leader, now))) {
    leave();
    drop_void();
  }
}

void Succession::fail(std::string reason, const std::vector<int>& told) {
  failure_ = reason;
  failed_.clear();
  for (const int rank : told) {
    if (!is_mine(rank)) {
      failed_.emplace_back(rank, frame_of(rank)->vote);
    }
  }
  leave();
  phase_ = Phase::kIdle;
  follow(-1);
  news_.push_back({.kind = News::Kind::kFailed, .reason = std::move(reason)});
}

SuccessionProtocol::News Succession::take_news() {
  if (news_.empty()) {
    return {};
  }
  News news = std::move(news_.front());
  news_.pop_front();
  return news;
}

std::string Succession::frame(Ms now) {
  Frame frame{.rank = rank_,
              .sequence = ++sequence_,
              .history = history_,
              .vote = vote_,
              .phase = phase_,
              .follows = follows_,
              .left_ms = begun_ + limits_.timeout - now,
              .hears = heard_ranks(now),
              .gone = {gone_.begin(), gone_.end()},
              .decision = current_ && is_mine(current_->leader) ? current_ : std::nullopt,
              .pending = pending_,
              .failure = failure_,
              .failed = failed_};
  return frame.to_text();
}

}  // namespace succession

std::unique_ptr<SuccessionProtocol> make_succession(int rank, int world_size) {
  return std::make_unique<succession::Succession>(rank, world_size);
}

}  // namespace gradwire
