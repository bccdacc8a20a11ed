#pragma once
// Plans as Python asks for them.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pybind11/typing.h>

#include "gradwire/bindings/python_text.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/plan_memory.h"

namespace gradwire::bindings {

/// The value that belongs to `name`. @throws InvalidArgument listing the known names.
template <class Value>
Value one_of(std::string_view what, const std::string& name,
             std::initializer_list<std::pair<std::string_view, Value>> known) {
  std::vector<std::string_view> names;
  for (const auto& [text, value] : known) {
    if (text == name) {
      return value;
    }
    names.push_back(text);
  }
  throw_unknown_name(what, name, names);
}

/// Names and shapes of parameters, in the order of the forward pass.
using NamedShapes = pybind11::typing::Iterable<pybind11::typing::Tuple<
    pybind11::str, pybind11::typing::Iterable<pybind11::int_>>>;

/// @throws InvalidArgument for what is no name with a shape.
std::vector<ParamInfo> parameters_of(const NamedShapes& named);

/// A rule as Python writes it: 'spec', and any of 'name', 'least_ndim', 'most_ndim', 'least_numel'
/// and 'most_numel'.
using RuleFields = pybind11::typing::Dict<pybind11::str, pybind11::object>;

/// What a plan made of a list of parameters and one made of measurements have in common.
struct PlanWords {
  std::string spec, exchange, exempt_1d;
  std::vector<RuleFields> rules = {};
  uint64_t seed = 0;
  int ranks_per_node = 1;
};

/// Bytes, by what they are for.
pybind11::typing::Dict<pybind11::str, pybind11::int_> fields_of(const PlanMemory& memory);

/// @throws InvalidArgument for a spec or a name that is none.
PlanOptions options_of(const PlanWords& words);

}  // namespace gradwire::bindings
