#include "gradwire/comm/internal/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/within.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A caller has so long to show who it is, as at a Server.
constexpr milliseconds kPatience{2000};
constexpr milliseconds kPause{50};  // between two calls of the same rank, at most

using Secret = Nonce;  // of this rank's port, known to whoever reads the store

/// What the store says of a rank: the secret of its port, then "10.0.0.1:4711".
struct Place {
  std::string secret;
  std::string host, port;
};

Place read_place(const std::vector<char>& value, int rank) {
  const std::string text(value.begin(), value.end());
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon < sizeof(Secret)) {
    throw TransportError(concat("rank ", rank, " says where it listens in ", value.size(),
                                " bytes, expected a secret of ", sizeof(Secret), " and an address"),
                         rank);
  }
  return {text.substr(0, sizeof(Secret)), text.substr(sizeof(Secret), colon - sizeof(Secret)),
          text.substr(colon + 1)};
}

/// Who called and has not shown yet who it is.
struct Caller {
  Socket socket;
  std::string from;
  Nonce nonce{};
  std::string input;
  bool proven = false;
  Deadline until{};
};

/// Where the ranks above this one call.
class Door {
 public:
  Door(const std::string& address, const TransportOptions& options)
      : listener_(listen_on(address, "0")),
        address_(concat(address, ":", local_port_of(listener_))),
        own_(random_nonce()),
        secret_(options.job_secret + own()),
        rank_(options.rank),
        log_(options.log),
        most_callers_(std::max<size_t>(32, 2 * static_cast<size_t>(options.world_size))) {}

  std::string place() const { return own() + address_; }

  /// Until all ranks from `sockets` on that have no socket yet have come.
  void admit_all(std::vector<Socket>& sockets, Deadline deadline, milliseconds timeout) {
    for (std::string missing = missing_of(sockets); !missing.empty();
         missing = missing_of(sockets)) {
      if (steady_clock::now() >= deadline) {
        throw TransportError(
            concat("no sign of ", missing, " at ", address_, " ", within(timeout)));
      }
      wait_for_news(deadline);
      std::erase_if(callers_, [&](Caller& caller) { return is_done(caller, sockets); });
    }
  }

 private:
  std::string own() const { return {own_.begin(), own_.end()}; }

  std::string missing_of(const std::vector<Socket>& sockets) const {
    std::string names;
    for (auto r = static_cast<size_t>(rank_) + 1; r < sockets.size(); ++r) {
      if (!sockets[r]) {
        names += concat(names.empty() ? "rank " : ", ", r);
      }
    }
    return names;
  }

