// gradwire/optimizers for Python: steps in place on the caller's arrays, and their state by name.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {
namespace {

using Arrays = py::typing::List<py::object>;
using Scalars = py::typing::Dict<py::str, py::int_>;
using Tensors = py::typing::Dict<py::str, py::typing::Dict<py::str, py::object>>;

// Copies all state into {"scalars": {name: int}, "tensors": {parameter: {name: array}}}.
class StateReader : public StateVisitor {
 public:
  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    const py::str key{std::string(parameter)};
    if (!tensors.contains(key)) {
      tensors[key] = py::dict();
    }
    tensors[key][py::str(std::string(name))] = copy_of(value);
  }
  void scalar(std::string_view name, uint64_t& value) override {
    scalars[py::str(std::string(name))] = value;
  }

  Scalars scalars;
  Tensors tensors;
};

// Finds every piece of state in a dict of that form and writes it once all of them were found.
class StateWriter : public StateVisitor {
 public:
  StateWriter(const py::dict& scalars, const py::dict& tensors)
      : scalars_(scalars), tensors_(tensors) {}

  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    const py::str key{std::string(parameter)}, piece{std::string(name)};
    const std::string what = concat("state['", parameter, "']['", name, "']");
    check(tensors_.contains(key) && py::dict(tensors_[key]).contains(piece), what,
          ": is missing, must be there");
    const py::object saved = tensors_[key][piece];
    Array source = Array::input(saved, {what, value.dtype, value.numel});
    copies_.push_back({value, std::move(source)});
  }
  void scalar(std::string_view name, uint64_t& value) override {
    const py::str key{std::string(name)};
    check(scalars_.contains(key), "scalars['", name, "']: is missing, must be there");
    const py::object saved = scalars_[key];
    const bool whole = py::isinstance<py::int_>(saved) && saved >= py::int_(0);
    check(whole, "scalars['", name, "']: is ", std::string(py::repr(saved)),
          ", must be a whole number from 0");
    values_.push_back({&value, saved.cast<uint64_t>()});
  }

  void write() {
    for (const auto& [destination, source] : copies_) {
      if (destination.numel != 0) {
        std::memcpy(destination.data, source.view().data, destination.size_bytes());
      }
    }
    for (const auto& [destination, value] : values_) {
      *destination = value;
    }
  }

 private:
  const py::dict scalars_, tensors_;
  std::vector<std::pair<TensorView, Array>> copies_;
  std::vector<std::pair<uint64_t*, uint64_t>> values_;
};

// weight_decay (unset: the spec's), learning_rate_scale, adapt, momentum (unset: the spec's).
using GroupRow = std::tuple<std::optional<double>, double, bool, std::optional<double>>;

// An optimizer, and the arrays it steps on: it keeps them alive.
class BoundOptimizer {
 public:
  BoundOptimizer(const std::string& spec, const Arrays& parameters, const Arrays& gradients,
                 const std::vector<std::string>& names, const std::vector<size_t>& group_of,
                 const std::vector<GroupRow>& groups, int threads)
      : worker_(threads) {
    const size_t count = parameters.size();
    check(gradients.size() == count, "gradients: holds ", gradients.size(), " arrays, must hold ",
          count, " as parameters does");
    check(names.size() == count && group_of.size() == count, "names: holds ", names.size(),
          " and group_of ", group_of.size(), ", must hold ", count, " each");
    std::set<std::string_view> seen;
    for (const std::string& name : names) {
      check(seen.insert(name).second, "names: '", name, "' is there twice, must be unique");
    }
    std::vector<Parameter> list;
    for (size_t i = 0; i < count; ++i) {
      const Array& value = keep(parameters[i], concat("parameters[", i, "]"), std::nullopt);
      const TensorView value_view = value.writable_view();
      const Array& gradient = keep(gradients[i], concat("gradients[", i, "]"), value_view.numel);
      list.push_back({names[i], value_view, gradient.writable_view(), group_of[i]});
    }
    std::vector<ParamGroup> settings;
    for (const auto& [weight_decay, scale, adapt, momentum] : groups) {
      settings.push_back({weight_decay, momentum, scale, adapt});
    }
    optimizer_ = make_optimizer(parse_optimizer(spec), std::move(list), std::move(settings));
  }

  std::string spec() const { return to_string(optimizer_->spec()); }

  void step(double learning_rate, double gradient_scale, bool known_finite) {
    const StepOptions options{.learning_rate = learning_rate,
                              .gradient_scale = gradient_scale,
                              .known_finite = known_finite};
    worker_.run([&](Context& context) {
      optimizer_->prepare(context);
      optimizer_->apply(options, context);
    });
  }

  py::typing::Tuple<Scalars, Tensors> state() {
    return worker_.alone([&] {
      StateReader reader;
      optimizer_->visit_state(reader);
      return py::make_tuple(reader.scalars, reader.tensors);
    });
  }

  void load_state(const Scalars& scalars, const Tensors& tensors) {
    worker_.alone([&] {
      StateWriter writer(scalars, tensors);
      optimizer_->visit_state(writer);
      writer.write();
    });
  }

 private:
  const Array& keep(py::handle array, const std::string& what, std::optional<size_t> numel) {
    arrays_.push_back(Array::output(array, {what, DType::kFloat32, numel}));
    return arrays_.back();
  }

  std::vector<Array> arrays_;
  Worker worker_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

void bind_optimizers(py::module_& module) {
  module.def(
      "canonical_optimizer",
      [](const std::string& text) { return to_string(parse_optimizer(text)); }, py::arg("text"),
      "The canonical text of an optimizer spec such as 'lamb:weight_decay=0.01'.\n\n"
      "Raises:\n    InvalidArgument: an unknown name or key lists the known ones.");
  py::class_<BoundOptimizer>(
      module, "Optimizer",
      "Steps on arrays in place; the package's SGD, AdamW, LARS, LARC and LAMB wrap it.\n\n"
      "groups holds (weight_decay or None, learning_rate_scale, adapt, momentum or None); group_of "
      "names one of them for each parameter.")
      .def(py::init<const std::string&, const Arrays&, const Arrays&,
                    const std::vector<std::string>&, const std::vector<size_t>&,
                    const std::vector<GroupRow>&, int>(),
           py::arg("spec"), py::arg("parameters"), py::arg("gradients"), py::arg("names"),
           py::arg("group_of"), py::arg("groups"), py::arg("threads") = 1)
      .def_property_readonly("spec", &BoundOptimizer::spec, "The canonical spec text.")
      .def("step", &BoundOptimizer::step, py::arg("learning_rate"), py::arg("gradient_scale") = 1.0,
           py::arg("known_finite") = false,
           "Updates all parameters from their gradients; the GIL is released.\n\n"
           "Raises:\n    NonFiniteGradient: naming the parameter; nothing was changed.\n"
           "    InvalidArgument: learning_rate is negative or not finite, or gradient_scale is not "
           "in "
           "(0, 1].")
      .def("state", &BoundOptimizer::state,
           "Copies of all state: ({name: int}, {parameter: {name: array}}).")
      .def("load_state", &BoundOptimizer::load_state, py::arg("scalars"), py::arg("tensors"),
           "Takes over what state() returned; checks all of it before anything is changed.");
}

}  // namespace gradwire::bindings
