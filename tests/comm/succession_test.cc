// Ranks that agree on the next group while links are cut, cuts move, frames are late and processes
// die: there are never two groups, and who can go on does.

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "tests/comm/succession_world.h"

namespace gradwire::succession_test {
namespace {

uint64_t seeds() { return std::getenv("GRADWIRE_SOAK") != nullptr ? 20000 : 60; }

/// The first of them.
uint64_t first_seed() {
  const char* const given = std::getenv("GRADWIRE_TEST_SEED");
  return given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
}

/// Whether these ranks, which reach each other and nobody else, must go on: they are enough of the
/// newest base that one of them has, and none has confirmed a group with half of its members
/// elsewhere.
bool must_go_on(World& world, const std::vector<int>& side, int size) {
  SuccessionFrame newest;
  for (const int r : side) {
    const auto frame = SuccessionFrame::parse(world.protocol(r).frame(world.now()));
    if (frame->history.size() >= newest.history.size()) {
      newest = *frame;
    }
  }
  std::vector<int> base(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    base[static_cast<size_t>(r)] = r;
  }
  base = newest.history.empty() ? base : newest.history.back().members;
  const auto in_base = static_cast<size_t>(std::count_if(base.begin(), base.end(), [&](int r) {
    return std::find(side.begin(), side.end(), r) != side.end();
  }));
  if (2 * in_base <= base.size()) {
    return false;
  }
  for (const int r : side) {
    const auto frame = SuccessionFrame::parse(world.protocol(r).frame(world.now()));
    for (const Attempt& pending : frame->pending) {
      const auto elsewhere = std::count_if(
          pending.members.begin(), pending.members.end(),
          [&](int member) { return std::find(side.begin(), side.end(), member) == side.end(); });
      if (2 * static_cast<size_t>(elsewhere) >= pending.members.size()) {
        return false;
      }
    }
  }
  return true;
}

struct Count {
  uint64_t formed = 0, waits = 0, two = 0;
};

/// Checks a world that has been left in peace.
void expect_peace(World& world, const std::vector<int>& sides, uint64_t seed, Count& count,
                  bool must = true) {
  const int size = static_cast<int>(sides.size());
  if (!world.found().empty()) {
    ++count.two;
  }
  bool any = false;
  for (int first = 0; first < size; ++first) {
    std::vector<int> side;
    for (int r = 0; r < size; ++r) {
      if (sides[static_cast<size_t>(r)] == sides[static_cast<size_t>(first)] && world.alive(r)) {
        side.push_back(r);
      }
    }
    const auto works =
        std::count_if(side.begin(), side.end(), [&](int r) { return world.works(r); });
    any = any || works > 0;
    if (must && !side.empty() && must_go_on(world, side, size)) {
      EXPECT_GT(works, 0) << "seed " << seed << ": nobody went on beside rank " << first;
    }
  }
  (any ? count.formed : count.waits) += 1;
}

Make real() { return make_succession; }

/// The cut {0,1,2} | {3,4} moves to {0,1} | {2,3,4} while rank 0 collects.
Count moving_cuts(const Make& make, bool must = true) {
  Count count;
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    World world(5, seed, make);
    world.cut({0, 0, 0, 1, 1});
    world.break_all(100);
    world.run_until(5 + world.up_to(900));
    const std::vector<int> sides{0, 0, 1, 1, 1};
    world.cut(sides);
    world.run_until(world.now() + 6000);
    expect_peace(world, sides, seed, count, must);
  }
  return count;
}

TEST(Succession, AMovingCutNeverMakesTwoGroups) {
  const Count count = moving_cuts(real());
  std::cout << count.formed << " went on, " << count.waits << " wait\n";
  EXPECT_EQ(count.two, 0u);
  EXPECT_GT(count.formed, seeds() * 9 / 10);
}

/// As it was: what the leader decides counts at once, and is the base of what follows.
class AtOnce final : public SuccessionProtocol {
 public:
  AtOnce(int rank, int size) : rank_(rank) {
    for (int r = 0; r < size; ++r) {
      base_.push_back(r);
    }
  }
  void begin(Ms now, Limits limits) override {
    limits_ = std::move(limits);
    begun_ = now;
    waiting_ = true;
    connecting_ = false;
  }
  void heard(const std::string& text, Ms now) override {
    const auto frame = SuccessionFrame::parse(text);
    heard_[frame->rank] = {*frame, now};
    const auto& theirs = frame->history;
    if (waiting_ && !connecting_ && theirs.size() > history_.size() &&
        theirs[history_.size()].has(rank_) && leader(now) == theirs[history_.size()].leader) {
      take(theirs[history_.size()]);
    }
  }
  void found_gone(int rank, Ms) override { gone_.insert(rank); }
  void connected(bool fine, Ms now) override {
    connecting_ = false;
    if (fine) {
      waiting_ = false;
      news_.push_back({.kind = News::Kind::kFormed, .members = base_});
    } else {
      begun_ = now;
    }
  }
  bool connects_in_vain() const override { return false; }
  void tick(Ms now) override {
    if (!waiting_ || connecting_ || leader(now) != rank_) {
      return;
    }
    Attempt attempt{.leader = rank_, .number = ++number_};
    size_t gone = 0;
    for (const int rank : base_) {
      const auto found = heard_.find(rank);
      const bool joined =
          rank == rank_ || (found != heard_.end() && found->second.first.follows == rank_ &&
                            found->second.first.history.size() == history_.size());
      gone += gone_.contains(rank) ? 1 : 0;
      if (joined && !gone_.contains(rank)) {
        attempt.members.push_back(rank);
        attempt.votes.push_back(0);
      } else if (!gone_.contains(rank) && now - begun_ < limits_.silence) {
        return;
      }
    }
    const size_t there = attempt.members.size();
    if (2 * there > base_.size() || (2 * there == base_.size() && there + gone == base_.size())) {
      attempt.place = limits_.open_place();
      take(attempt);
    }
  }
  void give_up() override { waiting_ = false; }
  News take_news() override {
    if (news_.empty()) {
      return {};
    }
    News news = news_.front();
    news_.pop_front();
    return news;
  }
  std::string frame(Ms now) override {
    SuccessionFrame frame;
    frame.rank = rank_;
    frame.sequence = ++sequence_;
    frame.history = history_;
    frame.follows = waiting_ ? leader(now) : -1;
    frame.phase = waiting_ ? SuccessionFrame::Phase::kJoined : SuccessionFrame::Phase::kIdle;
    return frame.to_text();
  }
  bool take_change() override { return false; }
  std::vector<int> base() const override { return base_; }
  uint64_t generation() const override { return history_.size(); }

