#pragma once
// What memory this process has, by the kernel.

#include <cstddef>
#include <fstream>
#include <string>

namespace gradwire::testing {

/// Bytes, of a line of /proc/self/status: VmRSS, VmHWM.
inline size_t status_bytes(const std::string& field) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(field + ":")) {
      return 1024 * std::stoul(line.substr(field.size() + 1));
    }
  }
  return 0;
}

}  // namespace gradwire::testing
