#pragma once
// The messages of the control group on its sockets.

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "gradwire/comm/internal/frame_seal.h"
#include "gradwire/comm/internal/socket.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::control {

// Messages are smaller than any socket's buffer: a write that does not end means a dead link.
inline constexpr std::chrono::milliseconds kWriteWithin{1000};
// Far above any message.
inline constexpr uint32_t kMostText = 1 << 16;

inline int left_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
          .count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, 1'000'000'000));
}

/// Appends what has arrived. False when the connection is over.
inline bool receive(const Socket& socket, std::string& input) {
  char bytes[4096];
  const ssize_t count = ::recv(socket.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count > 0) {
    input.append(bytes, static_cast<size_t>(count));
  }
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

/// Takes the first message off `input` if all of it is there. @throws BadFrame.
template <class Message>
bool take_message(std::string& input, FrameSeal& seal, Message& message, std::string& text) {
  std::string bytes;
  if (!seal.take(input, bytes)) {
    return false;
  }
  if (bytes.size() < sizeof(message)) {
    throw BadFrame(concat("a message of ", bytes.size(), " bytes, expected at least ",
                          sizeof(message)));
  }
  std::memcpy(&message, bytes.data(), sizeof(message));
  if (message.magic != Message{}.magic) {
    throw BadFrame("a message of another protocol");
  }
  text = bytes.substr(sizeof(message));
  return true;
}

template <class Message>
void write_message(const Socket& socket, FrameSeal& seal, const Message& message,
                   std::string_view text) {
  std::string bytes(reinterpret_cast<const char*>(&message), sizeof(message));
  write_all(socket, seal.seal(bytes.append(text.substr(0, kMostText))),
            std::chrono::steady_clock::now() + kWriteWithin);
}

}  // namespace gradwire::control
