#include "gradwire/comm/internal/tcp_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "gradwire/comm/internal/socket.h"

namespace gradwire {
namespace {

// A request is a Request, the key and the value; an answer is an Answer and the value.
enum class Verb : uint32_t { kSet = 1, kGet = 2 };
enum class Outcome : uint32_t { kDone = 0, kMissing = 1, kExists = 2 };

struct Request {
  uint32_t magic = 0x53575247;  // "GRWS"
  Verb verb{};
  uint32_t key_bytes = 0;
  uint32_t value_bytes = 0;
};
struct Answer {
  Outcome outcome{};
  uint32_t value_bytes = 0;
};

// Far above any address; keeps a stranger's bytes from becoming an allocation.
constexpr uint32_t kMaxBytes = 1 << 20;

/// Answers requests in a thread of its own until destroyed.
class Server {
 public:
  explicit Server(Socket listener)
      : listener_(std::move(listener)),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Server() {
    const uint64_t one = 1;
    // An eventfd at zero takes eight bytes without blocking.
    [[maybe_unused]] const ssize_t written = ::write(stop_.fd(), &one, sizeof(one));
    thread_.join();
  }

 private:
  struct Connection {
    Socket socket;
    std::vector<char> input;
  };

  void run() {
    std::vector<pollfd> polled;
    for (;;) {
      polled.assign({{stop_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}});
      for (const Connection& connection : connections_) {
        polled.push_back({connection.socket.fd(), POLLIN, 0});
      }
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
        return;  // clients see their connections end
      }
      if (polled[0].revents != 0) {
        return;
      }
      for (size_t i = connections_.size(); i-- > 0;) {
        if (polled[i + 2].revents != 0 && !serve(connections_[i])) {
          connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      if (polled[1].revents != 0) {
        Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket) {
          connections_.push_back({std::move(socket), {}});
        }
      }
    }
  }

  /// False when the connection is over.
  bool serve(Connection& connection) {
    char bytes[4096];
    const ssize_t count = ::recv(connection.socket.fd(), bytes, sizeof(bytes), 0);
    if (count < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    if (count == 0) {
      return false;
    }
    connection.input.insert(connection.input.end(), bytes, bytes + count);
    try {
      while (answer_one(connection)) {
      }
      return true;
    } catch (const TransportError&) {
      return false;  // a stranger, or a client that went away: it sees the connection end
    }
  }

  bool answer_one(Connection& connection) {
    std::vector<char>& input = connection.input;
    Request request;
    if (input.size() < sizeof(request)) {
      return false;
    }
    std::memcpy(&request, input.data(), sizeof(request));
    if (request.magic != Request{}.magic || request.key_bytes > kMaxBytes ||
        request.value_bytes > kMaxBytes) {
      throw TransportError("not a store request");
    }
    const size_t total = sizeof(request) + request.key_bytes + request.value_bytes;
    if (input.size() < total) {
      return false;
    }
    const char* key_begin = input.data() + sizeof(request);
    const std::string key(key_begin, request.key_bytes);
    std::vector<char> value(key_begin + request.key_bytes,
                            key_begin + request.key_bytes + request.value_bytes);
    input.erase(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(total));
    answer(connection, request.verb, key, std::move(value));
    return true;
  }

  void answer(Connection& connection, Verb verb, const std::string& key, std::vector<char> value) {
    Answer answer;
    if (verb == Verb::kSet) {
      answer.outcome =
          values_.emplace(key, std::move(value)).second ? Outcome::kDone : Outcome::kExists;
      value.clear();
    } else if (const auto found = values_.find(key); found != values_.end()) {
      value = found->second;
    } else {
      answer.outcome = Outcome::kMissing;
    }
    answer.value_bytes = static_cast<uint32_t>(value.size());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    write_all(connection.socket, {reinterpret_cast<const char*>(&answer), sizeof(answer)},
              deadline);
    write_all(connection.socket, value, deadline);
  }

  Socket listener_, stop_;
  std::vector<Connection> connections_;
  std::map<std::string, std::vector<char>> values_;
  std::thread thread_;
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string address, const std::string& host, const std::string& port, int rank,
           Deadline deadline)
      : Store(std::move(address), deadline) {
    if (rank == 0) {
      server_ = std::make_unique<Server>(listen_on(host, port));
    }
    connection_ = connect_to(host, port, deadline);
  }

  void set(std::string_view key, std::span<const char> value) override {
    std::vector<char> ignored;
    if (call(Verb::kSet, key, value, ignored) == Outcome::kExists) {
      throw TransportError(concat("store ", address(), ": '", key,
                                  "' exists already: two ranks have the same number, or two groups "
                                  "share the address"));
    }
  }

  bool try_get(std::string_view key, std::vector<char>& value) override {
    return call(Verb::kGet, key, {}, value) == Outcome::kDone;
  }

  std::string local_address() const override { return local_address_of(connection_); }

 private:
  Outcome call(Verb verb, std::string_view key, std::span<const char> value,
               std::vector<char>& result) {
    try {
      Request request;
      request.verb = verb;
      request.key_bytes = static_cast<uint32_t>(key.size());
      request.value_bytes = static_cast<uint32_t>(value.size());
      std::vector<char> message(sizeof(request));
      std::memcpy(message.data(), &request, sizeof(request));
      message.insert(message.end(), key.begin(), key.end());
      message.insert(message.end(), value.begin(), value.end());
      write_all(connection_, message, deadline());
      Answer answer;
      read_all(connection_, {reinterpret_cast<char*>(&answer), sizeof(answer)}, deadline());
      result.resize(answer.value_bytes);
      read_all(connection_, result, deadline());
      return answer.outcome;
    } catch (const TransportError& error) {
      throw TransportError(concat("store ", address(), ": rank 0: ", error.what()), 0);
    }
  }

  std::unique_ptr<Server> server_;
  Socket connection_;
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(std::string_view host_port, int rank,
                                      std::chrono::milliseconds timeout) {
  const size_t colon = host_port.rfind(':');
  std::string host(host_port.substr(0, colon == std::string_view::npos ? 0 : colon));
  const std::string port(colon == std::string_view::npos ? "" : host_port.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  check(!host.empty() && digits && std::stoi(port) >= 1 && std::stoi(port) <= 65535,
        "store: address is 'tcp:", host_port,
        "', expected tcp:HOST:PORT with a port of 1 to 65535");
  return std::make_unique<TcpStore>(concat("tcp:", host_port), host, port, rank,
                                    std::chrono::steady_clock::now() + timeout);
}

}  // namespace gradwire
