// gradwire/optimizers for Python: steps in place on the caller's arrays, and their state by name.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/optimizer_state.h"
#include "gradwire/bindings/payload_copies.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/comm/rank_sum.h"
#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step_rule.h"

namespace gradwire::bindings {
namespace {

using Arrays = py::typing::List<py::object>;

// weight_decay, learning_rate_scale, adapt, momentum, beta1, beta2, epsilon, full_state; unset: the
// spec's.
using Setting = std::optional<double>;
using GroupRow = std::tuple<Setting, double, bool, Setting, Setting, Setting, Setting, bool>;

std::vector<ParamGroup> groups_of(const std::vector<GroupRow>& rows) {
  std::vector<ParamGroup> groups;
  for (const auto& [weight_decay, scale, adapt, momentum, beta1, beta2, epsilon, full] : rows) {
    groups.push_back({.weight_decay = weight_decay,
                      .momentum = momentum,
                      .learning_rate_scale = scale,
                      .adapt = adapt,
                      .beta1 = beta1,
                      .beta2 = beta2,
                      .epsilon = epsilon,
                      .full_state = full});
  }
  return groups;
}

// Where memory is that others keep alive, and of which dtype: 0 is none.
using Address = std::pair<uintptr_t, std::string>;

TensorView view_at(const Address& address, size_t numel) {
  return {reinterpret_cast<void*>(address.first),
          address.first == 0 ? 0 : numel,
          parse_dtype(py::str(address.second)),
          {}};
}

// An optimizer, and the arrays it steps on where it was given arrays: it keeps them alive.
class BoundOptimizer {
 public:
  BoundOptimizer(const std::string& spec, const Arrays& parameters, const Arrays& gradients,
                 const std::vector<std::string>& names, const std::vector<size_t>& group_of,
                 const std::vector<GroupRow>& groups, int threads)
      : worker_(threads) {
    const size_t count = parameters.size();
    check(gradients.size() == count, "gradients: holds ", gradients.size(), " arrays, must hold ",
          count, " as parameters does");
    check_names(count, names, group_of);
    std::vector<Parameter> list;
    for (size_t i = 0; i < count; ++i) {
      const TensorView value = keep(parameters[i], concat("parameters[", i, "]"), std::nullopt);
      const TensorView gradient = keep(gradients[i], concat("gradients[", i, "]"), value.numel);
      list.push_back({names[i], value, gradient, group_of[i]});
      places_.push_back({value, gradient});
    }
    optimizer_ = make_optimizer(parse_optimizer(spec), std::move(list), groups_of(groups));
  }

  BoundOptimizer(const std::string& spec, const std::vector<Address>& values,
                 const std::vector<size_t>& numels, const std::vector<std::string>& names,
                 const std::vector<size_t>& group_of, const std::vector<GroupRow>& groups,
                 int threads)
      : worker_(threads) {
    check(numels.size() == values.size(), "numels: holds ", numels.size(), ", must hold ",
          values.size(), " as values does");
    check_names(values.size(), names, group_of);
    std::vector<Parameter> list;
    for (size_t i = 0; i < values.size(); ++i) {
      const TensorView value = view_at(values[i], numels[i]);
      list.push_back({names[i], value, {}, group_of[i]});
      places_.push_back({value, {}});
    }
    optimizer_ = make_optimizer(parse_optimizer(spec), std::move(list), groups_of(groups));
  }

  // Every rank of the transport holds slices of the same parameters from now on.
  void set_slices(const std::shared_ptr<BoundTransport>& transport) {
    worker_.alone([&] {
      transport_ = transport->get();
      sum_ = std::make_unique<RankSum>(*transport_, std::max<size_t>(1, 2 * places_.size()));
      add_up_ = std::ref(*sum_);
    });
  }

  // Allocates nothing but what Python's lists need on their way.
  void bind(const std::vector<uintptr_t>& values, const std::vector<Address>& gradients) {
    check(values.size() == places_.size() && gradients.size() == places_.size(),
          "bind: ", values.size(), " values and ", gradients.size(), " gradients, must be ",
          places_.size(), " each");
    worker_.alone([&] {
      for (size_t i = 0; i < places_.size(); ++i) {
        places_[i].value.data = reinterpret_cast<void*>(values[i]);
        places_[i].gradient = view_at(gradients[i], places_[i].value.numel);
      }
      optimizer_->bind(places_);
    });
  }

  void set_groups(const std::vector<GroupRow>& rows) {
    worker_.alone([&] { optimizer_->set_groups(groups_of(rows)); });
  }

  void values_changed() {
    worker_.run([&](Context& context) { optimizer_->values_changed(context); });
  }

  std::string spec() const { return to_string(optimizer_->spec()); }

  size_t state_bytes() const { return optimizer_->state_bytes(); }

