// Compressor specs for Python.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "gradwire/bindings/layers.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire::bindings {

namespace py = pybind11;

void bind_spec(py::module_& module) {
  py::class_<CompressorSpec>(module, "CompressorSpec",
                             "A validated compressor request; read-only. str() gives the canonical "
                             "text, which parse_spec() reads back.")
      .def_property_readonly(
          "name", [](const CompressorSpec& s) { return s.name; }, "The registry row, e.g. 'topk'.")
      .def_property_readonly(
          "density", [](const CompressorSpec& s) { return s.choice.density; },
          "Kept / all elements, in (0, 1]; 1 unless the row is a selector.")
      .def_property_readonly(
          "values", [](const CompressorSpec& s) { return to_string(s.codec.values); },
          "How values travel: 'fp32', 'fp16', 'bf16', 'int8', 'int4', '2bit', '1bit', 'e4m3', "
          "'e5m2', 'natural' or 'raw' (the gradient's own dtype).")
      .def_property_readonly(
          "rounding",
          [](const CompressorSpec& s) {
            return s.codec.rounding == Rounding::kNearest ? "nearest" : "stochastic";
          },
          "'nearest' or 'stochastic'.")
      .def_property_readonly(
          "block", [](const CompressorSpec& s) { return s.codec.block; },
          "Elements sharing one scale, where the compressor takes a block.")
      .def_property_readonly(
          "width", [](const CompressorSpec& s) { return s.choice.width; },
          "Elements of a block that blocktopk sends whole; 0 of all others.")
      .def_property_readonly(
          "levels", [](const CompressorSpec& s) { return s.codec.levels; },
          "S of qsgd; 0 of all others.")
      .def_property_readonly(
          "rounds", [](const CompressorSpec& s) { return s.choice.rounds; }, "Exchanges in a step.")
      .def_property_readonly(
          "rank", [](const CompressorSpec& s) { return s.choice.rank; },
          "R of powersgd; 0 of all others.")
      .def_property_readonly(
          "error_feedback", [](const CompressorSpec& s) { return s.feedback.on; },
          "Whether what a payload leaves out is kept in a residual.")
      .def_property_readonly(
          "decay", [](const CompressorSpec& s) { return s.feedback.decay; },
          "What the residual is multiplied by before a gradient is added, in (0, 1].")
      .def_property_readonly(
          "residual", [](const CompressorSpec& s) { return to_string(s.feedback.residual); },
          "What a Reducer keeps residuals in between steps: 'float32' or 'bfloat16'.")
      .def_property_readonly(
          "ef21", [](const CompressorSpec& s) { return s.feedback.ef21; },
          "Whether the residual is the negative sum of what was sent (EF21).")
      .def_property_readonly(
          "momentum", [](const CompressorSpec& s) { return s.feedback.momentum; },
          "M of the velocity u = M u + gradient that takes the gradient's place, in [0, 1).")
      .def_property_readonly(
          "eta", [](const CompressorSpec& s) { return s.feedback.eta; },
          "Of the velocity v = (1 - eta) v + eta gradient of ef21, in (0, 1]; 1: the gradient.")
      .def_property_readonly(
          "keeps_velocity", [](const CompressorSpec& s) { return keeps_velocity(s); },
          "Whether a velocity takes the gradient's place.")
      .def_property_readonly(
          "clip", [](const CompressorSpec& s) { return s.feedback.clip; },
          "dgc: the largest norm of a gradient, over the root of the world size; 0: none.")
      .def_property_readonly(
          "warmup", [](const CompressorSpec& s) { return s.choice.warmup; },
          "Selectors: steps of each stage of the warm-up; 0: none.")
      .def_property_readonly(
          "start", [](const CompressorSpec& s) { return s.choice.start; },
          "The first steps, which send every element; 0: none.")
      .def(
          "in_step",
          [](const CompressorSpec& s, uint64_t committed) { return spec_in_step(s, committed); },
          py::arg("committed"),
          "The spec without start and warm-up of the step behind so many committed ones. dgc "
          "without "
          "a start stays as it is: its compressor counts the steps of its warm-up.")
      .def_property_readonly(
          "lasting", [](const CompressorSpec& s) { return lasting_spec(s); },
          "in_step() of all steps from some step on.")
      .def(
          "next_change",
          [](const CompressorSpec& s, uint64_t committed) -> std::optional<uint64_t> {
            const uint64_t at = next_change(s, committed);
            return at == kNeverChanges ? std::nullopt : std::optional(at);
          },
          py::arg("committed"),
          "The fewest committed steps above these behind which in_step() is another one; None: it "
          "stays.")
      .def_property_readonly(
          "fingerprint", [](const CompressorSpec& s) { return fingerprint(s); },
          "FNV-1a over the canonical text, as in every payload's header.")
      .def("__str__", [](const CompressorSpec& s) { return to_string(s); })
      .def("__repr__", [](const CompressorSpec& s) { return "parse_spec('" + to_string(s) + "')"; })
      .def(
          "__eq__",
          [](const CompressorSpec& s, const py::object& other) {
            return py::isinstance<CompressorSpec>(other) && s == other.cast<CompressorSpec>();
          },
          py::arg("other"))
      .def("__hash__", [](const CompressorSpec& s) { return fingerprint(s); });
  module.def("parse_spec", &parse_spec, py::arg("text"),
             R"(Reads a compressor spec such as 'topk:1%', 'topk:1%,int4' or 'int8,stochastic'.

What the text leaves out is filled from the registry row.

Raises:
    InvalidArgument: naming the part at fault; an unknown name lists the known ones.)");
}

}  // namespace gradwire::bindings
