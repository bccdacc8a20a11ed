// An optimizer as Python holds it: arrays viewed, places told, steps handed to the layer.

#include "gradwire/bindings/optimizer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/optimizers/saved_state.h"

namespace gradwire::bindings {

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

namespace {

void check_names(size_t count, const ParameterTable& table) {
  check(table.names.size() == count && table.group_of.size() == count, "names: holds ",
        table.names.size(), " and group_of ", table.group_of.size(), ", must hold ", count,
        " each");
  std::set<std::string_view> seen;
  for (const std::string& name : table.names) {
    check(seen.insert(name).second, "names: '", name, "' is there twice, must be unique");
  }
}

Place place_of_all(const Arrays& arrays, py::handle stream) {
  return arrays.empty() ? Place{} : place_of(arrays[0], "parameters[0]", stream);
}

/// Writes the counts of steps there are in `saved`, once all have been looked at.
class CountWriter final : public StateVisitor {
 public:
  explicit CountWriter(DictState& saved) : saved_(saved) {}
  void write_from_now_on() { writing_ = true; }

  void tensor(std::string_view, std::string_view, TensorView) override {}
  void bytes(std::string_view, std::string_view, std::span<std::byte>, Device) override {}
  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
    const std::optional<uint64_t> count = saved_.scalar(parameter, name);
    value = writing_ ? count.value_or(value) : value;
  }

 private:
  DictState& saved_;
  bool writing_ = false;
};

/// Masters are made of the values there are, on a stream of the optimizer's own.
void wait_for(const Place& place) {
  if (place.device.type == DeviceType::kCuda) {
    const py::gil_scoped_release release;
    cuda::wrap_stream(place.stream, place.device.index)->wait();
  }
}

}  // namespace

BoundOptimizer::BoundOptimizer(const std::string& spec, const Arrays& parameters,
                               const Arrays& gradients, const ParameterTable& table, int threads,
                               py::handle stream)
    : worker_(std::make_unique<Worker>(threads, place_of_all(parameters, stream).device)) {
  const size_t count = parameters.size();
  check(gradients.size() == count, "gradients: holds ", gradients.size(), " arrays, must hold ",
        count, " as parameters does");
  check_names(count, table);
  const Place place = place_of_all(parameters, stream);
  std::vector<Parameter> list;
  for (size_t i = 0; i < count; ++i) {
    const TensorView value =
        keep(parameters[i], concat("parameters[", i, "]"), std::nullopt, place);
    const TensorView gradient =
        py::handle(gradients[i]).is_none()
            ? TensorView{}
            : keep(gradients[i], concat("gradients[", i, "]"), value.numel, place);
    list.push_back({table.names[i], value, gradient, table.group_of[i]});
    places_.push_back({value, gradient});
  }
  if (worker_->on_gpu()) {
    source_ = parameters[0];
  }
  wait_for(place);
  optimizer_ = make_optimizer(parse_optimizer(spec), std::move(list), groups_of(table.groups));
}

BoundOptimizer::BoundOptimizer(const std::string& spec, const std::vector<Address>& values,
                               const std::vector<size_t>& numels, const ParameterTable& table,
                               int threads, const Place& place)
    : worker_(std::make_unique<Worker>(threads, place.device)) {
  check(numels.size() == values.size(), "numels: holds ", numels.size(), ", must hold ",
        values.size(), " as values does");
  check_names(values.size(), table);
  check(table.replicas.empty() || table.replicas.size() == values.size(), "replicas: holds ",
        table.replicas.size(), ", must hold ", values.size(), " as values does");
  std::vector<Parameter> list;
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorView value = view_at(values[i], numels[i]);
    const bool replica = !table.replicas.empty() && table.replicas[i];
    list.push_back({table.names[i], value, {}, table.group_of[i], replica});
    places_.push_back({value, {}});
  }
  wait_for(place);
  optimizer_ = make_optimizer(parse_optimizer(spec), std::move(list), groups_of(table.groups));
}

BoundOptimizer::~BoundOptimizer() {
  const py::gil_scoped_release release;
  optimizer_.reset();
  worker_.reset();
  sum_.reset();
}

void BoundOptimizer::set_slices(const std::shared_ptr<BoundTransport>& transport) {
  worker_->alone([&] {
    transport_ = transport->get();
    sum_ = std::make_unique<RankSum>(*transport_, 2 * places_.size() + 1);
    if (worker_->on_gpu()) {
      add_up_on_device_ = std::ref(*sum_);
    } else {
      add_up_ = std::ref(*sum_);
    }
  });
}

