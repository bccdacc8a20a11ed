#pragma once
// Gloo's pairs over connections that exist already. Part of gloo_plugin.cc; not installed as an
// interface.
//
// Left to itself, a pair opens a port and takes whoever comes first for its peer. The library
// connects the ranks instead, behind the job's secret, and hands the sockets over.

#include <fcntl.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

/// Owns a file descriptor until it is given away.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int number() const { return number_; }
  int give_away() { return std::exchange(number_, -1); }

 private:
  int number_;
};

class ConnectedPair final : public gloo::transport::tcp::Pair {
 public:
  /// `socket` is connected to the peer.
  ConnectedPair(gloo::transport::tcp::Context* context, gloo::transport::tcp::Device* device,
                int rank, std::chrono::milliseconds timeout, Descriptor socket)
      : Pair(context, device, rank, timeout) {
    const std::lock_guard lock(m_);
    // Gloo has opened a port by now, and in that moment a stranger may have come and gone, or
    // stayed.
    ex_ = nullptr;
    rx_ = gloo::transport::tcp::Op();
    try {
      if (state_ == CLOSED) {
        fd_ = socket.give_away();
      } else if (dup3(socket.number(), fd_, O_CLOEXEC) < 0) {  // which closes what was there
        throw std::system_error(errno, std::generic_category(), "dup3");
      }
      handleConnected();
    } catch (...) {
      // The destructor of the pair would look for it at the device, which does not know it.
      ::close(fd_);
      fd_ = -1;
      state_ = CLOSED;
      throw;
    }
  }
};

class ConnectedContext final : public gloo::transport::tcp::Context {
 public:
  using Context::Context;

  void add_pair(int peer, Descriptor socket) {
    getPair(peer) =
        std::make_unique<ConnectedPair>(this, device_.get(), peer, getTimeout(), std::move(socket));
  }

  void close_connections() {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        getPair(peer)->close();
      }
    }
  }
};
