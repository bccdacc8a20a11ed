#include "gradwire/comm/internal/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    throw UnknownHost(concat(host, ":", port), gai_strerror(error));
  }
  return {found, &freeaddrinfo};
}

// One of several addresses that does not answer must not take all the time of the others.
constexpr milliseconds kPerAddress{2000};

/// Waits for `events`; false at the deadline.
bool ready(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int count = poll(&entry, 1, remaining_ms(deadline));
    if (count > 0) {
      return true;
    }
    if (count == 0) {
      return false;
    }
    if (errno != EINTR) {
      throw TransportError(concat("poll: ", std::strerror(errno)));
    }
  }
}

Socket open_socket(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    throw TransportError(concat("socket: ", std::strerror(errno)));
  }
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

/// Whether the kernel has sockets of that kind at all.
bool has_family(const addrinfo& address) {
  return Socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) ||
         errno != EAFNOSUPPORT;
}

/// 0, or the errno of why not.
int try_connect(const Socket& socket, const addrinfo& address, Deadline deadline) {
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  if (!ready(socket.fd(), POLLOUT, deadline)) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

void bind_and_listen(const Socket& socket, const addrinfo& address, const std::string& place) {
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    throw TransportError(concat("rank 0 cannot listen on ", place, ": ", std::strerror(errno)));
  }
}

/// "10.0.0.1" and "29500", also where IPv6 carries IPv4 (::ffff:10.0.0.1); empty when `name_of`
/// (getsockname or getpeername) fails.
std::pair<std::string, std::string> numeric_name(const Socket& socket,
                                                 int (*name_of)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (name_of(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  std::string_view numeric = host;
  constexpr std::string_view kMapped = "::ffff:";
  if (numeric.starts_with(kMapped) && numeric.find('.') != std::string_view::npos) {
    numeric.remove_prefix(kMapped.size());
  }
  return {std::string(numeric), port};
}

}  // namespace

int remaining_ms(Deadline deadline) {
  if (deadline == Deadline::max()) {
    return -1;
  }
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, 1000000000));
}

Socket::~Socket() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool is_numeric(const std::string& host) {
  try {
    return resolve(host, "0", AI_NUMERICHOST) != nullptr;
  } catch (const UnknownHost&) {
    return false;
  }
}

Socket listen_on(const std::string& host, const std::string& port) {
  const Addresses addresses = resolve(host, port, AI_PASSIVE);
  Socket socket = open_socket(*addresses);
  bind_and_listen(socket, *addresses, concat(host, ":", port));
  return socket;
}

Socket listen_everywhere(const std::string& host, const std::string& port) {
  const std::string place = concat("all addresses for ", host, ":", port);
  const int off = 0;
  const Addresses ipv6 = resolve("::", port, AI_PASSIVE | AI_NUMERICHOST);
  Socket both(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (both && setsockopt(both.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0) {
    bind_and_listen(both, *ipv6, place);
    return both;
  }
  const Addresses ipv4 = resolve("0.0.0.0", port, AI_PASSIVE | AI_NUMERICHOST);
  Socket socket = open_socket(*ipv4);  // the kernel has no IPv6
  bind_and_listen(socket, *ipv4, place);
  return socket;
}

Socket connect_to(const std::string& host, const std::string& port, Deadline deadline) {
  milliseconds pause(1);
  for (;;) {
    Socket socket;
    const int error = connect_once(host, port, deadline, socket);
    if (error == 0) {
      return socket;
    }
    if (steady_clock::now() + pause >= deadline) {
      throw TransportError(
          concat("rank 0 does not answer at ", host, ":", port, ": ", std::strerror(error)), 0);
    }
    std::this_thread::sleep_for(pause);  // rank 0 may not be up yet
    pause = std::min(pause * 2, milliseconds(50));
  }
}

int connect_once(const std::string& host, const std::string& port, Deadline deadline,
                 Socket& socket) {
  const Addresses addresses = resolve(host, port, 0);
  const bool several = addresses->ai_next != nullptr;
  int why_not = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (several && !has_family(*address)) {
      why_not = why_not == 0 ? EAFNOSUPPORT : why_not;
      continue;
    }
    socket = open_socket(*address);
    const int error =
        try_connect(socket, *address,
                    several ? std::min(deadline, steady_clock::now() + kPerAddress) : deadline);
    if (error == 0) {
      return 0;
    }
    why_not = why_not == 0 || error == ECONNREFUSED ? error : why_not;
  }
  return why_not;
}

int start_connecting(const std::string& host, const std::string& port, Socket& socket) {
  const Addresses addresses = resolve(host, port, 0);
  socket = open_socket(*addresses);
  return ::connect(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) == 0 ||
                 errno == EINPROGRESS
             ? 0
             : errno;
}

int read_once(const Socket& socket, char& byte) {
  const ssize_t count = ::recv(socket.fd(), &byte, 1, 0);
  return count > 0 ? 0 : count == 0 ? ECONNRESET : errno;
}

std::string local_address_of(const Socket& socket) {
  return numeric_name(socket, &getsockname).first;
}

int local_port_of(const Socket& socket) {
  const std::string port = numeric_name(socket, &getsockname).second;
  return port.empty() ? 0 : std::stoi(port);
}

std::string remote_address_of(const Socket& socket) {
  const auto [host, port] = numeric_name(socket, &getpeername);
  return concat(host, ":", port);
}

void write_all(const Socket& socket, std::span<const char> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      if (!ready(socket.fd(), POLLOUT, deadline)) {
        throw TransportError("no answer within the timeout");
      }
    } else if (errno != EINTR) {
      throw TransportError(std::strerror(errno));
    }
  }
}

void read_all(const Socket& socket, std::span<char> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (count == 0) {
      throw TransportError("the connection was closed");
    } else if (errno == EAGAIN) {
      if (!ready(socket.fd(), POLLIN, deadline)) {
        throw TransportError("no answer within the timeout");
      }
    } else if (errno != EINTR) {
      throw TransportError(std::strerror(errno));
    }
  }
}

}  // namespace gradwire