 private:
  int leader(Ms now) const {
    for (const int rank : base_) {
      const auto found = heard_.find(rank);
      if (rank == rank_ ||
          (found != heard_.end() && now - found->second.second < limits_.silence)) {
        return rank;
      }
    }
    return rank_;
  }
  void take(const Attempt& attempt) {
    history_.push_back(attempt);
    base_ = attempt.members;
    connecting_ = true;
    news_.push_back({.kind = News::Kind::kConnect, .members = base_, .place = attempt.place});
  }

  int rank_;
  std::vector<int> base_;
  std::vector<Attempt> history_;
  std::map<int, std::pair<SuccessionFrame, Ms>> heard_;
  std::set<int> gone_;
  std::deque<News> news_;
  Limits limits_;
  Ms begun_ = 0;
  uint64_t number_ = 0, sequence_ = 0;
  bool waiting_ = false, connecting_ = false;
};

/// Cuts that move and heal, and processes that die, at any time.
Count random_faults(const Make& make) {
  Count count;
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    World world(3 + static_cast<int>(seed % 3), seed, make);
    const int size = 3 + static_cast<int>(seed % 3);
    std::vector<int> sides(static_cast<size_t>(size), 0);
    world.break_all(300);
    for (Ms faults = 1 + world.up_to(5); faults > 0; --faults) {
      world.run_until(world.now() + world.up_to(world.up_to(2) == 0 ? 1500 : 60));
      if (world.up_to(3) == 0) {
        world.kill(static_cast<int>(world.up_to(size - 1)));
      } else {
        for (int& side : sides) {
          side = static_cast<int>(world.up_to(1));
        }
        world.cut(sides);
      }
    }
    world.run_until(world.now() + 9000);
    expect_peace(world, sides, seed, count);
    if (!world.found().empty() && count.two == 1) {
      std::cout << "seed " << seed << ": " << world.found() << "\n";
    }
  }
  return count;
}

