#include <charconv>
#include <cstdlib>
#include <optional>

#include "gradwire/comm/transport.h"

namespace gradwire::comm {
namespace {

struct Variable {
  std::string_view name;
  std::string_view value;
};

/// The first of the names that is set and not empty.
std::optional<Variable> first_of(const char* own, const char* torchrun) {
  for (const char* name : {own, torchrun}) {
    const char* const value = name == nullptr ? nullptr : std::getenv(name);
    if (value != nullptr && *value != '\0') {
      return Variable{name, value};
    }
  }
  return std::nullopt;
}

Variable require(const char* own, const char* torchrun) {
  const auto found = first_of(own, torchrun);
  check(found.has_value(), "environment: ", own, " is not set, expected it or ", torchrun);
  return *found;
}

int number(const Variable& variable, int low, int high) {
  int value = 0;
  const char* const end = variable.value.data() + variable.value.size();
  const auto [rest, error] = std::from_chars(variable.value.data(), end, value);
  check(error == std::errc() && rest == end && value >= low && value <= high,
        "environment: ", variable.name, " is '", variable.value, "', expected a number from ", low,
        " to ", high);
  return value;
}

std::string store_address() {
  if (const auto own = first_of("GRADWIRE_STORE", nullptr)) {
    return std::string(own->value);
  }
  const auto host = first_of(nullptr, "MASTER_ADDR"), port = first_of(nullptr, "MASTER_PORT");
  check(host.has_value(), "environment: GRADWIRE_STORE is not set, expected it or MASTER_ADDR");
  check(port.has_value(), "environment: MASTER_PORT is not set, expected it beside MASTER_ADDR");
  // Under torchrun the port itself belongs to PyTorch's own store.
  const int taken = first_of(nullptr, "TORCHELASTIC_RUN_ID") ? 1 : 0;
  const bool ipv6 = host->value.find(':') != std::string_view::npos;
  return concat("tcp:", ipv6 ? "[" : "", host->value, ipv6 ? "]" : "", ":",
                number(*port, 1, 65535 - taken) + taken);
}

}  // namespace

TransportOptions from_environment() {
  TransportOptions options;
  options.world_size = number(require("GRADWIRE_WORLD_SIZE", "WORLD_SIZE"), 1, 1 << 20);
  options.rank = number(require("GRADWIRE_RANK", "RANK"), 0, options.world_size - 1);
  options.store = store_address();
  if (const auto interface = first_of("GRADWIRE_INTERFACE", nullptr)) {
    options.network_interface = std::string(interface->value);
  }
  return options;
}

}  // namespace gradwire::comm
