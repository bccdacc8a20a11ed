// Who of a group is there.

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "gradwire/comm/internal/control.h"
#include "gradwire/comm/internal/quorum.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAtOnce{50};  // for a short look

/// Which of `addresses` live: they accept a connection and say their first word. Sets kGone for
/// those whose machine refuses.
std::vector<bool> look_at(const std::vector<std::string>& addresses, std::vector<Presence*> ranks,
                          Deadline end) {
  std::vector<Socket> sockets(addresses.size());
  std::vector<pollfd> polled;
  std::vector<bool> alive(addresses.size(), false);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t colon = addresses[i].rfind(':');
    const int error =
        start_connecting(addresses[i].substr(0, colon), addresses[i].substr(colon + 1), sockets[i]);
    if (error == ECONNREFUSED) {
      *ranks[i] = Presence::kGone;
    }
    polled.push_back({error == 0 ? sockets[i].fd() : -1, POLLIN, 0});
  }
  const auto waits = [](const pollfd& entry) { return entry.fd >= 0; };
  while (std::any_of(polled.begin(), polled.end(), waits) && steady_clock::now() < end) {
    ::poll(polled.data(), polled.size(), remaining_ms(end));
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd >= 0 && polled[i].revents != 0) {
        char byte = 0;
        const int error = read_once(sockets[i], byte);
        alive[i] = error == 0;
        if (error == ECONNREFUSED) {
          *ranks[i] = Presence::kGone;
        }
        polled[i].fd = -1;
      }
    }
  }
  return alive;
}

}  // namespace

Control::Absent Control::look(uint64_t generation) const {
  const std::vector<std::string> addresses = addresses_of(generation);
  std::vector<Presence> presence(addresses.size(), Presence::kUnknown);
  std::vector<Presence*> places;
  for (Presence& place : presence) {
    places.push_back(&place);
  }
  const std::vector<bool> alive = look_at(addresses, places, steady_clock::now() + kAtOnce);
  Absent found;
  for (size_t r = 0; r < presence.size(); ++r) {
    if (presence[r] == Presence::kGone) {
      found.gone.push_back(static_cast<int>(r));
    } else if (!alive[r]) {
      found.silent.push_back(static_cast<int>(r));
    }
  }
  return found;
}

}  // namespace gradwire
