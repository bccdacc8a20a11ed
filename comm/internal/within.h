#pragma once
// How messages name a deadline that has passed, and what moves it. Plug-ins use it too.

#include <chrono>
#include <sstream>
#include <string>

namespace gradwire {

/// "within 30 s (the timeout: ...)".
inline std::string within(std::chrono::milliseconds timeout) {
  std::ostringstream text;
  text << "within " << std::chrono::duration<double>(timeout).count()
       << " s (the timeout: --timeout of a command, timeout= in Python, "
          "TransportOptions::timeout)";
  return text.str();
}

}  // namespace gradwire
