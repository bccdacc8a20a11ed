// Optimizers' specs and settings for Python, without an optimizer.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/optimizer.h"
#include "gradwire/optimizers/parameter_checks.h"
#include "gradwire/optimizers/spec.h"

namespace gradwire::bindings {

namespace py = pybind11;

void bind_optimizer_specs(py::module_& module) {
  module.def(
      "canonical_optimizer",
      [](const std::string& text) { return to_string(parse_optimizer(text)); }, py::arg("text"),
      "The canonical text of an optimizer spec such as 'lamb:weight_decay=0.01'.\n\n"
      "Raises:\n    InvalidArgument: an unknown name or key lists the known ones.");
  module.def(
      "optimizer_settings",
      [](const std::string& text) {
        py::typing::Dict<py::str, py::str> settings;
        for (const auto& [key, value] : settings_of(parse_optimizer(text))) {
          settings[py::str(key.data(), key.size())] = py::str(value);
        }
        return settings;
      },
      py::arg("text"),
      "Every setting of an optimizer spec as its text has it, presets and defaults resolved.\n\n"
      "Raises:\n    InvalidArgument: as canonical_optimizer().");
  module.def(
      "check_optimizer_groups",
      [](const std::vector<GroupRow>& rows) {
        const std::vector<ParamGroup> groups = groups_of(rows);
        for (size_t i = 0; i < groups.size(); ++i) {
          check_group(groups[i], i);
        }
      },
      py::arg("groups"),
      "Rows of groups, as Optimizer takes them.\n\n"
      "Raises:\n    InvalidArgument: naming the setting that is out of range.");
}

}  // namespace gradwire::bindings