void BoundOptimizer::bind(const std::vector<uintptr_t>& values,
                          const std::vector<Address>& gradients, py::handle stream) {
  check(values.size() == places_.size() && gradients.size() == places_.size(),
        "bind: ", values.size(), " values and ", gradients.size(), " gradients, must be ",
        places_.size(), " each");
  const Place place = place_for(stream);
  worker_->run(
      [&](Context& context) {
        for (size_t i = 0; i < places_.size(); ++i) {
          places_[i].value.data = reinterpret_cast<void*>(values[i]);
          places_[i].gradient = view_at(gradients[i], places_[i].value.numel);
        }
        optimizer_->bind_in_order(places_, context);
      },
      place.stream);
}

void BoundOptimizer::set_groups(const std::vector<GroupRow>& rows, py::handle stream) {
  const Place place = place_for(stream);
  worker_->run([&](Context& context) { optimizer_->set_groups_in_order(groups_of(rows), context); },
               place.stream);
}

void BoundOptimizer::values_changed(py::handle stream) {
  const Place place = place_for(stream);
  worker_->run([&](Context& context) { optimizer_->values_changed(context); }, place.stream);
}

void BoundOptimizer::follow(py::handle stream) {
  worker_->run([](Context&) {}, place_for(stream).stream);
}

void BoundOptimizer::step(const StepArguments& arguments) {
  const Place place = place_for(arguments.stream);
  std::vector<Array> kept;
  const StepOptions options = options_of(arguments, place, kept);
  worker_->run([&](Context& context) { optimizer_->apply(options, context); }, place.stream);
}

void BoundOptimizer::step_from(const std::vector<const PayloadGroup*>& groups,
                               const StepArguments& arguments) {
  std::vector<Array> kept;
  const std::vector<PlacedGroup> given = placed(groups, place_for(arguments.stream), kept);
  step_at(
      "step(payloads=)",
      [&](Context& context) { return from_payloads_.open(given, places_, context); }, arguments);
}

void BoundOptimizer::step_on(const Arrays& gradients, const StepArguments& arguments) {
  check(gradients.size() == places_.size(), "gradients: holds ", gradients.size(),
        " arrays, must hold ", places_.size(), ", one of each parameter");
  if (worker_->on_gpu() && arguments.stream.is_none() && !places_.empty()) {
    StepArguments named = arguments;  // the stream that gradients are current on
    named.stream = py::int_(reinterpret_cast<uintptr_t>(
        place_on(device(), "gradients[0]", arguments.stream, gradients[0]).stream));
    step_on(gradients, named);
    return;
  }
  const Place place = place_for(arguments.stream);
  std::vector<Array> arrays;
  std::vector<Binding> places = places_;
  for (size_t i = 0; i < places.size(); ++i) {
    arrays.push_back(Array::input(
        gradients[i], {concat("gradients[", i, "]"), std::nullopt, places[i].value.numel}, place));
    places[i].gradient = arrays.back().view();
  }
  step_at("step_on", [&](Context&) { return places; }, arguments);
}

const char* BoundOptimizer::exchanges() {
  switch (worker_->alone([&] { return optimizer_->exchanges(); })) {
    case Exchanged::kMomentum:
      return "momentum";
    case Exchanged::kMoves:
      return "moves";
    case Exchanged::kGradients:
      break;
  }
  return "gradients";
}

void BoundOptimizer::prepare(double gradient_scale, py::handle stream) {
  const Place place = place_for(stream);
  worker_->run([&](Context& context) { optimizer_->prepare(gradient_scale, context); },
               place.stream);
}

void BoundOptimizer::synchronize(py::handle stream) {
  const Place place = place_for(stream);
  worker_->run(
      [&](Context& context) {
        const std::string fault = from_payloads_.take_fault(context);
        try {
          optimizer_->synchronize(context);
        } catch (const InvalidArgument&) {
          check(fault.empty(), fault);  // which names the cause
          throw;
        }
        check(fault.empty(), fault);  // of a step that was left out for another reason as well
      },
      place.stream);
}

