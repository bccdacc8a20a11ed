#pragma once
// What was decided while a job ran, and on which numbers.

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace gradwire::planner {

/// One decision. Numbers are seconds, shares or ratios, as their names say.
struct Decision {
  uint64_t step = 0;   ///< steps that had run
  std::string what;    ///< "begin", "predict", "time", "choose", "drop", "tune", "tighten", "loosen",
                       ///< "off", "retry", "link"
  std::string from;    ///< the plan that ran, by name
  std::string to;      ///< the plan that runs from now on
  std::string reason;  ///< a sentence
  std::map<std::string, double> numbers = {};
};

/// One JSON object, without a line break. What is no finite number is null.
std::string to_json_line(const Decision& decision);
/// A line each.
std::string to_json_lines(std::span<const Decision> decisions);

}  // namespace gradwire::planner
