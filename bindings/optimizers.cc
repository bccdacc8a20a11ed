// gradwire/optimizers for Python: steps in place on the caller's arrays, and their state by name.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/optimizer.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/optimizers/saved_state.h"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step_rule.h"

namespace gradwire::bindings {
namespace {

ParameterTable table_of(const std::vector<std::string>& names, const std::vector<size_t>& group_of,
                        const std::vector<GroupRow>& groups,
                        const std::vector<bool>& replicas = {}) {
  return {names, group_of, groups, replicas};
}

// Codes of 8 bits and their scales, of a state by the name "exp_avg", "exp_avg_sq", ..
py::array floats_of_codes(const std::string& what, std::string_view name, const py::object& codes,
                          const py::object& scales) {
  const Array from = Array::input_bytes(codes, what);
  const Array scale = Array::input(scales, {concat(what, ".scale"), DType::kFloat32, std::nullopt});
  check_codes(what, from.bytes(), scale.floats());
  py::array out = new_array(DType::kFloat32, from.bytes().size());
  const Array to = Array::output(out, {what, DType::kFloat32, std::nullopt});
  state_from_codes(from.bytes(), scale.floats(), state_has_sign(name), to.floats());
  return out;
}

py::typing::Tuple<py::object, py::object> codes_of_floats(const std::string& what,
                                                          std::string_view name,
                                                          const py::object& values) {
  const Array from = Array::input(values, {what, DType::kFloat32, std::nullopt});
  const size_t numel = from.floats().size();
  py::array_t<uint8_t> codes(static_cast<py::ssize_t>(numel));
  py::array scales = new_array(DType::kFloat32, (numel + kCodeBlock - 1) / kCodeBlock);
  const Array to = Array::output(scales, {what, DType::kFloat32, std::nullopt});
  state_to_codes(what, from.floats(), state_has_sign(name),
                 std::as_writable_bytes(std::span(codes.mutable_data(), numel)), to.floats());
  return py::make_tuple(codes, scales);
}

void bind_state_codes(py::module_& module) {
  module.def("floats_of_codes", &floats_of_codes, py::arg("what"), py::arg("name"),
             py::arg("codes"), py::arg("scales"),
             "The float32 array that an optimizer's codes of 8 bits, and a scale for every 256, "
             "stand for; name is the state's, 'exp_avg', what its name in messages.\n\n"
             "Raises:\n    InvalidArgument: what no optimizer writes.");
  module.def("codes_of_floats", &codes_of_floats, py::arg("what"), py::arg("name"),
             py::arg("values"),
             "(codes, scales) nearest to an optimizer's state in float32.\n\n"
             "Raises:\n    InvalidArgument: NaN, infinity, a mean square below 0.");
}

}  // namespace

void bind_optimizers(py::module_& module) {
  py::class_<BoundOptimizer>(
      module, "Optimizer",
      "Steps on arrays in place; the package's SGD, AdamW, LARS, LARC and LAMB wrap it.\n\n"
      "groups holds (weight_decay, learning_rate_scale, adapt, momentum, beta1, beta2, epsilon, "
      "full_state), None where the spec's holds; group_of names one of them for each parameter.")
      .def(py::init([](const std::string& spec, const Arrays& parameters, const Arrays& gradients,
                       const std::vector<std::string>& names, const std::vector<size_t>& group_of,
                       const std::vector<GroupRow>& groups, int threads, const py::object& stream) {
             return std::make_unique<BoundOptimizer>(
                 spec, parameters, gradients, table_of(names, group_of, groups), threads, stream);
           }),
           py::arg("spec"), py::arg("parameters"), py::arg("gradients"), py::arg("names"),
           py::arg("group_of"), py::arg("groups"), py::arg("threads") = 1,
           py::arg("stream") = py::none())
      .def_static(
          "at",
          [](const std::string& spec, const std::vector<Address>& values,
             const std::vector<size_t>& numels, const std::vector<std::string>& names,
             const std::vector<size_t>& group_of, const std::vector<GroupRow>& groups, int threads,
             int gpu, const py::object& stream, const std::vector<bool>& replicas) {
            const Device device =
                gpu < 0 ? Device{} : Device{DeviceType::kCuda, gpu};  // NOLINT: an index
            return std::make_unique<BoundOptimizer>(
                spec, values, numels, table_of(names, group_of, groups, replicas), threads,
                gpu < 0 ? Place{} : place_on(device, "parameters", stream, py::none()));
          },
          py::arg("spec"), py::arg("values"), py::arg("numels"), py::arg("names"),
          py::arg("group_of"), py::arg("groups"), py::arg("threads") = 1, py::arg("gpu") = -1,
          py::arg("stream") = py::none(), py::arg("replicas") = std::vector<bool>{},
          "Of memory by (address, dtype), which the caller keeps alive, of the CPU or of a GPU by "
          "its number; gradients come by bind(). replicas says of each parameter whether another "
          "rank has the same slice and counts it, once set_slices() was called.")
      .def(
          "bind", &BoundOptimizer::bind, py::arg("values"), py::arg("gradients"),
          py::arg("stream") = py::none(),
          "Tells where values are, by address, and gradients, by (address, dtype): an address of 0 "
          "leaves the parameter out of steps.\n\nRaises:\n    InvalidArgument: memory is shared; "
          "all stays as it was.")
      .def("set_slices", &BoundOptimizer::set_slices, py::arg("transport"),
           "Every rank of the transport holds slices of the same parameters, in the same order: "
           "norms, and whether a gradient is finite, are of all of them from now on. Its calls are "
           "collective then.\n\nRaises:\n    InvalidArgument: the transport is closed.")
      .def("set_groups", &BoundOptimizer::set_groups, py::arg("groups"),
           py::arg("stream") = py::none(), "Other settings for the groups, as many as before.")
      .def("prepare", &BoundOptimizer::prepare, py::arg("gradient_scale") = 1.0,
           py::arg("stream") = py::none(),
           "Writes what is to be exchanged to the gradients, unless it is these; gradient_scale is "
           "what these are multiplied by as they are read.\n\n"
           "Raises:\n    InvalidArgument: gradient_scale is not in (0, 1].")
      .def_property_readonly(
          "exchanges", &BoundOptimizer::exchanges,
          "What the next step exchanges: 'gradients', 'momentum' or 'moves', of local steps.")
      .def("values_changed", &BoundOptimizer::values_changed, py::arg("stream") = py::none(),
           "Takes values that others wrote for the masters of parameters of 16 bits.")
      .def("follow", &BoundOptimizer::follow, py::arg("stream") = py::none(),
           "On a GPU the next call's work goes behind what that stream has by now, such as copies of "
           "parameters.")
      .def("check", &BoundOptimizer::synchronize, py::arg("stream") = py::none(),
           "On a GPU waits, and raises what kept steps from being made; then they are made again.")
      .def("skipped_steps", &BoundOptimizer::skipped_steps, py::arg("stream") = py::none(),
           "How many steps were left out so far; waits.")
      .def_property_readonly(
          "device",
          [](const BoundOptimizer& o) {
            return o.device().type == DeviceType::kCpu ? std::string("cpu")
                                                       : concat("cuda:", o.device().index);
          },
          "Where parameters and state are: 'cpu', 'cuda:0'.")
      .def_property_readonly("spec", &BoundOptimizer::spec, "The canonical spec text.")
      .def_property_readonly("state_bytes", &BoundOptimizer::state_bytes,
                             "Memory of all state and masters.")
      .def(
          "step",
          [](BoundOptimizer& o, double learning_rate, double gradient_scale, bool known_finite,
             bool skip, py::object stream, py::object loss_scale, py::object found_inf) {
            o.step({learning_rate, gradient_scale, known_finite, skip, std::move(stream),
                    std::move(loss_scale), std::move(found_inf)});
          },
          py::arg("learning_rate"), py::arg("gradient_scale") = 1.0,
          py::arg("known_finite") = false, py::arg("skip") = false, py::arg("stream") = py::none(),
          py::arg("loss_scale") = py::none(), py::arg("found_inf") = py::none(),
          "Updates all parameters from their gradients; the GIL is released. On a GPU it is "
          "enqueued "
          "on the stream, and loss_scale and found_inf, one float32 each (an array, or its "
          "address), "
          "are read there.\n\n"
          "Raises:\n    NonFiniteGradient: naming the parameter; nothing was changed. On a GPU "
          "check() raises it.\n"
          "    InvalidArgument: learning_rate is negative or not finite, or gradient_scale is not "
          "in (0, 1].")
      .def(
          "step_from",
          [](BoundOptimizer& o, const std::vector<const PayloadGroup*>& payloads,
             double learning_rate, double gradient_scale, bool known_finite, bool skip,
             py::object stream, py::object loss_scale, py::object found_inf) {
            o.step_from(payloads, {learning_rate, gradient_scale, known_finite, skip,
                                   std::move(stream), std::move(loss_scale), std::move(found_inf)});
          },
          py::arg("payloads"), py::arg("learning_rate"), py::arg("gradient_scale") = 1.0,
          py::arg("known_finite") = false, py::arg("skip") = false, py::arg("stream") = py::none(),
          py::arg("loss_scale") = py::none(), py::arg("found_inf") = py::none(),
          "step(), where the gradients of the groups' parameters are read from their payloads. "
          "Errors as of step().\n\nRaises:\n    InvalidArgument: a payload that does not decode, "
          "or groups of other parameters; nothing was changed.")
      .def(
          "step_on",
          [](BoundOptimizer& o, const Arrays& gradients, double learning_rate,
             double gradient_scale, bool known_finite, bool skip, py::object stream,
             py::object loss_scale, py::object found_inf) {
            o.step_on(gradients, {learning_rate, gradient_scale, known_finite, skip,
                                  std::move(stream), std::move(loss_scale), std::move(found_inf)});
          },
          py::arg("gradients"), py::arg("learning_rate"), py::arg("gradient_scale") = 1.0,
          py::arg("known_finite") = false, py::arg("skip") = false, py::arg("stream") = py::none(),
          py::arg("loss_scale") = py::none(), py::arg("found_inf") = py::none(),
          "step() with these gradients, one array of each parameter, which may be read-only. "
          "Errors as of step().\n\nRaises:\n    InvalidArgument: arrays that do not fit; nothing "
          "was changed.")
      .def("state", &BoundOptimizer::state,
           "Copies of all state in CPU memory: ({parameter: {name: int}}, {parameter: {name: "
           "array}}); waits.")
      .def(
          "state_views",
          [](py::object self) { return BoundOptimizer::state_views(std::move(self)); },
          "The same without copies: arrays over the state itself, counts as arrays of int64. On a "
          "GPU DeviceArrays, and counts are numbers as they are now.")
      .def("load_state", &BoundOptimizer::load_state, py::arg("scalars"), py::arg("tensors"),
           "Takes over what state() returned, floats as codes and codes as floats where this "
           "optimizer keeps them so; checks all of it before anything is changed.")
      .def("set_counts", &BoundOptimizer::set_counts, py::arg("scalars"),
           "Takes over the counts of steps of state() alone.");
  bind_state_codes(module);
}

}  // namespace gradwire::bindings
