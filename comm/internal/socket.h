#pragma once
// The few socket calls that rendezvous and rebuilding need, with deadlines.

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
  int give_away() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A name that does not resolve, now: one of a machine that has just been started may a little
/// later.
class UnknownHost : public TransportError {
 public:
  UnknownHost(std::string_view place, const char* reason)
      : TransportError(concat(place, ": ", reason)), why(reason) {}
  std::string why;
};

/// Whether this is an address and no name.
bool is_numeric(const std::string& host);

/// Port "0" is any free one. @throws UnknownHost, TransportError when the port is taken.
Socket listen_on(const std::string& host, const std::string& port);
/// At all addresses of this machine, of IPv6 where it has that and of IPv4. `host` is for messages.
Socket listen_everywhere(const std::string& host, const std::string& port);

/// Tries until it succeeds. @throws TransportError with the last reason at the deadline.
Socket connect_to(const std::string& host, const std::string& port, Deadline deadline);

/// One attempt, at each address of the host. Returns 0 and the socket, or the errno of why not:
/// ECONNREFUSED says that no process listens there, ETIMEDOUT that the deadline passed.
/// @throws UnknownHost.
int connect_once(const std::string& host, const std::string& port, Deadline deadline,
                 Socket& socket);

/// Begins one attempt: 0, or the errno when that much is known already.
int start_connecting(const std::string& host, const std::string& port, Socket& socket);
/// Reads a byte that poll() has announced: 0, or the errno of why there is none, ECONNREFUSED when
/// the attempt to connect was refused.
int read_once(const Socket& socket, char& byte);

/// Numeric address of this end of a socket; port of a bound one; both of the other end.
std::string local_address_of(const Socket& socket);
int local_port_of(const Socket& socket);
std::string remote_address_of(const Socket& socket);

/// For poll(): not below 0, -1 for Deadline::max().
int remaining_ms(Deadline deadline);

/// @throws TransportError when the other side closed or the deadline passed.
void write_all(const Socket& socket, std::span<const char> bytes, Deadline deadline);
void read_all(const Socket& socket, std::span<char> bytes, Deadline deadline);

}  // namespace gradwire
