#pragma once
// Ranks that agree over a network of the test's own: one thread, time that is counted, and chance
// by a seed. For any implementation of SuccessionProtocol.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gradwire/comm/internal/succession.h"

namespace gradwire::succession_test {

using Ms = SuccessionProtocol::Ms;
using Make = std::function<std::unique_ptr<SuccessionProtocol>(int rank, int world_size)>;

class World {
 public:
  World(int size, uint64_t seed, const Make& make) : random_(seed), size_(size) {
    for (int r = 0; r < size; ++r) {
      ranks_.emplace_back().protocol = make(r, size);
    }
    sides_.assign(static_cast<size_t>(size), 0);
  }

  Ms now() const { return now_; }
  Ms up_to(Ms most) { return std::uniform_int_distribution<Ms>(0, most)(random_); }
  bool alive(int r) const { return ranks_[static_cast<size_t>(r)].alive; }
  /// Ranks reach each other where they are on the same side.
  void cut(std::vector<int> sides) { sides_ = std::move(sides); }
  bool linked(int a, int b) const {
    return sides_[static_cast<size_t>(a)] == sides_[static_cast<size_t>(b)];
  }
  void kill(int r) { at(r).alive = false; }
  /// It lives, and does not call rebuild().
  void keep_out(int r) { at(r).stays_out = true; }
  /// The group they are in has failed: they call rebuild(), within `spread`.
  void break_all(Ms spread) {
    for (Rank& rank : ranks_) {
      rank.calls_at = now_ + up_to(spread);
    }
  }

  void run_until(Ms end) {
    for (; now_ < end; ++now_) {
      for (auto it = flying_.begin(); it != flying_.end() && it->first <= now_;) {
        const auto [to, text, answered] = it->second;
        it = flying_.erase(it);
        if (at(to).alive) {
          protocol(to).heard(text, now_);
          if (answered >= 0) {
            send(to, answered, false);
          }
          settle(to);
        }
      }
      for (int r = 0; r < size_; ++r) {
        if (at(r).alive) {
          step(r);
        }
      }
      notice_failures();
    }
  }