TEST(Succession, RandomFaultsNeverMakeTwoGroupsAndWhoCanGoOnDoes) {
  const Count count = random_faults(real());
  std::cout << count.formed << " have a group, " << count.waits << " have none\n";
  EXPECT_EQ(count.two, 0u);
  EXPECT_GT(count.formed, seeds() / 2);
}

TEST(Succession, TheSameWorldFindsTwoGroupsWhereADecisionCountsAtOnce) {
  const Make at_once = [](int rank, int size) { return std::make_unique<AtOnce>(rank, size); };
  const Count count = moving_cuts(at_once, false);
  std::cout << count.two << " of " << seeds() << " with two groups\n";
  EXPECT_GT(count.two, 0u);
}

TEST(Succession, EveryRankGoesOnWhereNothingIsCut) {
  World world(4, 1, real());
  world.break_all(50);
  world.run_until(1000);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(world.groups_of(r), (std::vector<std::string>{"group 0 1 2 3 of generation 1"}));
  }
}

TEST(Succession, OfTwoOneGoesOnWhereTheOtherHasDiedAndNoneWhereItIsCutOff) {
  for (const bool dies : {true, false}) {
    World world(2, 1, real());
    if (dies) {
      world.kill(0);
    } else {
      world.cut({0, 1});
    }
    world.break_all(0);
    world.run_until(3000);
    EXPECT_EQ(world.groups_of(1).size(), dies ? 1u : 0u);
    if (!dies) {
      ASSERT_FALSE(world.errors().empty());
      EXPECT_EQ(world.errors()[0].substr(0, 42), "rebuild: only rank 0 of 2 came; not heard:");
    }
  }
}

TEST(Succession, ARankThatLivesAndDoesNotComeIsWaitedForUntilTheTimeoutAndNoLonger) {
  World world(3, 7, real());
  world.keep_out(1);
  world.break_all(50);
  world.run_until(2000);
  EXPECT_TRUE(world.groups_of(0).empty()) << "it lives, and may come";
  world.run_until(3500);
  EXPECT_EQ(world.groups_of(0), (std::vector<std::string>{"group 0 2 of generation 1"}));
  EXPECT_EQ(world.groups_of(2), world.groups_of(0));
  EXPECT_TRUE(world.errors().empty());
}

