// How those that are left agree: each asks the ranks below it, the lowest first, to collect; who
// finds none collects itself.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "gradwire/comm/internal/control.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{50};       // between looks at ranks that have not come
constexpr milliseconds kAtOnce{50};     // for a short look
constexpr milliseconds kBriefly{100};   // for a living rank's first word
constexpr milliseconds kLeast{50};      // of RebuildOptions::silence

/// What a rank that was asked says; asking others does not help.
class Refused : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Which of `addresses` live: they accept a connection and say their first word. Sets kGone for those
/// whose machine refuses.
std::vector<bool> look_at(const std::vector<std::string>& addresses, std::vector<Presence*> ranks,
                          Deadline end) {
  const Deadline deadline = std::min(end, steady_clock::now() + kBriefly);
  std::vector<Socket> sockets(addresses.size());
  std::vector<pollfd> polled;
  std::vector<bool> alive(addresses.size(), false);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t colon = addresses[i].rfind(':');
    const int error = start_connecting(addresses[i].substr(0, colon),
                                       addresses[i].substr(colon + 1), sockets[i]);
    if (error == ECONNREFUSED) {
      *ranks[i] = Presence::kGone;
    }
    polled.push_back({error == 0 ? sockets[i].fd() : -1, POLLIN, 0});
  }
  const auto waits = [](const pollfd& entry) { return entry.fd >= 0; };
  while (std::any_of(polled.begin(), polled.end(), waits) && steady_clock::now() < deadline) {
    ::poll(polled.data(), polled.size(), remaining_ms(deadline));
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

int place_of(int rank, const std::vector<int>& members) {
  return static_cast<int>(std::lower_bound(members.begin(), members.end(), rank) -
                          members.begin());
}

}  // namespace

