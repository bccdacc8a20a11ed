#pragma once
// One rank's part in succession.h.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "gradwire/comm/internal/succession.h"

namespace gradwire::succession {

using Frame = SuccessionFrame;
using Phase = Frame::Phase;

inline bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

inline bool contains(const std::vector<Attempt>& attempts, const Attempt& attempt) {
  return std::any_of(attempts.begin(), attempts.end(),
                     [&](const Attempt& other) { return other.is(attempt); });
}

class Succession final : public SuccessionProtocol {
 public:
  Succession(int rank, int world_size) : rank_(rank), base_(static_cast<size_t>(world_size)) {
    std::iota(base_.begin(), base_.end(), 0);
  }

  std::vector<int> base() const override { return base_; }
  bool connects_in_vain() const override { return connecting_ && !announced_; }
  uint64_t generation() const override { return history_.size(); }
  bool take_change() override { return std::exchange(changed_, false); }

  void begin(Ms now, Limits limits) override {
    limits_ = std::move(limits);
    begun_ = since_ = now;
    failure_.clear();
    failed_.clear();
    phase_ = Phase::kJoined;
    follow(rank_);
    tick(now);
  }

  void give_up() override {
    leave();
    connecting_ = false;
    phase_ = Phase::kIdle;
    follow(-1);
  }

  void found_gone(int rank, Ms now) override {
    if (gone_.insert(rank).second) {
      changed_ = true;
      tick(now);
    }
  }

  void heard(const std::string& text, Ms now) override;
  void connected(bool fine, Ms now) override;
  void tick(Ms now) override;
  News take_news() override;
  std::string frame(Ms now) override;

 private:
  struct Peer {
    Frame frame;
    Ms heard = 0;
  };

  /// Of this base, and heard at any time.
  const Frame* frame_of(int rank) const {
    const auto found = peers_.find(rank);
    if (found == peers_.end()) {
      return nullptr;
    }
    const std::vector<Attempt>& theirs = found->second.frame.history;
    return theirs.size() == history_.size() && is_mine(theirs) ? &found->second.frame : nullptr;
  }
  bool is_heard(int rank, Ms now) const {
    const auto found = peers_.find(rank);
    return found != peers_.end() && !gone_.contains(rank) &&
           now - found->second.heard < limits_.silence;
  }
  bool is_mine(int rank) const { return rank == rank_; }
  /// Whether this history has come through the base.
  bool is_mine(const std::vector<Attempt>& history) const {
    return history.size() >= history_.size() &&
           (history_.empty() || history[history_.size() - 1].is(history_.back()));
  }
  /// As the base counts them, for messages.
  int place_of(int rank) const {
    return static_cast<int>(std::find(base_.begin(), base_.end(), rank) - base_.begin());
  }
  std::vector<int> places_of(std::vector<int> ranks) const {
    for (int& rank : ranks) {
      rank = place_of(rank);
    }
    return ranks;
  }

  bool enough(const std::vector<int>& ranks, const std::vector<int>& gone) const;
  std::vector<int> heard_ranks(Ms now) const;
  bool leads(int rank, Ms now) const;
  bool reaches_enough(int rank, Ms now) const;
  int best_leader(Ms now) const;
  void follow(int leader);
  void leave();
  bool is_void(const Attempt& attempt) const;
  void drop_void();
  void adopt(const Attempt& attempt, Ms now);
  void follow_attempt(Ms now);
  void lead(Ms now);
  void decide(std::vector<int> joined);
  bool could_go_on_without(const Attempt& attempt, const std::vector<int>& ranks) const;
  const Attempt* blocked_by(const std::vector<int>& joined) const;
  void lead_attempt(Ms now);
  void fail(std::string reason, const std::vector<int>& told);
  std::string too_few(const std::vector<int>& joined) const;

  const int rank_;
  std::vector<int> base_;
  std::vector<Attempt> history_;
  uint64_t sequence_ = 0, vote_ = 0, number_ = 0;
  Phase phase_ = Phase::kIdle;
  int follows_ = -1;
  std::optional<Attempt> current_;  // connecting or confirmed
  std::vector<Attempt> pending_;
  std::set<int> gone_;
  std::map<int, Peer> peers_;
  Limits limits_;
  Ms begun_ = 0;             // when rebuild() was called
  Ms since_ = 0;             // since when ranks of this base are listened for
  bool connecting_ = false;  // whoever drives this has not said yet what became of it
  bool announced_ = false;   // of current_: that it is to be connected
  std::string failure_;
  std::vector<std::pair<int, uint64_t>> failed_;
  std::deque<News> news_;
  bool changed_ = true;
};

}  // namespace gradwire::succession
