#include "gradwire/comm/internal/tcp_store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/internal/server.h"
#include "gradwire/comm/internal/within.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A request is its kind, the length of the key, the key and the value; an answer is an Outcome and
// the value.
enum class Request : uint8_t { kSet = 1, kGet = 2 };
enum class Outcome : uint8_t { kDone = 0, kMissing = 1, kExists = 2, kNoRequest = 3 };

// How long the server outlives its owner while others still read, so that they hear of a failure
// what the server's rank heard.
constexpr milliseconds kLinger{300};

// Past the deadline for the answer to a question asked before it: at the last look for the others,
// silence must be theirs. The server's rank asks a thread of its own, which can only be late.
constexpr milliseconds kLastAnswer{200}, kOwnLastAnswer{2000};

// An attempt, where it may be given up.
constexpr milliseconds kAttempt{200};

// Between attempts to reach the server, at most. A server of names serves many others.
constexpr milliseconds kPause{50}, kPauseForNames{500};

/// The table, on the rank that serves it.
class Table {
 public:
  Table(Socket listener, std::string name, const StoreAccess& access)
      : server_(std::move(listener), {std::move(name), access.secret, access.clients, access.log},
                {.request = [this](Server::Client client, const std::string& request) {
                  server_.send(client, answer(request));
                }}) {}
  ~Table() { server_.drain(kLinger); }

 private:
  std::string answer(const std::string& request) {
    uint32_t key_bytes = 0;
    constexpr size_t kHead = 1 + sizeof(key_bytes);
    if (request.size() < kHead) {
      return {static_cast<char>(Outcome::kNoRequest)};
    }
    std::memcpy(&key_bytes, request.data() + 1, sizeof(key_bytes));
    if (key_bytes > request.size() - kHead) {
      return {static_cast<char>(Outcome::kNoRequest)};
    }
    const std::string key = request.substr(kHead, key_bytes);
    if (static_cast<Request>(request[0]) == Request::kSet) {
      const bool added = values_.emplace(key, request.substr(kHead + key_bytes)).second;
      return {static_cast<char>(added ? Outcome::kDone : Outcome::kExists)};
    }
    const auto found = values_.find(key);
    return found == values_.end() ? std::string{static_cast<char>(Outcome::kMissing)}
                                  : static_cast<char>(Outcome::kDone) + found->second;
  }