  void wait_for_news(Deadline deadline) {
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
    for (const Caller& caller : callers_) {
      polled.push_back({caller.socket.fd(), POLLIN, 0});
      deadline = std::min(deadline, caller.until);
    }
    if (::poll(polled.data(), polled.size(), remaining_ms(deadline)) <= 0 ||
        polled[0].revents == 0) {
      return;
    }
    Caller caller;
    caller.socket =
        Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!caller.socket) {
      std::this_thread::sleep_for(milliseconds(1));  // out of descriptors: no spinning
      return;
    }
    caller.from = remote_address_of(caller.socket);
    caller.until = steady_clock::now() + kPatience;
    Challenge challenge;
    challenge.nonce = caller.nonce = random_nonce();
    if (!write(caller, challenge)) {
      return;
    }
    if (callers_.size() >= most_callers_) {
      refuse(callers_.front(), concat(callers_.size(),
                                      " connections wait that have not proven "
                                      "themselves, this is the oldest"));
      callers_.erase(callers_.begin());
    }
    callers_.push_back(std::move(caller));
  }

  /// Whether a caller is to be forgotten: it became a peer, or it is none of ours.
  bool is_done(Caller& caller, std::vector<Socket>& sockets) const {
    const size_t whole = caller.proven ? sizeof(uint32_t) : sizeof(Proof);
    char bytes[sizeof(Proof)];
    // Never past what belongs here: the engine's own bytes may be right behind.
    const ssize_t count =
        ::recv(caller.socket.fd(), bytes, whole - caller.input.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (steady_clock::now() < caller.until) {
        return false;
      }
      return refuse(caller, concat("it did not prove itself within ", kPatience.count(), " ms"));
    }
    if (count <= 0) {
      return caller.input.empty() || refuse(caller, "it hung up before it had proven itself");
    }
    caller.input.append(bytes, static_cast<size_t>(count));
    if (!caller.proven) {
      return !is_proof_so_far(caller);
    }
    uint32_t rank = 0;
    if (caller.input.size() < sizeof(rank)) {
      return false;
    }
    std::memcpy(&rank, caller.input.data(), sizeof(rank));
    if (rank <= static_cast<uint32_t>(rank_) || rank >= sockets.size() || sockets[rank]) {
      return refuse(caller, concat("it says that it is rank ", rank, ", expected one of ",
                                   missing_of(sockets)));
    }
    sockets[rank] = std::move(caller.socket);
    return true;
  }

  bool is_proof_so_far(Caller& caller) const {
    Proof proof;
    std::memcpy(static_cast<void*>(&proof), caller.input.data(), caller.input.size());
    const size_t magic = std::min(sizeof(proof.magic), caller.input.size());
    if (std::memcmp(caller.input.data(), &Proof::kMagic, magic) != 0) {
      return !refuse(caller, "it speaks another protocol");
    }
    if (caller.input.size() < sizeof(proof)) {
      return true;
    }
    caller.input.clear();
    Verdict verdict;
    caller.proven =
        same_digest(proof.digest, proof_of("client", secret_, caller.nonce, proof.nonce));
    if (caller.proven) {
      verdict.outcome = Verdict::kAccepted;
      verdict.digest = proof_of("server", secret_, caller.nonce, proof.nonce);
    } else {
      refuse(caller, "it has another job secret");
    }
    return write(caller, verdict) && caller.proven;
  }

  /// A few bytes, which a new connection always has room for.
  template <class T>
  static bool write(const Caller& caller, const T& value) {
    return ::send(caller.socket.fd(), &value, sizeof(value), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(sizeof(value));
  }

  bool refuse(const Caller& caller, std::string_view why) const {
    if (log_) {
      log_(concat("rank ", rank_, "'s port ", address_, ": refused ", caller.from, ": ", why));
    }
    return true;
  }

  Socket listener_;
  std::string address_;
  Secret own_;
  std::string secret_;
  int rank_;
  std::function<void(std::string_view)> log_;
  size_t most_callers_;
  std::vector<Caller> callers_;  // the oldest first
};

/// A connection to a rank that is at its door or soon will be.
Socket call(const Place& place, int callee, const TransportOptions& options, Deadline deadline) {
  const auto own = static_cast<uint32_t>(options.rank);
  milliseconds pause(1);
  for (;;) {
    std::string why;
    try {
      Socket socket;
      const int error = connect_once(place.host, place.port, deadline, socket);
      if (error == 0) {
        prove(socket, options.job_secret + place.secret, deadline);
        write_all(socket, {reinterpret_cast<const char*>(&own), sizeof(own)}, deadline);
        return socket;
      }
      why = std::strerror(error);
      if (error == ECONNREFUSED) {  // it listened before it said where
        deadline = steady_clock::now();
      }
    } catch (const WrongPeer& wrong) {
      deadline = steady_clock::now();  // its port is another's by now
      why = wrong.what();
    } catch (const TransportError& failure) {
      why = failure.what();  // sent away, as the oldest of too many callers
    }
    if (steady_clock::now() + pause >= deadline) {
      throw TransportError(
          concat("rank ", callee, " is not reached at ", place.host, ":", place.port, ": ", why),
          callee);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kPause);
  }
}

}  // namespace

std::vector<Socket> connect_mesh(Store& store, std::string_view name, const std::string& address,
                                 const TransportOptions& options) {
  Door door(address, options);
  store.set(concat(name, "/", options.rank), door.place());
  std::vector<Socket> sockets(static_cast<size_t>(options.world_size));
  // Upwards, so that whoever is called last has called those below it by then.
  for (int rank = 0; rank < options.rank; ++rank) {
    const Place place = read_place(store.get(concat(name, "/", rank)), rank);
    sockets[static_cast<size_t>(rank)] = call(place, rank, options, store.deadline());
  }
  door.admit_all(sockets, store.deadline(), store.timeout());
  return sockets;
}

}  // namespace gradwire
