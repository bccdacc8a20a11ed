#pragma once
// The few socket calls the TCP store needs, with deadlines.

#include <span>
#include <string>
#include <utility>

#include "gradwire/comm/point_to_point.h"

namespace gradwire {

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// @throws TransportError "<host>:<port>: why" when the name does not resolve or the port is taken.
Socket listen_on(const std::string& host, const std::string& port);

/// Tries until it succeeds. @throws TransportError with the last reason at the deadline.
Socket connect_to(const std::string& host, const std::string& port, Deadline deadline);

/// Numeric address of this end of a connected socket.
std::string local_address_of(const Socket& socket);

/// @throws TransportError when the other side closed or the deadline passed.
void write_all(const Socket& socket, std::span<const char> bytes, Deadline deadline);
void read_all(const Socket& socket, std::span<char> bytes, Deadline deadline);

}  // namespace gradwire
