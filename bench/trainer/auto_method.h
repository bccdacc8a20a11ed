#pragma once
// The method that is none of the compressors: "auto", by which the planner chooses among them.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

struct AutoMethod {
  std::string text;                ///< as it was given
  size_t window_steps = 0;         ///< that the guard judges together
  std::vector<std::string> specs;  ///< to choose from, besides none and bf16
};

/// "auto", or "auto:window=20,specs=int8|topk:1%,int4"; what is left out is the planner's default.
/// specs comes last: its compressors stand between '|', and have commas of their own. Nothing for
/// any other method's text.
/// @throws gradwire::InvalidArgument naming the option, its value and what was expected; for a spec
/// that does not parse, and one with a momentum, which would be the optimizer's by turns.
std::optional<AutoMethod> parse_auto(std::string_view text);

}  // namespace trainer
