#include "gradwire/planner/decision.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace gradwire::planner {

std::string to_json_line(const Decision& decision) {
  nlohmann::ordered_json json;
  json["step"] = decision.step;
  json["what"] = decision.what;
  json["from"] = decision.from;
  json["to"] = decision.to;
  json["reason"] = decision.reason;
  json["numbers"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : decision.numbers) {
    if (std::isfinite(value)) {
      json["numbers"][name] = value;
    } else {
      json["numbers"][name] = nullptr;
    }
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_json_lines(std::span<const Decision> decisions) {
  std::string lines;
  for (const Decision& decision : decisions) {
    lines += to_json_line(decision) + "\n";
  }
  return lines;
}

}  // namespace gradwire::planner