// Rank 2 has confirmed {0, 1, 2} and, cut off from rank 0, {1, 2}. Rank 1 dies before that is
// begun.
TEST(Succession, WhoIsBoundToTheDeadAloneFollowsTheGroupThatWasBegunBefore) {
  using Phase = SuccessionFrame::Phase;
  const auto rank2 = make_succession(2, 3);
  SuccessionProtocol::Ms now = 0;
  const auto hears = [&](SuccessionFrame frame) {
    frame.sequence = static_cast<uint64_t>(now += 10);
    frame.hears = {0, 1, 2};
    rank2->heard(frame.to_text(), now);
  };
  const auto vote = [&] { return SuccessionFrame::parse(rank2->frame(now))->vote; };
  rank2->begin(now, {.timeout = 5000, .silence = 1000});
  hears({.rank = 0, .vote = 1, .phase = Phase::kJoined, .follows = 0});
  const Attempt all{.leader = 0, .number = 1, .members = {0, 1, 2}, .votes = {1, 1, vote()}};
  hears({.rank = 0, .vote = 1, .phase = Phase::kConnecting, .follows = 0, .decision = all});
  rank2->connected(true, now);
  now += 900;
  hears({.rank = 1, .vote = 2, .phase = Phase::kJoined, .follows = 1, .pending = {all}});
  now += 900;  // nothing of rank 0
  hears({.rank = 1, .vote = 2, .phase = Phase::kJoined, .follows = 1, .pending = {all}});
  const Attempt two{.leader = 1, .number = 1, .members = {1, 2}, .votes = {2, vote()}};
  hears({.rank = 1,
         .vote = 2,
         .phase = Phase::kConnecting,
         .follows = 1,
         .decision = two,
         .pending = {all}});
  rank2->connected(true, now);
  ASSERT_EQ(SuccessionFrame::parse(rank2->frame(now))->pending.size(), 2u);

  hears({.rank = 0, .history = {all}, .vote = 2, .phase = Phase::kJoined, .follows = 0});
  EXPECT_EQ(rank2->generation(), 0u) << "rank 1 may have begun the later one, and live";
  rank2->found_gone(1, now);
  hears({.rank = 0, .history = {all}, .vote = 2, .phase = Phase::kJoined, .follows = 0});
  EXPECT_EQ(rank2->generation(), 1u);
  EXPECT_EQ(rank2->base(), (std::vector<int>{0, 1, 2}));
}

// A member's rebuild() ends at its deadline when its leader has decided anew while it connected.
TEST(Succession, ARebuildThatEndsBetweenTwoDecisionsDoesNotKeepTheNextOneFromConnecting) {
  using Phase = SuccessionFrame::Phase;
  using Kind = SuccessionProtocol::News::Kind;
  const auto rank1 = make_succession(1, 3);
  SuccessionProtocol::Ms now = 0;
  uint64_t number = 0;
  // The leader takes a new vote, and decides with whichever this rank has by now.
  const auto decides = [&] {
    SuccessionFrame leader{.rank = 0, .vote = ++number, .phase = Phase::kJoined, .follows = 0};
    leader.hears = {0, 1, 2};
    for (const bool decided : {false, true}) {
      const auto mine = SuccessionFrame::parse(rank1->frame(now));
      leader.sequence = static_cast<uint64_t>(now += 10);
      if (decided) {
        leader.phase = Phase::kConnecting;
        leader.decision = {0, number, {0, 1}, {number, mine->vote}, std::to_string(number)};
      }
      rank1->heard(leader.to_text(), now);
    }
  };
  const SuccessionProtocol::Limits limits{.timeout = 1000, .silence = 300};
  rank1->begin(now, limits);
  decides();
  EXPECT_EQ(rank1->take_news().place, "1");
  decides();
  EXPECT_TRUE(rank1->connects_in_vain());
  rank1->connected(false, now);
  EXPECT_EQ(rank1->take_news().place, "2");
  rank1->give_up();  // nobody connects to that one

  rank1->begin(now, limits);
  decides();
  const auto news = rank1->take_news();
  EXPECT_EQ(news.kind, Kind::kConnect);
  EXPECT_EQ(news.place, "3");
}

TEST(Succession, ALaggardIsToldWhoWentOn) {
  World world(3, 5, real());
  world.cut({0, 1, 0});
  world.break_all(50);
  world.run_until(1500);
  ASSERT_EQ(world.groups_of(2), (std::vector<std::string>{"group 0 2 of generation 1"}));
  world.cut({0, 0, 0});
  world.run_until(2500);
  EXPECT_EQ(world.errors().back(), "rebuild: ranks 0, 2 went on without rank 1");
}

}  // namespace
}  // namespace gradwire::succession_test