uint64_t BoundOptimizer::skipped_steps(py::handle stream) {
  const Place place = place_for(stream);
  uint64_t skipped = 0;
  worker_->run([&](Context& context) { skipped = optimizer_->skipped_steps(context); },
               place.stream);
  return skipped;
}

py::typing::Tuple<Scalars, Tensors> BoundOptimizer::state() {
  return worker_->alone([&] {
    StateReader reader;
    optimizer_->visit_state(reader);
    return py::make_tuple(reader.scalars, reader.tensors);
  });
}

py::typing::Tuple<Scalars, Tensors> BoundOptimizer::state_views(py::object self) {
  auto& bound = self.cast<BoundOptimizer&>();
  return bound.worker_->alone([&] {
    StateReader reader(self, bound.worker_->on_gpu());
    bound.optimizer_->visit_state(reader);
    return py::make_tuple(reader.scalars, reader.tensors);
  });
}

void BoundOptimizer::load_state(const Scalars& scalars, const Tensors& tensors) {
  worker_->alone([&] {
    DictState saved(scalars, tensors);
    gradwire::load_state(*optimizer_, saved);
  });
}

void BoundOptimizer::set_counts(const Scalars& scalars) {
  worker_->alone([&] {
    DictState saved(scalars, py::dict());
    CountWriter writer(saved);
    optimizer_->visit_state(writer);  // a name that is missing is found before anything is written
    writer.write_from_now_on();
    optimizer_->visit_state(writer);
  });
}

Place BoundOptimizer::place_for(py::handle stream) const {
  if (worker_->on_gpu()) {
    return place_on(device(), "parameters", stream, source_);
  }
  check(stream.is_none(), "stream: is given, must be None: the parameters are in CPU memory");
  return {};
}

StepOptions BoundOptimizer::options_of(const StepArguments& arguments, const Place& place,
                                       std::vector<Array>& kept) const {
  return {.learning_rate = arguments.learning_rate,
          .gradient_scale = arguments.gradient_scale,
          .known_finite = arguments.known_finite,
          .on_non_finite = arguments.skip ? OnNonFinite::kSkip : OnNonFinite::kError,
          .on_device = {.loss_scale = number_at(arguments.loss_scale, "loss_scale", place, kept),
                        .found_inf = number_at(arguments.found_inf, "found_inf", place, kept),
                        .add_up = add_up_on_device_ ? &add_up_on_device_ : nullptr},
          .add_up = add_up_ ? &add_up_ : nullptr};
}

const float* BoundOptimizer::number_at(py::handle given, std::string_view what, const Place& place,
                                       std::vector<Array>& kept) const {
  if (given.is_none()) {
    return nullptr;
  }
  check(worker_->on_gpu(), what, ": is given, must be None: the parameters are in CPU memory");
  if (py::isinstance<py::int_>(given)) {
    return reinterpret_cast<const float*>(given.cast<uintptr_t>());
  }
  kept.push_back(Array::input(given, {what, DType::kFloat32, 1}, place));
  return kept.back().floats().data();
}

TensorView BoundOptimizer::view_at(const Address& address, size_t numel) const {
  return {reinterpret_cast<void*>(address.first), address.first == 0 ? 0 : numel,
          parse_dtype_name(address.second), device()};
}

TensorView BoundOptimizer::keep(py::handle array, const std::string& what,
                                std::optional<size_t> numel, const Place& place) {
  arrays_.push_back(Array::output(array, {what, std::nullopt, numel}, place));
  return arrays_.back().writable_view();
}

template <class FindPlaces>
void BoundOptimizer::step_at(std::string_view name, const FindPlaces& find_places,
                             const StepArguments& arguments) {
  const Place place = place_for(arguments.stream);
  std::vector<Array> kept;
  const StepOptions options = options_of(arguments, place, kept);
  worker_->run(
      [&](Context& context) {
        check(!worker_->on_gpu() || !cuda::is_capturing(context.stream), name,
              ": its stream is captured into a graph, which would step on the gradients that "
              "are bound when it runs, expected step() there");
        const std::vector<Binding> places = find_places(context);
        optimizer_->bind_in_order(places, context);
        try {
          optimizer_->apply(options, context);
          if (!worker_->on_gpu()) {
            context.stream.wait();
          }
        } catch (...) {
          optimizer_->bind_in_order(places_, context);
          throw;
        }
        optimizer_->bind_in_order(places_, context);
      },
      place.stream);
}

}  // namespace gradwire::bindings