  std::map<std::string, std::string> values_;
  Server server_;  // last: its thread uses the table
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string address, std::string host, std::string port, const StoreAccess& access,
           milliseconds timeout, int server)
      : Store(std::move(address), timeout),
        host_(std::move(host)),
        port_(std::move(port)),
        prefix_(key_prefix(access.secret)),
        server_(server) {}
  ~TcpStore() override { connection_ = ProvenSocket(); }  // before the table waits for its clients

  /// This rank's own way to it needs no name, nor a way out of this machine and back.
  void serve(Socket listener, const StoreAccess& access) {
    const std::string own = local_address_of(listener);
    host_ = own == "::" || own == "0.0.0.0" ? "127.0.0.1" : own;
    port_ = std::to_string(local_port_of(listener));
    table_ = std::make_unique<Table>(std::move(listener), concat("store ", address()), access);
  }

  // The server may not be up yet, and may drop a connection when too many wait.
  void connect(const StoreAccess& access) {
    milliseconds pause(1);
    for (;;) {
      std::string why;
      milliseconds longest = kPause;
      try {
        Socket socket;
        const int error = connect_once(host_, port_, attempt_until(access), socket);
        why = error == 0 ? refusal_of(std::move(socket), access.secret) : std::strerror(error);
      } catch (const UnknownHost& unknown) {
        why = unknown.why;
        longest = kPauseForNames;
      }
      if (why.empty()) {
        return;
      }
      const bool late = steady_clock::now() + pause >= deadline();
      if (late || (access.given_up && access.given_up())) {
        throw TransportError(
            concat("rank ", server_, late ? " did" : " does", " not answer at ", host_, ":", port_,
                   late ? concat(" ", within(timeout())) : "", ": ", why),
            server_);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, longest);
    }
  }

  void set(std::string_view key, std::span<const char> value) override {
    std::vector<char> ignored;
    if (call(Request::kSet, key, value, ignored) == Outcome::kExists) {
      throw TransportError(concat("store ", address(), ": '", key,
                                  "' exists already: two ranks have the same number, or two groups "
                                  "share the address"));
    }
  }

  bool try_get(std::string_view key, std::vector<char>& value) override {
    return call(Request::kGet, key, {}, value) == Outcome::kDone;
  }

  std::string local_address() const override { return local_address_of(connection_.socket()); }

 private:
  Deadline attempt_until(const StoreAccess& access) const {
    return access.given_up ? std::min(deadline(), steady_clock::now() + kAttempt) : deadline();
  }
  /// Empty when the server lets this rank in.
  std::string refusal_of(Socket socket, const std::string& secret) {
    try {
      connection_ = ProvenSocket(std::move(socket), secret, deadline());
      return {};
    } catch (const WrongPeer& wrong) {
      throw TransportError(
          concat("store ", address(), ": rank ", server_, " is not reached there: ", wrong.what()),
          server_);
    } catch (const TransportError& failure) {
      return failure.what();
    }
  }

  Outcome call(Request kind, std::string_view key, std::span<const char> value,
               std::vector<char>& result) {
    const Deadline until = std::max(
        deadline(), steady_clock::now() + (table_ != nullptr ? kOwnLastAnswer : kLastAnswer));
    try {
      const auto key_bytes = static_cast<uint32_t>(prefix_.size() + key.size());
      std::string request{static_cast<char>(kind)};
      request.append(reinterpret_cast<const char*>(&key_bytes), sizeof(key_bytes));
      request.append(prefix_).append(key).append(value.data(), value.size());
      connection_.write(request, until);
      const std::string answer = connection_.read(until);
      if (answer.empty() || static_cast<Outcome>(answer[0]) == Outcome::kNoRequest) {
        throw TransportError("it does not understand the request");
      }
      result.assign(answer.begin() + 1, answer.end());
      return static_cast<Outcome>(answer[0]);
    } catch (const TransportError& error) {
      throw TransportError(concat("store ", address(), ": rank ", server_, ": ", error.what()),
                           server_);
    }
  }

  std::string host_, port_, prefix_;
  int server_;  // the rank, for messages
  std::unique_ptr<Table> table_;
  ProvenSocket connection_;
};

/// For rank 0: see make_store() in store.h.
Socket listen_for_ranks(const std::string& host, const std::string& port, Deadline deadline,
                        StoreAccess::Ranks ranks) {
  using Ranks = StoreAccess::Ranks;
  const bool numeric = is_numeric(host);
  if (numeric ? ranks == Ranks::kOnSeveral && is_loopback(host) : ranks != Ranks::kOnOneMachine) {
    return listen_everywhere(host, port);
  }
  for (;;) {
    try {
      return listen_on(host, port);
    } catch (const UnknownHost&) {
      if (steady_clock::now() + kPauseForNames >= deadline) {
        throw;
      }
    }
    std::this_thread::sleep_for(kPauseForNames);
  }
}

}  // namespace

std::unique_ptr<Store> make_tcp_store(std::string_view host_port, int rank, milliseconds timeout,
                                      const StoreAccess& access, Socket listener, int server) {
  const size_t colon = host_port.rfind(':');
  std::string host(host_port.substr(0, colon == std::string_view::npos ? 0 : colon));
  const std::string port(colon == std::string_view::npos ? "" : host_port.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  // Not a name that may appear later: no name of a host has one of these.
  check(host.find_first_of("/@[]? \t\n") == std::string::npos, "store: address is 'tcp:", host_port,
        "', expected tcp:HOST:PORT",
        host.starts_with("//") ? ", without slashes before the host" : "",
        ", an IPv6 address in brackets");
  check(!host.empty() && digits && std::stoi(port) >= 1 && std::stoi(port) <= 65535,
        "store: address is 'tcp:", host_port,
        "', expected tcp:HOST:PORT with a port of 1 to 65535");
  auto store =
      std::make_unique<TcpStore>(concat("tcp:", host_port), host, port, access, timeout, server);
  if (rank == server) {
    store->serve(listener ? std::move(listener)
                          : listen_for_ranks(host, port, store->deadline(), access.ranks),
                 access);
  }
  store->connect(access);
  return store;
}

}  // namespace gradwire