Control::Absent Control::look() const {
  std::vector<std::string> addresses;
  {
    std::lock_guard lock(mutex_);
    addresses = addresses_;
  }
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

Control::Agreement Control::agree(uint64_t generation, const RebuildOptions& options) {
  const auto now = steady_clock::now();
  const Clock clock{now + options.timeout, now + options.timeout / 2,
                    std::max(options.silence, kLeast)};
  std::vector<Presence> presence;
  {
    std::lock_guard lock(mutex_);
    if (const std::string why = refusal(generation, rank_); !why.empty()) {
      throw TransportError(why);
    }
    presence.resize(addresses_.size(), Presence::kUnknown);
    presence[static_cast<size_t>(rank_)] = Presence::kJoined;
    state_ = State::kJoining;
  }
  try {
    // Ends: collect() returns true at the deadline.
    for (int candidate = 0;;) {
      int whom = candidate;
      if (candidate == rank_ && collect(clock, presence, whom)) {
        return decide(std::move(presence));
      }
      Agreement agreement;
      const Attempt attempt = join(whom, clock, agreement);
      if (attempt == Attempt::kAgreed) {
        agreement.generation = generation + 1;
        go_on(agreement);
        return agreement;
      }
      if (attempt == Attempt::kGone) {
        presence[static_cast<size_t>(whom)] = Presence::kGone;
      }
      if (whom > rank_) {
        candidate = 0;
        set_state(State::kJoining);
      } else {
        ++candidate;
      }
    }
  } catch (const TransportError&) {
    set_state(State::kIdle);
    throw;
  }
}

Control::Attempt Control::join(int candidate, const Clock& clock, Agreement& agreement) {
  const Deadline patience = std::min(clock.deadline, steady_clock::now() + clock.silence);
  for (;;) {
    Attempt why_not{};
    const std::optional<Socket> socket = reach(candidate, patience, why_not);
    if (socket) {
      const Attempt attempt = await_decision(*socket, candidate, clock, agreement);
      if (attempt != Attempt::kGone) {
        return attempt;
      }
    } else if (why_not != Attempt::kNext) {
      return why_not;
    }
    if (steady_clock::now() >= patience) {
      return Attempt::kSilent;
    }
    std::this_thread::sleep_for(milliseconds(2));  // it closed the connection: is its port closed?
  }
}

// kGone here: the connection ended.
Control::Attempt Control::await_decision(const Socket& socket, int candidate, const Clock& clock,
                                         Agreement& agreement) {
  uint64_t generation = 0;
  int rank = 0;
  {
    std::lock_guard lock(mutex_);
    generation = generation_;
    rank = rank_;
  }
  Deadline heard = steady_clock::now();
  try {
    // A tenth less than it has: the answer must still arrive.
    const auto left = std::chrono::duration_cast<milliseconds>(clock.deadline - heard) * 9 / 10;
    write_frame(socket, concat("J ", generation, " ", rank, " ", left.count()), clock.deadline);
    for (;;) {
      pollfd entry{socket.fd(), POLLIN, 0};
      if (::poll(&entry, 1, remaining_ms(steady_clock::now() + clock.silence / 3)) <= 0) {
        if (steady_clock::now() - heard > clock.silence) {
          return Attempt::kSilent;
        }
        write_frame(socket, concat("P ", generation, " ", rank), clock.deadline);
        continue;
      }
      std::istringstream words(read_frame(socket, clock.deadline));
      heard = steady_clock::now();
      std::string kind;
      words >> kind;
      if (kind == "G") {
        words >> agreement.store >> agreement.server;
        for (int member = 0; words >> member;) {
          agreement.members.push_back(member);
        }
        agreement.rank = place_of(rank, agreement.members);
        return Attempt::kAgreed;
      }
      if (kind == "E") {
        std::string why;
        std::getline(words >> std::ws, why);
        throw Refused(why);
      }
      char state = 0;
      words >> state;
      if (kind != "S") {
        return Attempt::kNext;
      }
      // It may decide at this moment, with this rank among the members: the answer tells.
      if (state == static_cast<char>(State::kIdle) && heard > clock.half) {
        write_frame(socket, concat("L ", generation, " ", rank), clock.deadline);
        continue;
      }
      if (heard >= clock.deadline) {
        throw Refused(concat("rebuild: rank ", candidate, ", which collects the others, did not "
                               "decide in time"));
      }
    }
  } catch (const Refused& refused) {
    throw TransportError(refused.what(), candidate);
  } catch (const TransportError&) {
    return steady_clock::now() >= clock.deadline ? Attempt::kSilent : Attempt::kGone;
  }
}

bool Control::collect(const Clock& clock, std::vector<Presence>& presence, int& collector) {
  const auto start = steady_clock::now();
  set_state(State::kCollecting);
  for (;;) {
    Deadline end = clock.deadline;
    std::vector<int> missing;
    std::vector<std::string> addresses;
    std::vector<Presence*> places;
    {
      std::lock_guard lock(mutex_);
      for (int r = 0; r < static_cast<int>(presence.size()); ++r) {
        Presence& place = presence[static_cast<size_t>(r)];
        if (const auto join = joins_.find(r); join != joins_.end()) {
          place = Presence::kJoined;
          end = std::min(end, join->second.deadline);
        } else if (r != rank_) {
          place = place == Presence::kJoined ? Presence::kUnknown : place;
          if (place == Presence::kUnknown) {
            missing.push_back(r);
            addresses.push_back(addresses_[static_cast<size_t>(r)]);
            places.push_back(&place);
          }
        }
      }
    }
    if (missing.empty() || steady_clock::now() >= end) {
      return true;
    }
    const std::vector<bool> alive = look_at(addresses, places, end);
    std::vector<int> living;
    for (size_t i = 0; i < missing.size(); ++i) {
      if (alive[i]) {
        living.push_back(missing[i]);
      }
    }
    const bool unknown = std::any_of(places.begin(), places.end(), [](const Presence* place) {
      return *place == Presence::kUnknown;
    });
    if (!unknown) {
      continue;
    }
    if (living.empty() && steady_clock::now() - start >= clock.silence) {
      return true;
    }
    collector = find_collector(living, end);
    std::unique_lock lock(mutex_);
    if (collector >= 0) {
      for (const auto& [rank, join] : joins_) {
        server_.send(join.client, "N");
      }
      joins_.clear();
      state_ = State::kFollowing;
      return false;
    }
    const size_t before = joins_.size();
    joined_.wait_until(lock, std::min(end, steady_clock::now() + kLook), [&] { return joins_.size() != before; });
  }
}

int Control::find_collector(const std::vector<int>& ranks, Deadline end) const {
  uint64_t generation = 0;
  int own = 0;
  {
    std::lock_guard lock(mutex_);
    generation = generation_;
    own = rank_;
  }
  for (const int rank : ranks) {
    const Deadline deadline = std::min(end, steady_clock::now() + kBriefly);
    Attempt ignored{};
    const std::optional<Socket> socket = reach(rank, deadline, ignored);
    std::string answer;
    try {
      if (socket) {
        write_frame(*socket, concat("P ", generation, " ", own), deadline);
        answer = read_frame(*socket, deadline);
      }
    } catch (const TransportError&) {
      continue;  // it has just ended, or is silent: the next look tells
    }
    if (answer.starts_with("E ")) {
      throw TransportError(answer.substr(2), rank);
    }
    if (rank > own && answer == std::string("S ") + static_cast<char>(State::kCollecting)) {
      return rank;
    }
  }
  return -1;
}

Control::Agreement Control::decide(std::vector<Presence> presence) {
  const std::string why = why_too_few(presence);
  Agreement agreement;
  agreement.members = joined_ranks(presence);
  std::string message = "E " + why;
  if (why.empty()) {
    agreement.listener = listen_on(host_, "0");
    agreement.store = concat(host_, ":", local_port_of(agreement.listener));
    agreement.rank = agreement.server = place_of(rank_, agreement.members);
    message = told(agreement);
  }
  {
    std::lock_guard lock(mutex_);
    agreement.generation = generation_ + 1;
    for (const auto& [rank, join] : joins_) {
      if (std::binary_search(agreement.members.begin(), agreement.members.end(), rank)) {
        server_.send(join.client, message);
      }
    }
    if (!why.empty()) {
      joins_.clear();
    }
  }
  if (!why.empty()) {
    throw TransportError(why);
  }
  go_on(agreement);
  return agreement;
}

}  // namespace gradwire
