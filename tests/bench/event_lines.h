#pragma once
// Reading the trainer's events.

#include <string>
#include <vector>

#include "tests/bench/subprocess.h"

namespace trainer_runs {

// The text of a field in a line of JSON, "" when it is not there.
inline std::string field(const std::string& line, const std::string& key) {
  const std::string quoted = "\"" + key + "\": ";
  const size_t begin = line.find(quoted);
  if (begin == std::string::npos) {
    return "";
  }
  const size_t value = begin + quoted.size();
  if (line[value] == '"') {
    return line.substr(value + 1, line.find('"', value + 1) - value - 1);
  }
  return line.substr(value, line.find_first_of(",}", value) - value);
}

inline std::vector<std::string> events_named(const std::string& text, const std::string& event) {
  std::vector<std::string> found;
  for (const std::string& line : subprocess::lines_of(text)) {
    if (field(line, "event") == event) {
      found.push_back(line);
    }
  }
  return found;
}

}  // namespace trainer_runs
