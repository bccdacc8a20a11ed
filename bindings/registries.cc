// The registries for Python: one dict per row, made into dataclasses by gradwire/registries.py.

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <string>
#include <string_view>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;
using Rows = py::typing::List<py::typing::Dict<py::str, py::object>>;

Rows compressors() {
  Rows rows;
  for (const CompressorRow& row : compressor_registry()) {
    py::dict fields;
    fields["name"] = row.name;
    fields["summary"] = row.summary;
    fields["example"] = row.example;
    fields["selector"] = row.selector();
    fields["error_feedback"] = row.feedback.on;
    fields["takes_rounding"] = row.takes_rounding;
    fields["takes_block"] = row.takes_block();
    fields["takes_levels"] = row.takes_levels;
    fields["takes_width"] = row.takes_width();
    fields["on_gpu"] = row.on_gpu != nullptr;
    fields["source"] = row.source;
    rows.append(fields);
  }
  return rows;
}

Rows optimizers() {
  Rows rows;
  for (const OptimizerRow& row : optimizer_registry()) {
    py::dict fields;
    fields["name"] = row.name;
    fields["summary"] = row.summary;
    fields["formula"] = row.formula;
    py::list settings;
    for (const std::string_view key : row.keys) {
      settings.append(key);
    }
    fields["settings"] = py::tuple(settings);
    py::dict presets;
    for (const OptimizerPreset& preset : row.presets) {
      presets[py::str(preset.name.data(), preset.name.size())] = preset.keys;
    }
    fields["presets"] = presets;
    fields["source"] = row.source;
    fields["steps_on_gradients"] = row.exchanges == Exchanged::kGradients;
    rows.append(fields);
  }
  return rows;
}

Rows exchanges() {
  Rows rows;
  for (const ExchangeRow& row : exchange_registry()) {
    py::dict fields;
    fields["name"] = row.name;
    fields["summary"] = row.summary;
    fields["bytes_formula"] = row.bytes_formula;
    fields["latency_formula"] = row.latency_formula;
    rows.append(fields);
  }
  return rows;
}

Rows transports(const std::string& plugin_path) {
  TransportOptions options;
  options.plugin_path = plugin_path;
  Rows rows;
  for (const TransportRow& row : transport_registry()) {
    const std::string reason = row.unavailable_reason(options);
    py::dict fields;
    fields["name"] = row.name;
    fields["summary"] = row.summary;
    fields["unavailable_reason"] = python_text(reason);
    rows.append(fields);
  }
  return rows;
}

}  // namespace

void bind_registries(py::module_& module) {
  module.def("compressors", &compressors, "The rows of the compressor registry, as dicts.");
  module.def("optimizers", &optimizers, "The rows of the optimizer registry, as dicts.");
  module.def("exchanges", &exchanges, "The rows of the exchange registry, as dicts.");
  module.def("transports", &transports, py::arg("plugin_path") = "",
             "The rows of the transport registry, as dicts; `plugin_path` is where the plug-in is "
             "looked for first.");
}

}  // namespace gradwire::bindings
