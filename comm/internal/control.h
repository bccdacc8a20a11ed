#pragma once
// Beside the sockets that carry payloads, every rank listens on one more: there others ask why it
// closed the group, and there those that are left agree on the next one.
//
// Frames are text (frame_seal.h has their outer form), generations count the groups since the
// first:
//   "W generation"   why did you close?      -> "R culprit reason", once there is one
//   "S ..."          what succession_frame.h says -> the same of the one who is asked

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/internal/server.h"
#include "gradwire/comm/internal/succession.h"
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
  /// Who of a generation is not there, by a short look.
  Absent look(uint64_t generation) const;

  struct Agreement {
    uint64_t generation = 0;
    std::vector<int> members;        ///< ranks of the generation that rebuilds, ascending
    int rank = 0;                    ///< own place among them
    std::string store;               ///< "10.0.0.1:4711": where the members meet
    int server = 0;                  ///< which of them serves it: who has collected the others
    Socket listener;                 ///< of the store, on that rank
    std::function<bool()> given_up;  ///< connecting is in vain by now
  };
  struct Connecting {
    std::function<void(Agreement&)> connect;  ///< throws where it cannot be done
    std::function<void()> disconnect;         ///< what was connected is no group
  };
  /// Transport::rebuild(), for a group of this generation: returns what has been connected, and
  /// confirmed by all members. @throws TransportError as it says.
  Agreement agree(uint64_t generation, const RebuildOptions& options, const Connecting& how);

 private:
  Control(Socket listener, const std::string& host, const TransportOptions& options);

  // On the server's thread.
  void answer(Server::Client client, const std::string& request);
  void forget(Server::Client client);

  std::optional<ProvenSocket> reach(const std::string& address, Deadline deadline) const;
  std::vector<std::string> addresses_of(uint64_t generation) const;
  /// Speaks with all others until told to stop: control_links.h.
  void drive(std::chrono::milliseconds silence);
  /// With the lock: takes note of what the protocol has to say.
  void settle();
  Agreement agreement_of(const SuccessionProtocol::News& news, uint64_t generation);
  std::string open_place();

  std::string host_, secret_, address_;
  const int rank_;  // of the first group, as all others that the protocol knows
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::unique_ptr<SuccessionProtocol> protocol_;
  std::deque<SuccessionProtocol::News> news_;
  std::map<std::string, Socket> places_;         // opened for decisions of this rank
  std::vector<std::string> addresses_;           // of the first group's ranks
  std::map<uint64_t, std::vector<int>> groups_;  // who was in which generation
  std::atomic<bool> driven_{false}, in_vain_{false};
  std::map<uint64_t, Reason> reasons_;
  std::vector<std::pair<Server::Client, uint64_t>> asking_;
  Server server_;  // last: its thread uses the others
};

}  // namespace gradwire
