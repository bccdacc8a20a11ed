#pragma once
// Beside the sockets that carry payloads, every rank listens on one more: there others ask why it
// closed the group, and there those that are left agree on the next one.
//
// Frames are text (handshake.h has their outer form), generations count the groups since the first:
//   "W generation"              why did you close?      -> "R culprit reason", once there is one
//   "P generation rank"         how far are you?        -> "S state", or "E why not"
//   "J generation rank left_ms" I want to be in the next group, and wait this long
//                               -> "G store server rank rank ...", "E why not", or "N": ask the next rank;
//                                  before that "S state"
//   "L generation rank"         I no longer wait for you -> "N", unless one of those came first

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/internal/quorum.h"
#include "gradwire/comm/internal/server.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// One rank's control socket, through all generations of its group. Addresses are "10.0.0.1:4711".
class Control {
 public:
  /// Listens on a free port of `host`, a numeric address of this machine. Rank, world size, secret
  /// and log are those of `options`.
  Control(const std::string& host, const TransportOptions& options);

  const std::string& address() const { return address_; }
  /// Those of all ranks of the first group.
  void set_addresses(std::vector<std::string> addresses);

  struct Reason {
    std::string text;
    int culprit = -1;
  };
  /// What others are told who ask why this rank closed a generation. The first one counts.
  void closed(uint64_t generation, const Reason& reason);
  /// Why `peer` closed the generation; nothing when it died, or says nothing within `patience`.
  std::optional<Reason> ask(uint64_t generation, int peer, std::chrono::milliseconds patience);

  struct Absent {
    std::vector<int> gone;    ///< their machine says that the process has ended
    std::vector<int> silent;  ///< stopped, or cut off: they accept no connection or do not speak
  };
  /// Who of this generation is not there, by a short look.
  Absent look() const;

  struct Agreement {
    uint64_t generation = 0;
    std::vector<int> members;  ///< ranks of the generation before, ascending
    int rank = 0;              ///< own place among them
    std::string store;         ///< "10.0.0.1:4711": where the members meet
    int server = 0;            ///< which of them serves it: who has collected the others
    Socket listener;           ///< of the store, on that rank
  };
  /// Transport::rebuild() up to the list of members. @throws TransportError as it says.
  Agreement agree(uint64_t generation, const RebuildOptions& options);

 private:
  /// Not in agree(), collecting, asking ranks below, or sent on to a collector above.
  enum class State : char { kIdle = 'i', kCollecting = 'c', kJoining = 'j', kFollowing = 'f' };
  enum class Attempt : uint8_t { kAgreed, kGone, kSilent, kNext };
  struct Join {
    Server::Client client = 0;
    Deadline deadline;
  };
  struct Clock {
    Deadline deadline;  // of the whole
    Deadline half;      // how long a living rank that has not called is waited for in vain
    std::chrono::milliseconds silence;
  };

  Control(Socket listener, const std::string& host, const TransportOptions& options);

  // On the server's thread.
  void answer(Server::Client client, const std::string& request);
  void forget(Server::Client client);
  /// Answers a member of the group that followed a generation which is over: whoever collected them
  /// has died before it had told all. False for others.
  bool hand_on(Server::Client client, std::string_view kind, uint64_t generation, int rank);
  /// The decision as it travels.
  static std::string told(const Agreement& agreement);
  /// Why a rank of a generation that is over, or unknown, gets no further; empty otherwise.
  std::string refusal(uint64_t generation, int rank) const;

  // In agree().
  Attempt join(int candidate, const Clock& clock, Agreement& agreement);
  Attempt await_decision(const Socket& socket, int candidate, const Clock& clock,
                         Agreement& agreement);
  /// False when a rank above collects already: it is `collector` then.
  bool collect(const Clock& clock, std::vector<Presence>& presence, int& collector);
  /// A rank above this one, of these living ones that have not joined, that collects too; -1 if none.
  /// @throws TransportError when one says that the others went on.
  int find_collector(const std::vector<int>& ranks, Deadline end) const;
  Agreement decide(std::vector<Presence> presence);
  void go_on(const Agreement& agreement);
  std::optional<Socket> reach(int rank, Deadline deadline, Attempt& why_not) const;
  void set_state(State state);

  std::string host_, secret_, address_;
  mutable std::mutex mutex_;
  std::condition_variable joined_;
  uint64_t generation_ = 0;
  int rank_;
  std::vector<std::string> addresses_;  // of this generation's ranks
  State state_ = State::kIdle;
  std::map<int, Join> joins_;
  std::map<uint64_t, Reason> reasons_;
  struct Passed {
    std::vector<int> members;
    std::string told;
  };
  std::map<uint64_t, Passed> went_on_;  // who, from each generation that is over, and where they met
  std::vector<std::pair<Server::Client, uint64_t>> asking_;
  Server server_;  // last: its thread uses the others
};

}  // namespace gradwire
