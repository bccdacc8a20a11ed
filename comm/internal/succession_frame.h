#pragma once
// What ranks tell each other while they agree on the group that follows theirs (succession.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire {

/// A decision: these members shall connect. Ranks are those of the first group of all, ascending.
struct Attempt {
  int leader = -1;
  uint64_t number = 0;  ///< of the leader's attempts; the two name it
  std::vector<int> members{};
  std::vector<uint64_t> votes{};  ///< of each member: the one by which it joined
  std::string place{};            ///< where they meet, "10.0.0.1:4711"

  bool is(const Attempt& other) const { return leader == other.leader && number == other.number; }
  bool has(int rank) const;
  /// The vote of a member.
  uint64_t vote_of(int rank) const;
};

/// All that a rank has to say: a newer frame replaces an older one, and any may be lost.
struct SuccessionFrame {
  /// Not in rebuild(), looking for a leader or following one, connecting, or confirmed.
  enum class Phase : char { kIdle = 'i', kJoined = 'j', kConnecting = 'c', kConfirmed = 'd' };

  int rank = -1;
  uint64_t sequence = 0;
  std::vector<Attempt> history{};  ///< the groups that followed the first one; the last is its base
  uint64_t vote = 0;               ///< counts whom it has followed
  Phase phase = Phase::kIdle;
  int follows = -1;
  int64_t left_ms = 0;  ///< how long it waits
  std::vector<int> hears{}, gone{};
  std::optional<Attempt> decision{};  ///< the one it leads
  std::vector<Attempt> pending{};     ///< confirmed, and their ends not known; the last one last
  std::string failure{};              ///< why its last rebuild() as a leader failed
  std::vector<std::pair<int, uint64_t>> failed{};  ///< for whom: ranks and votes

  std::string to_text() const;
  /// Nothing for what is none.
  static std::optional<SuccessionFrame> parse(const std::string& text);
};

}  // namespace gradwire
