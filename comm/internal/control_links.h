#pragma once
// One rank's connections to the control sockets of all others, made and used without waiting for
// any.

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/comm/internal/handshake.h"

namespace gradwire {

/// As SuccessionProtocol counts time.
int64_t milliseconds_now();

/// Not from several threads at once.
class ControlLinks {
 public:
  /// Addresses are those of all ranks.
  ControlLinks(std::vector<std::string> addresses, int rank, std::string secret);

  struct Words {
    std::vector<int> to;
    std::string frame;
    bool changed = false;  ///< says it now, else when it is time
  };
  /// Says it to those that can be reached, and tries to reach the others. Whoever has not answered
  /// for half of `silence` is reached anew.
  void speak(const Words& words, std::chrono::milliseconds silence);

  struct Heard {
    std::vector<std::string> frames;
    std::vector<int> gone;  ///< whose machines refuse: their processes have ended
  };
  Heard listen(std::chrono::milliseconds at_most);

 private:
  enum class State : uint8_t { kNone, kConnecting, kProving, kReady };
  struct Link {
    int rank = -1;
    State state = State::kNone;
    Socket socket{};
    Nonce server{}, client{};
    Seals seals{};
    std::string input{}, output{};
    Deadline heard{}, said{}, again{};
    bool waits = false;  ///< for an answer, since `said` or earlier
  };

  void connect(Link& link, Heard& heard);
  void drop(Link& link, Deadline again);
  void write(Link& link);
  /// What has arrived. False when the connection is over.
  bool read(Link& link, Heard& heard);
  bool take_challenge(Link& link);
  bool take_verdict(Link& link);
  Link& at(int rank) { return links_[static_cast<size_t>(rank)]; }

  std::vector<std::string> addresses_;
  int rank_;
  std::string secret_, frame_;
  std::vector<Link> links_;
  Heard found_;  ///< by speak()
};

}  // namespace gradwire
