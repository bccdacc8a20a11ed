#pragma once
// The messages of the control group on its sockets.

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "gradwire/comm/internal/socket.h"

namespace gradwire::control {

// Messages are smaller than any socket's buffer: a write that does not end means a dead link.
inline constexpr std::chrono::milliseconds kWriteWithin{1000};
// Far above any message; keeps a stranger's bytes from becoming an allocation.
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

/// Takes the first message off `input` if all of it is there. False too for bytes that are none.
template <class Message>
bool take_message(std::string& input, Message& message, std::string& text) {
  if (input.size() < sizeof(message)) {
    return false;
  }
  std::memcpy(&message, input.data(), sizeof(message));
  if (message.magic != Message{}.magic || message.text_bytes > kMostText ||
      input.size() < sizeof(message) + message.text_bytes) {
    return false;
  }
  text = input.substr(sizeof(message), message.text_bytes);
  input.erase(0, sizeof(message) + message.text_bytes);
  return true;
}

template <class Message>
void write_message(const Socket& socket, Message message, std::string_view text) {
  text = text.substr(0, kMostText);
  message.text_bytes = static_cast<uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&message), sizeof(message));
  write_all(socket, bytes.append(text), std::chrono::steady_clock::now() + kWriteWithin);
}

}  // namespace gradwire::control
