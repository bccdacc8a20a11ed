#pragma once
// Which group follows one that broke: at most one, whatever is cut, lost or late.
//
// The protocol of one rank, without a clock, a socket or a thread: whoever drives it brings time,
// frames and what became of connecting. Its steps have the names of the model that spin checks
// (tests/model/succession.pml):
//
//   Join     a rank follows the lowest one that reaches enough of the base, by a new vote
//   Decide   the leader names those that follow it, if they are enough, each with its vote
//   Confirm  a member has connected to all others; it keeps the decision as pending
//   Go       the leader has heard every member confirm: the group is the base of the next
//   Adopt    a member that confirmed hears from anybody that the group was begun
//   Leave    a rank gives up an attempt: it takes a new vote, and never confirms by the old one
//   Void     a pending decision will never be a group: one of its members has left unconfirmed
//
// A group is begun when all its members have confirmed, and is more than half of its base (or half,
// the others proven dead): any two groups of one base would share a member, which is bound by what
// it has confirmed until that is void, or until the leader of another attempt has more than half of
// its members (without the dead): those that are left could not go on from it. So a member follows
// a group that was begun before the one it confirmed last, where the living others of that one are
// fewer than half. A group that never connected is never confirmed, and never a base.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gradwire/comm/internal/succession_frame.h"

namespace gradwire {

/// What a protocol for this does, and what the tests drive over a network of their own.
class SuccessionProtocol {
 public:
  using Ms = int64_t;  ///< since any start

  virtual ~SuccessionProtocol() = default;

  struct Limits {
    Ms timeout = 0;                             ///< for ranks that live to call rebuild() as well
    Ms silence = 0;                             ///< for one of which nothing is heard
    std::function<std::string()> open_place{};  ///< where a group could meet, on this rank
  };
  /// rebuild() was called.
  virtual void begin(Ms now, Limits limits) = 0;
  /// A frame has come: when it was sent nobody knows.
  virtual void heard(const std::string& frame, Ms now) = 0;
  /// The process of that rank has ended: its machine says so.
  virtual void found_gone(int rank, Ms now) = 0;
  /// What became of News::kConnect.
  virtual void connected(bool fine, Ms now) = 0;
  /// The decision that it is connecting to has been given up: connected() will change nothing.
  virtual bool connects_in_vain() const = 0;
  /// Time has passed.
  virtual void tick(Ms now) = 0;
  /// rebuild() has ended with an error. News is forgotten: no connected() answers it.
  virtual void give_up() = 0;

  struct News {
    enum class Kind : uint8_t {
      kNone,
      kConnect,     ///< to `members`, who meet at `place`, which `leader` opened
      kDisconnect,  ///< they have not all confirmed, or that is not known
      kFormed,      ///< what was connected is the group
      kFailed,      ///< rebuild() ends, because of `reason`
    };
    Kind kind = Kind::kNone;
    std::vector<int> members{};
    std::string place{};
    int leader = -1;
    std::string reason{};
  };
  virtual News take_news() = 0;

  /// What this rank has to say now, to anybody, whether in rebuild() or not. They tell each other
  /// when it changes, again and again, and in answer to a frame.
  virtual std::string frame(Ms now) = 0;
  /// Whether it changed since it was told, but for time.
  virtual bool take_change() = 0;
  /// Whom rebuild() concerns: the ranks of the last group that connected, ascending.
  virtual std::vector<int> base() const = 0;
  /// How many groups followed the first.
  virtual uint64_t generation() const = 0;
};

/// For rank `rank` of the first group, of `world_size` ranks.
std::unique_ptr<SuccessionProtocol> make_succession(int rank, int world_size);

}  // namespace gradwire