  /// The groups that each rank has been in, as text; a rank that has not ended is in the last one.
  const std::vector<std::string>& groups_of(int r) const {
    return ranks_[static_cast<size_t>(r)].groups;
  }
  bool works(int r) const {
    const Rank& rank = ranks_[static_cast<size_t>(r)];
    return rank.alive && rank.formed && !rank.in_rebuild;
  }
  /// Two living ranks that have gone on from one base in different groups which worked, with all
  /// their members in them at once; empty if there are none.
  std::string two_groups() const {
    for (int a = 0; a < size_; ++a) {
      for (int b = a + 1; b < size_; ++b) {
        const auto &one = groups_of(a), &other = groups_of(b);
        for (size_t i = 0; alive(a) && alive(b) && i < std::min(one.size(), other.size()); ++i) {
          if (one[i] != other[i] && worked_.contains(one[i]) && worked_.contains(other[i])) {
            return "ranks " + std::to_string(a) + " and " + std::to_string(b) + ": " + one[i] +
                   " and " + other[i];
          }
        }
      }
    }
    return {};
  }
  SuccessionProtocol& protocol(int r) { return *at(r).protocol; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  struct Rank {
    std::unique_ptr<SuccessionProtocol> protocol;
    bool alive = true;
    bool stays_out = false;
    bool in_rebuild = false;
    bool formed = false;    ///< works in the last of `groups`
    Ms calls_at = 1 << 30;  ///< rebuild()
    Ms until = 0;           ///< its deadline
    Ms says_at = 0;
    std::string connecting;  ///< to which decision
    std::vector<int> with;
    Ms connects_until = 0;
    bool connected = false;
    std::vector<int> members;  ///< of the group it is in
    std::vector<std::string> groups;
  };
  struct Flying {
    int to;
    std::string text;
    int answered;  ///< by whom it is answered, or -1
  };

  Rank& at(int r) { return ranks_[static_cast<size_t>(r)]; }

  void send(int from, int to, bool asks) {
    if (!linked(from, to)) {
      return;
    }
    // Mostly quick; some frames are late, and arrive whatever was cut since.
    const Ms delay = up_to(9) == 0 ? up_to(600) : 1 + up_to(3);
    flying_.emplace(now_ + delay, Flying{to, protocol(from).frame(now_), asks ? from : -1});
  }

  void step(int r) {
    Rank& rank = at(r);
    if (!rank.in_rebuild && now_ >= rank.calls_at && !rank.stays_out) {
      rank.calls_at = 1 << 30;
      rank.until = now_ + kTimeout;
      rank.in_rebuild = true;
      rank.formed = false;
      protocol(r).begin(now_, {.timeout = kTimeout, .silence = 300, .open_place = [this, r] {
                                 return std::to_string(r) + "#" + std::to_string(++places_);
                               }});
    }
    if (!rank.in_rebuild) {
      return;
    }
    protocol(r).tick(now_);
    if (!rank.connecting.empty() &&
        (now_ >= rank.connects_until || protocol(r).connects_in_vain())) {
      rank.connecting.clear();
      protocol(r).connected(false, now_);
      if (now_ >= rank.until) {
        end_rebuild(r, "could not connect");
        return;
      }
    } else if (!rank.connecting.empty() && all_connect(r) && up_to(4) == 0) {
      rank.connecting.clear();
      rank.connected = true;
      protocol(r).connected(true, now_);
    }
    settle(r);
    if (protocol(r).take_change() || now_ >= rank.says_at) {
      rank.says_at = now_ + 20;
      for (const int other : protocol(r).base()) {
        if (other != r && linked(r, other) && !at(other).alive) {
          protocol(r).found_gone(other, now_);
        } else if (other != r) {
          send(r, other, true);
        }
      }
    }
  }

  /// Whether rank r has reached all others: each is at the same decision or has been through it.
  bool all_connect(int r) {
    for (const int other : at(r).with) {
      const bool came = other == r || at(other).connecting == at(r).connecting ||
                        came_.contains({other, at(r).connecting});
      if (!came || !linked(r, other) || !at(other).alive) {
        return false;
      }
    }
    came_.insert({r, at(r).connecting});
    return true;
  }

  /// With an error; it calls rebuild() again. What it was still to do is forgotten, as in Control.
  void end_rebuild(int r, const std::string& reason) {
    Rank& rank = at(r);
    errors_.push_back(reason);
    rank.connecting.clear();
    rank.in_rebuild = false;
    rank.calls_at = now_ + 50 + up_to(200);
    protocol(r).give_up();
    while (protocol(r).take_news().kind != SuccessionProtocol::News::Kind::kNone) {
    }
  }

  void settle(int r) {
    Rank& rank = at(r);
    using Kind = SuccessionProtocol::News::Kind;
    for (auto news = protocol(r).take_news(); news.kind != Kind::kNone;
         news = protocol(r).take_news()) {
      if (news.kind == Kind::kConnect) {
        rank.connecting = news.place;
        rank.with = news.members;
        rank.connects_until = now_ + 500;
      } else if (news.kind == Kind::kFormed) {
        rank.in_rebuild = false;
        rank.formed = true;
        rank.members = news.members;
      } else if (news.kind == Kind::kFailed) {
        end_rebuild(r, news.reason);
      }
    }
    while (rank.groups.size() < protocol(r).generation()) {
      std::string group;
      for (const int member : protocol(r).base()) {
        group += " " + std::to_string(member);
      }
      rank.groups.push_back("group" + group + " of generation " +
                            std::to_string(protocol(r).generation()));
    }
    if (rank.formed && std::all_of(rank.members.begin(), rank.members.end(), [&](int member) {
          return at(member).formed && at(member).groups == rank.groups;
        })) {
      worked_.insert(rank.groups.begin(), rank.groups.end());
    }
    const std::string two = two_groups();
    if (!two.empty() && found_.empty()) {
      found_ = two;
    }
  }

  /// A group with a member that died, is cut off or has left it fails at all others, a little
  /// later.
  void notice_failures() {
    for (int r = 0; r < size_; ++r) {
      Rank& rank = at(r);
      if (!rank.alive || !rank.formed || rank.in_rebuild || rank.calls_at < (1 << 30)) {
        continue;
      }
      for (const int other : rank.members) {
        const Rank& peer = at(other);
        if (!peer.alive || !linked(r, other) ||
            (peer.groups.size() >= rank.groups.size() && !peer.formed)) {
          rank.calls_at = now_ + 20 + up_to(200);
        }
      }
    }
  }

  static constexpr Ms kTimeout = 3000;  // of rebuild()
  std::mt19937_64 random_;
  int size_;
  Ms now_ = 1;
  std::vector<Rank> ranks_;
  std::vector<int> sides_;
  std::multimap<Ms, Flying> flying_;
  std::set<std::pair<int, std::string>> came_;
  std::set<std::string> worked_;
  std::vector<std::string> errors_;
  int places_ = 0;
  std::string found_;

 public:
  /// The first two groups that there were, at any time.
  const std::string& found() const { return found_; }
};

}  // namespace gradwire::succession_test
