#pragma once
// A wire on which a bit changes: between Gloo and one of its sockets, for fault_rank.cc.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/comm/internal/socket.h"
#include "gradwire/comm/transport/plugin_abi.h"

namespace gradwire::faults {

/// Which bit: the lowest one of a byte of a message that carries something, counted from 0.
struct Flip {
  int from = 1;     ///< the rank that sends the message
  int message = 0;  ///< its number
  size_t byte = 0;  ///< of Gloo's header, or behind it, modulo the size of what is there
  std::function<void(const std::string& where)> say{};
};

/// Passes on what arrives from one rank, message by message, and what is sent to it.
class FlippingWire {
 public:
  /// The plug-in's table, but that engines of this process get their bytes over such a wire.
  static const gradwire_plugin_table& over(const gradwire_plugin_table& plugin, Flip flip) {
    static gradwire_plugin_table table;
    table = plugin;
    table.open = &open;
    plugin_ = &plugin;
    flip_ = std::move(flip);
    return table;
  }

 private:
  // As in gloo/transport/tcp/pair.h: the whole length, the kind, and four more words.
  using Header = std::array<uint64_t, 6>;
  static constexpr uint64_t kCarriesSomething = 1;

  static int open(const gradwire_plugin_options* options, gradwire_plugin_engine** engine,
                  gradwire_plugin_error* error) {
    std::vector<int> sockets(options->sockets, options->sockets + options->world_size);
    int& flipped = sockets[static_cast<size_t>(flip_.from)];
    flipped = relayed(Socket(flipped)).give_away();
    gradwire_plugin_options own = *options;
    own.sockets = sockets.data();
    return plugin_->open(&own, engine, error);
  }

  /// The near end of a connection whose far end is joined to `outer`.
  static Socket relayed(Socket outer) {
    const Socket listener = listen_on("127.0.0.1", "0");
    Socket near;
    const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    check(connect_once("127.0.0.1", std::to_string(local_port_of(listener)), soon, near) == 0,
          "a connection of this process to itself failed");
    pollfd polled{listener.fd(), POLLIN, 0};
    ::poll(&polled, 1, 5000);
    // Theirs to the end of the process.
    const int far = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    const int wire = outer.give_away();
    ::fcntl(wire, F_SETFL, ::fcntl(wire, F_GETFL) & ~O_NONBLOCK);
    std::thread([wire, far] { pass_messages(wire, far); }).detach();
    std::thread([wire, far] {
      std::vector<char> bytes(1 << 16);
      for (ssize_t count = 1; count > 0;) {
        count = ::recv(far, bytes.data(), bytes.size(), 0);
        count = count > 0 && write(wire, bytes.data(), static_cast<size_t>(count)) ? count : 0;
      }
      ::shutdown(wire, SHUT_RDWR);
    }).detach();
    return near;
  }

  static void pass_messages(int from, int to) {
    std::vector<char> bytes;
    Header header{};
    int messages = 0;
    bool open = true;
    while (open && read(from, reinterpret_cast<char*>(header.data()), sizeof(header))) {
      bytes.resize(header[0]);
      std::memcpy(bytes.data(), header.data(), sizeof(header));
      open = read(from, bytes.data() + sizeof(header), bytes.size() - sizeof(header));
      if (header[1] == kCarriesSomething && bytes.size() > sizeof(header) &&
          messages++ == flip_.message) {
        const size_t at = place_in(bytes.size());
        bytes[at] = static_cast<char>(bytes[at] ^ 1);
        if (flip_.say) {
          flip_.say(at < sizeof(header) ? "header" : "payload");
        }
      }
      open = open && write(to, bytes.data(), bytes.size());
    }
    ::shutdown(to, SHUT_RDWR);
  }

  static size_t place_in(size_t bytes) {
    constexpr size_t kHead = sizeof(Header);
    return flip_.byte < kHead || bytes <= kHead ? flip_.byte % kHead
                                                : kHead + (flip_.byte - kHead) % (bytes - kHead);
  }
  static bool read(int from, char* bytes, size_t count) {
    return count == 0 || ::recv(from, bytes, count, MSG_WAITALL) == static_cast<ssize_t>(count);
  }
  static bool write(int to, const char* bytes, size_t count) {
    return ::send(to, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count);
  }

  static inline const gradwire_plugin_table* plugin_ = nullptr;
  static inline Flip flip_;
};

}  // namespace gradwire::faults