  void step(double learning_rate, double gradient_scale, bool known_finite) {
    const StepOptions options = options_of(learning_rate, gradient_scale, known_finite);
    worker_.run([&](Context& context) { optimizer_->apply(options, context); });
  }

  // The same, where the gradients of the groups' parameters are read from payloads.
  void step_from(const std::vector<const PayloadCopies*>& groups, double learning_rate,
                 double gradient_scale, bool known_finite) {
    step_at([&](Context& context) { return from_payloads_.open(groups, places_, context); },
            options_of(learning_rate, gradient_scale, known_finite));
  }

  // The same with gradients of this step alone, which may be read-only.
  void step_on(const Arrays& gradients, double learning_rate, double gradient_scale,
               bool known_finite) {
    check(gradients.size() == places_.size(), "gradients: holds ", gradients.size(),
          " arrays, must hold ", places_.size(), ", one of each parameter");
    std::vector<Array> arrays;
    std::vector<Binding> places = places_;
    for (size_t i = 0; i < places.size(); ++i) {
      arrays.push_back(Array::input(
          gradients[i], {concat("gradients[", i, "]"), std::nullopt, places[i].value.numel}));
      places[i].gradient = arrays.back().view();
    }
    step_at([&](Context&) { return places; },
            options_of(learning_rate, gradient_scale, known_finite));
  }

  // As Python has it.
  const char* exchanges() {
    switch (worker_.alone([&] { return optimizer_->exchanges(); })) {
      case Exchanged::kMomentum:
        return "momentum";
      case Exchanged::kMoves:
        return "moves";
      case Exchanged::kGradients:
        break;
    }
    return "gradients";
  }

  void prepare(double gradient_scale) {
    worker_.run([&](Context& context) { optimizer_->prepare(gradient_scale, context); });
  }

  py::typing::Tuple<Scalars, Tensors> state() {
    return worker_.alone([&] {
      StateReader reader;
      optimizer_->visit_state(reader);
      return py::make_tuple(reader.scalars, reader.tensors);
    });
  }

  // The state itself; arrays keep this object alive.
  static py::typing::Tuple<Scalars, Tensors> state_views(py::object self) {
    auto& bound = self.cast<BoundOptimizer&>();
    return bound.worker_.alone([&] {
      StateReader reader(self);
      bound.optimizer_->visit_state(reader);
      return py::make_tuple(reader.scalars, reader.tensors);
    });
  }

  void load_state(const Scalars& scalars, const Tensors& tensors) {
    worker_.alone([&] {
      DictState saved(scalars, tensors);
      gradwire::load_state(*optimizer_, saved);
    });
  }

 private:
  StepOptions options_of(double learning_rate, double gradient_scale, bool known_finite) const {
    return {.learning_rate = learning_rate,
            .gradient_scale = gradient_scale,
            .known_finite = known_finite,
            .add_up = add_up_ ? &add_up_ : nullptr};
  }

  // One step with parameters where find_places() says.
  template <class FindPlaces>
  void step_at(const FindPlaces& find_places, const StepOptions& options) {
    worker_.run([&](Context& context) {
      const std::vector<Binding> places = find_places(context);
      context.stream.wait();
      optimizer_->bind(places);
      try {
        optimizer_->apply(options, context);
        context.stream.wait();
      } catch (...) {
        optimizer_->bind(places_);
        throw;
      }
      optimizer_->bind(places_);
    });
  }

  static void check_names(size_t count, const std::vector<std::string>& names,
                          const std::vector<size_t>& group_of) {
    check(names.size() == count && group_of.size() == count, "names: holds ", names.size(),
          " and group_of ", group_of.size(), ", must hold ", count, " each");
    std::set<std::string_view> seen;
    for (const std::string& name : names) {
      check(seen.insert(name).second, "names: '", name, "' is there twice, must be unique");
    }
  }

  TensorView keep(py::handle array, const std::string& what, std::optional<size_t> numel) {
    arrays_.push_back(Array::output(array, {what, std::nullopt, numel}));
    return arrays_.back().writable_view();
  }

