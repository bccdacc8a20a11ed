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
    throw TransportError(concat(host, ":", port, ": ", gai_strerror(error)));
  }
  return {found, &freeaddrinfo};
}

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

/// "10.0.0.1" and "29500"; empty when `name_of` (getsockname or getpeername) fails.
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
  return {host, port};
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

Socket listen_on(const std::string& host, const std::string& port) {
  const Addresses addresses = resolve(host, port, AI_PASSIVE);
  Socket socket = open_socket(*addresses);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    throw TransportError(
        concat("rank 0 cannot listen on ", host, ":", port, ": ", std::strerror(errno)));
  }
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
  socket = open_socket(*addresses);
  return try_connect(socket, *addresses, deadline);
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
