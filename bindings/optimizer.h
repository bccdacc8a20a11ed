#pragma once
// An optimizer as Python holds it.

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/optimizer_state.h"
#include "gradwire/bindings/payload_groups.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/comm/rank_sum.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {

using Arrays = py::typing::List<py::object>;

// weight_decay, learning_rate_scale, adapt, momentum, beta1, beta2, epsilon, full_state; unset: the
// spec's.
using Setting = std::optional<double>;
using GroupRow = std::tuple<Setting, double, bool, Setting, Setting, Setting, Setting, bool>;

std::vector<ParamGroup> groups_of(const std::vector<GroupRow>& rows);

/// Where memory is that others keep alive, and of which dtype: 0 is none.
using Address = std::pair<uintptr_t, std::string>;

/// How parameters are called and grouped.
struct ParameterTable {
  std::vector<std::string> names;
  std::vector<size_t> group_of;
  std::vector<GroupRow> groups;
  std::vector<bool> replicas = {};  ///< Parameter::replica of each, or of none
};

/// What one step is given from Python.
struct StepArguments {
  double learning_rate;
  double gradient_scale;
  bool known_finite;
  bool skip;              ///< a step whose gradients are not finite is left out
  py::object stream;      ///< the last three: of a GPU
  py::object loss_scale;  ///< one float32 there, as an array or by its address
  py::object found_inf;
};

/// An optimizer, and the arrays it steps on where it was given arrays: it keeps them alive.
class BoundOptimizer {
 public:
  BoundOptimizer(const std::string& spec, const Arrays& parameters, const Arrays& gradients,
                 const ParameterTable& table, int threads, py::handle stream);
  /// Of memory that others keep alive; `place` says whose.
  BoundOptimizer(const std::string& spec, const std::vector<Address>& values,
                 const std::vector<size_t>& numels, const ParameterTable& table, int threads,
                 const Place& place);

  /// What it has on a GPU ends without the GIL: that is waited for, and may need other threads of Python.
  ~BoundOptimizer();

  Device device() const { return worker_->device(); }
  std::string spec() const { return to_string(optimizer_->spec()); }
  size_t state_bytes() const { return optimizer_->state_bytes(); }

  /// Every rank of the transport holds slices of the same parameters from now on.
  void set_slices(const std::shared_ptr<BoundTransport>& transport);
  /// Allocates nothing but what Python's lists need on their way.
  void bind(const std::vector<uintptr_t>& values, const std::vector<Address>& gradients,
            py::handle stream);
  void set_groups(const std::vector<GroupRow>& rows, py::handle stream);
  void values_changed(py::handle stream);
  /// What the caller has enqueued on that stream since the last call, which reads parameters, goes
  /// before the next call's work.
  void follow(py::handle stream);

  void step(const StepArguments& arguments);
  /// The same, where the gradients of the groups' parameters are read from payloads.
  void step_from(const std::vector<const PayloadGroup*>& groups, const StepArguments& arguments);
  /// The same with gradients of this step alone, which may be read-only.
  void step_on(const Arrays& gradients, const StepArguments& arguments);
  /// As Python has it.
  const char* exchanges();
  void prepare(double gradient_scale, py::handle stream);
  /// Waits.
  void synchronize(py::handle stream);
  uint64_t skipped_steps(py::handle stream);

  py::typing::Tuple<Scalars, Tensors> state();
  /// The state itself; arrays keep this object alive.
  static py::typing::Tuple<Scalars, Tensors> state_views(py::object self);
  void load_state(const Scalars& scalars, const Tensors& tensors);
  /// The counts of steps alone.
  void set_counts(const Scalars& scalars);

 private:
  Place place_for(py::handle stream) const;
  /// What `arguments` point to stays alive with `kept`.
  StepOptions options_of(const StepArguments& arguments, const Place& place,
                         std::vector<Array>& kept) const;
  const float* number_at(py::handle given, std::string_view what, const Place& place,
                         std::vector<Array>& kept) const;
  TensorView view_at(const Address& address, size_t numel) const;
  TensorView keep(py::handle array, const std::string& what, std::optional<size_t> numel,
                  const Place& place);
  /// One step of that name with parameters where find_places() says.
  template <class FindPlaces>
  void step_at(std::string_view name, const FindPlaces& find_places,
               const StepArguments& arguments);

  std::vector<Array> arrays_;
  py::object source_ = py::none();  // whose library knows the current stream
  std::vector<Binding> places_;
  PayloadPlaces from_payloads_;
  std::shared_ptr<Transport> transport_;  // of slices, as the next three
  std::unique_ptr<RankSum> sum_;
  std::function<void(std::span<double>)> add_up_;
  std::function<void(std::span<double>, Stream&)> add_up_on_device_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace gradwire::bindings