  std::vector<Array> arrays_;
  std::vector<Binding> places_;
  PayloadPlaces from_payloads_;
  std::shared_ptr<Transport> transport_;  // of slices, as the next two
  std::unique_ptr<RankSum> sum_;
  std::function<void(std::span<double>)> add_up_;
  Worker worker_;
  std::unique_ptr<Optimizer> optimizer_;
};

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
  module.def(
      "canonical_optimizer",
      [](const std::string& text) { return to_string(parse_optimizer(text)); }, py::arg("text"),
      "The canonical text of an optimizer spec such as 'lamb:weight_decay=0.01'.\n\n"
      "Raises:\n    InvalidArgument: an unknown name or key lists the known ones.");
  py::class_<BoundOptimizer>(
      module, "Optimizer",
      "Steps on arrays in place; the package's SGD, AdamW, LARS, LARC and LAMB wrap it.\n\n"
      "groups holds (weight_decay, learning_rate_scale, adapt, momentum, beta1, beta2, epsilon, "
      "full_state), None where the spec's holds; group_of names one of them for each parameter.")
      .def(py::init<const std::string&, const Arrays&, const Arrays&,
                    const std::vector<std::string>&, const std::vector<size_t>&,
                    const std::vector<GroupRow>&, int>(),
           py::arg("spec"), py::arg("parameters"), py::arg("gradients"), py::arg("names"),
           py::arg("group_of"), py::arg("groups"), py::arg("threads") = 1)
      .def_static(
          "at",
          [](const std::string& spec, const std::vector<Address>& values,
             const std::vector<size_t>& numels, const std::vector<std::string>& names,
             const std::vector<size_t>& group_of, const std::vector<GroupRow>& groups,
             int threads) {
            return std::make_unique<BoundOptimizer>(spec, values, numels, names, group_of, groups,
                                                    threads);
          },
          py::arg("spec"), py::arg("values"), py::arg("numels"), py::arg("names"),
          py::arg("group_of"), py::arg("groups"), py::arg("threads") = 1,
          "Of memory by (address, dtype), which the caller keeps alive; gradients come by bind().")
      .def(
          "bind", &BoundOptimizer::bind, py::arg("values"), py::arg("gradients"),
          "Tells where values are, by address, and gradients, by (address, dtype): an address of 0 "
          "leaves the parameter out of steps.\n\nRaises:\n    InvalidArgument: memory is shared; "
          "all stays as it was.")
      .def("set_slices", &BoundOptimizer::set_slices, py::arg("transport"),
           "Every rank of the transport holds slices of the same parameters, in the same order: "
           "norms, and whether a gradient is finite, are of all of them from now on. Its calls are "
           "collective then.\n\nRaises:\n    InvalidArgument: the transport is closed.")
      .def("set_groups", &BoundOptimizer::set_groups, py::arg("groups"),
           "Other settings for the groups, as many as before.")
      .def("prepare", &BoundOptimizer::prepare, py::arg("gradient_scale") = 1.0,
           "Writes what is to be exchanged to the gradients, unless it is these; gradient_scale is "
           "what these are multiplied by as they are read.\n\n"
           "Raises:\n    InvalidArgument: gradient_scale is not in (0, 1].")
      .def_property_readonly(
          "exchanges", &BoundOptimizer::exchanges,
          "What the next step exchanges: 'gradients', 'momentum' or 'moves', of local steps.")
      .def("values_changed", &BoundOptimizer::values_changed,
           "Takes values that others wrote for the masters of parameters of 16 bits.")
      .def_property_readonly("spec", &BoundOptimizer::spec, "The canonical spec text.")
      .def_property_readonly("state_bytes", &BoundOptimizer::state_bytes,
                             "Memory of all state and masters.")
      .def("step", &BoundOptimizer::step, py::arg("learning_rate"), py::arg("gradient_scale") = 1.0,
           py::arg("known_finite") = false,
           "Updates all parameters from their gradients; the GIL is released.\n\n"
           "Raises:\n    NonFiniteGradient: naming the parameter; nothing was changed.\n"
           "    InvalidArgument: learning_rate is negative or not finite, or gradient_scale is not "
           "in "
           "(0, 1].")
      .def("step_from", &BoundOptimizer::step_from, py::arg("payloads"), py::arg("learning_rate"),
           py::arg("gradient_scale") = 1.0, py::arg("known_finite") = false,
           "step(), where the gradients of the groups' parameters are read from their payloads. "
           "Errors as of step().\n\nRaises:\n    InvalidArgument: a payload that does not decode, "
           "or groups of other parameters; nothing was changed.")
      .def("step_on", &BoundOptimizer::step_on, py::arg("gradients"), py::arg("learning_rate"),
           py::arg("gradient_scale") = 1.0, py::arg("known_finite") = false,
           "step() with these gradients, one array of each parameter, which may be read-only. "
           "Errors as of step().\n\nRaises:\n    InvalidArgument: arrays that do not fit; nothing "
           "was changed.")
      .def("state", &BoundOptimizer::state,
           "Copies of all state: ({parameter: {name: int}}, {parameter: {name: array}}).")
      .def(
          "state_views",
          [](py::object self) { return BoundOptimizer::state_views(std::move(self)); },
          "The same without copies: arrays over the state itself, counts as arrays of int64.")
      .def("load_state", &BoundOptimizer::load_state, py::arg("scalars"), py::arg("tensors"),
           "Takes over what state() returned, floats as codes and codes as floats where this "
           "optimizer keeps them so; checks all of it before anything is changed.");
  bind_state_codes(module);
}

}  // namespace gradwire::bindings
