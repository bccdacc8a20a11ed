#include "bench/trainer/auto_method.h"

#include <charconv>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/pilot.h"

namespace trainer {
namespace {

using gradwire::check;

constexpr size_t kLeastWindow = 2, kMostWindow = 1000;

// What stands before `separator`, which goes too.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

size_t parse_window(std::string_view text) {
  size_t steps = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, steps);
  check(error == std::errc() && stop == end && steps >= kLeastWindow && steps <= kMostWindow,
        "auto: window is '", text, "', must be a number of steps from ", kLeastWindow, " to ",
        kMostWindow);
  return steps;
}

std::vector<std::string> parse_specs(std::string_view text) {
  std::vector<std::string> specs;
  while (!text.empty()) {
    const std::string_view each = take(text, '|');
    check(!gradwire::keeps_velocity(gradwire::parse_spec(each)), "auto: '", each,
          "' has a momentum, which would take the place of the optimizer's while it runs, expected "
          "a spec without one");
    specs.emplace_back(each);
  }
  return specs;
}

}  // namespace

std::optional<AutoMethod> parse_auto(std::string_view text) {
  const gradwire::planner::PilotOptions usual;
  AutoMethod method{
      .text = std::string(text), .window_steps = usual.window_steps, .specs = usual.specs};
  if (take(text, ':') != "auto") {
    return std::nullopt;
  }
  while (!text.empty()) {
    const std::string_view key = take(text, '=');
    check(key == "window" || key == "specs", "auto: unknown option '", key,
          "', known: window, specs");
    check(!text.empty() && text.front() != ',', "auto: '", key, "' has no value, expected e.g. ",
          key == "window" ? "window=20" : "specs=int8|topk:1%,int4");
    if (key == "window") {
      method.window_steps = parse_window(take(text, ','));
    } else {
      method.specs = parse_specs(text);
      text = {};
    }
  }
  return method;
}

}  // namespace trainer
