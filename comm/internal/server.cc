#include "gradwire/comm/internal/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

template <class T>
std::string_view view_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

Server::Server(Socket listener, ServerOptions options, Callbacks callbacks)
    : listener_(std::move(listener)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      thread_([this] { run(); }) {}

Server::~Server() {
  if (!process_.here()) {
    process_.let_go(thread_);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void Server::wake() {
  const uint64_t one = 1;
  // It fails only when the count is full, and then the bell is ringing already.
  [[maybe_unused]] const ssize_t written = ::write(bell_.fd(), &one, sizeof(one));
}

void Server::send(Client client, std::string_view bytes) {
  {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(client);
    if (found == connections_.end()) {
      return;
    }
    found->second.output.append(found->second.seals.server.seal(bytes));
  }
  wake();
}

void Server::drain(milliseconds at_most) {
  if (!process_.here()) {
    return;  // the clients are the other process's
  }
  const Deadline end = steady_clock::now() + at_most;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (std::none_of(connections_.begin(), connections_.end(),
                       [](const auto& entry) { return entry.second.proven; })) {
        return;
      }
    }
    if (steady_clock::now() >= end) {
      return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void Server::run() {
  std::vector<pollfd> polled;
  std::vector<Client> clients;
  for (;;) {
    polled.assign({{bell_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}});
    clients.clear();
    Deadline next = Deadline::max();
    {
      std::lock_guard lock(mutex_);
      if (stop_) {
        return;
      }
      for (const auto& [client, connection] : connections_) {
        const int events = connection.output.empty() ? POLLIN : POLLIN | POLLOUT;
        polled.push_back({connection.socket.fd(), static_cast<short>(events), 0});
        clients.push_back(client);
        next = connection.proven ? next : std::min(next, connection.proves_until);
      }
    }
    if (::poll(polled.data(), polled.size(), remaining_ms(next)) < 0 && errno != EINTR) {
      return;  // clients see their connections end
    }
    uint64_t rings = 0;
    [[maybe_unused]] const ssize_t heard = ::read(bell_.fd(), &rings, sizeof(rings));
    for (size_t i = 0; i < clients.size(); ++i) {
      // Only this thread removes entries, so the reference stays.
      Connection& connection = connections_.find(clients[i])->second;
      if (!serve(clients[i], connection, polled[i + 2].revents)) {
        close(clients[i]);
      }
    }
    if (polled[1].revents != 0) {
      accept_one();
    }
  }
}

bool Server::serve(Client client, Connection& connection, short events) {
  if (!connection.proven && steady_clock::now() >= connection.proves_until) {
    refuse(connection, concat("it did not prove itself within ", options_.patience.count(), " ms"));
    return false;
  }
  if ((events & POLLOUT) != 0) {
    std::lock_guard lock(mutex_);
    if (!write(connection)) {
      return false;
    }
  }
  return (events & (POLLIN | POLLHUP | POLLERR)) == 0 || read(client, connection);
}

bool Server::read(Client client, Connection& connection) {
  char bytes[4096];
  const ssize_t count = ::recv(connection.socket.fd(), bytes, sizeof(bytes), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    // One that says nothing and leaves only looked whether somebody is here.
    if (!connection.proven && !connection.input.empty()) {
      refuse(connection, "it hung up before it had proven itself");
    }
    return false;
  }
  std::string& input = connection.input;
  input.append(bytes, static_cast<size_t>(count));
  if (!connection.proven && !check_proof(connection)) {
    return false;
  }
  try {
    for (std::string request; connection.proven && connection.seals.client.take(input, request);) {
      callbacks_.request(client, std::move(request));
    }
  } catch (const BadFrame& bad) {
    refuse(connection, bad.what());
    return false;
  }
  return true;
}

// False when it is not one of ours. True too while bytes are missing.
bool Server::check_proof(Connection& connection) {
  Proof proof;
  std::string& input = connection.input;
  // Garbage is refused by its first bytes: it need not be as long as a proof.
  const auto magic = view_of(proof).substr(0, std::min(sizeof(proof.magic), input.size()));
  if (!input.starts_with(magic)) {
    refuse(connection, "it speaks another protocol");
    return false;
  }
  if (input.size() < sizeof(proof)) {
    return true;
  }
  std::memcpy(&proof, input.data(), sizeof(proof));
  input.erase(0, sizeof(proof));
  const std::string& secret = options_.secret;
  const bool proven =
      same_digest(proof.digest, proof_of("client", secret, connection.nonce, proof.nonce));
  Verdict verdict;
  if (proven) {
    verdict.outcome = Verdict::kAccepted;
    verdict.digest = proof_of("server", secret, connection.nonce, proof.nonce);
  } else {
    refuse(connection, "it has another job secret");
  }
  std::lock_guard lock(mutex_);
  connection.proven = proven;
  connection.seals = seals_of(secret, connection.nonce, proof.nonce);
  connection.output.append(view_of(verdict));
  return write(connection) && proven;
}

bool Server::write(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t count = ::send(connection.socket.fd(), connection.output.data(),
                                 connection.output.size(), MSG_NOSIGNAL);
    if (count < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    connection.output.erase(0, static_cast<size_t>(count));
  }
  return true;
}

void Server::accept_one() {
  Connection connection;
  connection.socket =
      Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.socket) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      std::this_thread::sleep_for(milliseconds(10));  // out of descriptors: poll() would spin
    }
    return;
  }
  connection.from = remote_address_of(connection.socket);
  connection.proves_until = steady_clock::now() + options_.patience;
  Challenge challenge;
  challenge.nonce = connection.nonce = random_nonce();
  connection.output = view_of(challenge);
  if (!write(connection)) {
    return;
  }
  const size_t strangers = std::max<size_t>(32, 2 * options_.clients);
  const size_t members = 8 * options_.clients + 32;
  Client oldest = 0;
  size_t unproven = 0, proven = 0;
  for (const auto& [client, other] : connections_) {
    if (!other.proven) {
      oldest = oldest == 0 ? client : oldest;
      ++unproven;
    } else {
      ++proven;
    }
  }
  if (unproven >= strangers) {
    refuse(connections_[oldest], concat(unproven, " connections wait that have not proven "
                                                  "themselves, this is the oldest"));
    close(oldest);
  }
  if (proven >= members) {
    refuse(connection, concat("there are ", members, " connections already"));
    return;
  }
  std::lock_guard lock(mutex_);
  connections_.emplace(next_++, std::move(connection));
}

void Server::close(Client client) {
  bool proven = false;
  {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(client);
    proven = found->second.proven;
    connections_.erase(found);
  }
  if (proven) {
    callbacks_.gone(client);
  }
}

void Server::refuse(const Connection& connection, std::string_view why) const {
  if (options_.log) {
    options_.log(concat(options_.name, ": refused ", connection.from, ": ", why));
  }
}

}  // namespace gradwire
