// The ShardedReducer for Python.

#include "gradwire/comm/sharded_reducer.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/interruptible.h"
#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/parameter_shapes.h"
#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/python_calls.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"

namespace gradwire::bindings {
namespace {

using Fields = py::typing::Dict<py::str, py::object>;
/// Name, dtype (None: not compressed), shapes of the parameters' parts in a slice, seed.
using Group = std::tuple<std::string, std::optional<std::string>, Shapes, uint64_t>;

ShardedGroup group_of(const Group& given) {
  const auto& [name, dtype, shapes, seed] = given;
  ShardedGroup group{.name = name, .segments = segments_of(shapes), .seed = seed};
  for (const Segment& segment : group.segments) {
    group.numel += segment.numel;
  }
  group.compressed = dtype.has_value();
  group.dtype = dtype ? parse_dtype_name(*dtype) : DType::kFloat32;
  return group;
}

py::object array_of(std::span<const float> values) {
  return values.empty() ? py::object(py::none()) : copy_of(view_of(values));
}

/// What a state keeps under a name; empty where that is None.
std::vector<float> floats_of(const py::dict& state, const char* name, size_t numel) {
  if (!state.contains(name) || state[name].is_none()) {
    return {};
  }
  const std::string what = concat("state['", name, "']");
  const Array array = Array::input(state[name], {what, DType::kFloat32, numel});
  return {array.floats().begin(), array.floats().end()};
}

template <class Value>
Value integers_of(const py::dict& state, const char* name, const char* expected) {
  check(state.contains(name), "state['", name, "']: is missing, must be there");
  try {
    return state[name].cast<Value>();
  } catch (const py::cast_error&) {
    throw InvalidArgument(
        concat("state['", name, "']: is ", utf8_of(py::repr(state[name])), ", must be ", expected));
  }
}

/// A reducer and what it stands on.
class BoundShardedReducer {
  template <class Body>
  auto run(const Body& body) {
    return calls_.over(transport_, [&] { return body(*reducer_); });
  }

  /// What tasks of a step may use. A gradient, many times its shard, goes before the step ends.
  struct Held {
    std::vector<std::pair<size_t, std::shared_ptr<Array>>> gradients;  // each with its group
    std::vector<std::shared_ptr<Array>> shards;
  };

  /// The same of what has waited when it ends, either way: arrays are in use no more.
  template <class Body>
  bool run_to_end(const Body& body) {
    Held done;
    return run([&](ShardedReducer& reducer) {
      try {
        const bool result = body(reducer);
        std::swap(done, held_);
        return result;
      } catch (...) {
        std::swap(done, held_);
        throw;
      }
    });
  }

 public:
  BoundShardedReducer(const std::vector<Group>& groups, BoundTransport& transport,
                      const std::string& spec, const std::string& on_nonfinite, int threads)
      : transport_(transport.get_for_arrays()) {
    std::vector<ShardedGroup> made;
    for (const Group& each : groups) {
      made.push_back(group_of(each));
      shapes_.push_back(std::get<Shapes>(each));
    }
    ShardedOptions options{.spec = parse_spec(spec), .threads = threads};
    options.on_nonfinite =
        one_of<OnNonFinite>("on_nonfinite", on_nonfinite,
                            {{"error", OnNonFinite::kError}, {"skip", OnNonFinite::kSkip}});
    spec_ = to_string(options.spec);
    reducer_ = std::make_unique<ShardedReducer>(std::move(made), *transport_, std::move(options));
  }
  ~BoundShardedReducer() {
    calls_.process().let_go(reducer_);
    calls_.process().let_go(transport_);
  }
  BoundShardedReducer(const BoundShardedReducer&) = delete;
  BoundShardedReducer& operator=(const BoundShardedReducer&) = delete;

  void reduce(size_t g, py::handle gradient, py::handle shard, float scale) {
    const ShardedGroup& group = reducer_->group(g);
    const auto ranks = static_cast<size_t>(transport_->world_size());
    const auto from = keep(Array::input(gradient, {"gradient", group.dtype, ranks * group.numel}));
    const auto to = keep(Array::output(shard, {"shard", group.dtype, group.numel}));
    check_disjoint(*to, "shard", *from, "gradient");
    Held done;
    run([&](ShardedReducer& reducer) {
      auto& gradients = held_.gradients;
      const auto unused = std::ranges::partition(
          gradients, [&](const auto& each) { return reducer.uses_gradient(each.first); });
      std::ranges::move(unused, std::back_inserter(done.gradients));
      gradients.erase(unused.begin(), unused.end());
      gradients.emplace_back(g, from);
      held_.shards.push_back(to);
      reducer.reduce(g, from->view(), to->writable_view(), scale);
    });
  }

  void reduced(size_t g, bool finite, bool overflows) {
    run([&](ShardedReducer& reducer) { reducer.reduced(g, finite, overflows); });
  }

  size_t pending() {
    return run([](ShardedReducer& reducer) { return reducer.pending(); });
  }

  void wait() {
    run_to_end([](ShardedReducer& reducer) { return reducer.wait(), true; });
  }

  void abandon() {
    run_to_end([](ShardedReducer& reducer) { return reducer.abandon(), true; });
  }

  bool commit() {
    return run_to_end(
        [](ShardedReducer& reducer) { return reducer.commit() == StepOutcome::kCommitted; });
  }

  uint32_t step(size_t g) {
    return run([g](ShardedReducer& reducer) { return reducer.step(g); });
  }

  py::typing::List<std::optional<py::array>> residuals(size_t g) {
    const auto slices = run([g](ShardedReducer& reducer) { return reducer.residuals(g); });
    py::typing::List<std::optional<py::array>> list;
    for (const std::vector<float>& slice : slices) {
      list.append(array_of(slice));
    }
    return list;
  }

  py::typing::List<Fields> state(size_t g) {
    const auto slices = run([g](ShardedReducer& reducer) { return reducer.state(g); });
    const ShardedGroup& group = reducer_->group(g);
    py::typing::List<Fields> list;
    for (size_t d = 0; d < slices.size(); ++d) {
      Fields fields;
      fields["spec"] = spec_;
      fields["numel"] = group.numel;
      fields["dtype"] = to_string(group.dtype);
      fields["seed"] = group.seed + d;
      fields["rank"] = transport_->rank();
      fields["shapes"] = shapes_[g];
      fields["step"] = step(g);
      fields["learned"] = slices[d].learned;
      fields["residual"] = array_of(slices[d].residual);
      if (!slices[d].velocity.empty()) {
        fields["velocity"] = array_of(slices[d].velocity);
      }
      list.append(fields);
    }
    return list;
  }

  void load(size_t g, const std::vector<Fields>& states) {
    const ShardedGroup& group = reducer_->group(g);
    std::vector<SliceState> slices;
    uint32_t step = 0;
    for (const py::dict& state : states) {
      const auto own = integers_of<uint32_t>(state, "step", "a number of steps from 0");
      step = slices.empty() ? own : step;
      check(own == step, "state['step']: is ", own, ", must be ", step, " as of the first slice");
      slices.push_back(
          {floats_of(state, "residual", group.numel), floats_of(state, "velocity", group.numel),
           integers_of<std::vector<uint64_t>>(state, "learned", "a list of integers from 0")});
    }
    run([&](ShardedReducer& reducer) { reducer.set_state(g, step, slices); });
  }

 private:
  ReducerCalls calls_;
  std::shared_ptr<Transport> transport_;
  std::string spec_;
  std::vector<Shapes> shapes_;  // of each group
  Held held_;
  std::unique_ptr<ShardedReducer> reducer_;  // uses the others to its end
};

}  // namespace

void bind_sharded_reducer(py::module_& module) {
  using Self = BoundShardedReducer;
  py::class_<Self>(
      module, "ShardedReducer",
      "Gradients of which each rank keeps its shard of the mean: a rank compresses the slice of "
      "each other one and keeps what it leaves out, owners add up. Works on a thread of its own while "
      "backward goes on; commit() ends a step. One thread at a time; nothing else may use the "
      "transport during a step.",
      py::release_gil_before_calling_cpp_dtor())
      .def(
          py::init<const std::vector<Group>&, BoundTransport&, const std::string&,
                   const std::string&, int>(),
          py::arg("groups"), py::arg("transport"), py::arg("spec"), py::kw_only(),
          py::arg("on_nonfinite") = "error", py::arg("threads") = 1,
          "Args:\n    groups: of each, the same on all ranks, its name, the dtype of its gradients "
          "(None: reduced() instead of reduce()), the shapes of its parameters' parts in a slice, "
          "one behind another, and the seed that its first slice draws with.\n"
          "    spec: of all slices; not powersgd and not ef21.")
      .def("reduce", &Self::reduce, py::arg("group"), py::arg("gradient"), py::arg("shard"),
           py::arg("scale"),
           "Enqueues shard = scale * (sum of all ranks' slices for this one), once per group and "
           "step, in the same order on all ranks. gradient: the slices, by rank. Both are kept "
           "while they are used. The shard becomes NaN where a gradient or the sum is not finite.")
      .def("reduced", &Self::reduced, py::arg("group"), py::arg("finite"), py::arg("overflows"),
           "The same of a group that is not compressed, behind the call that reduced it: whether "
           "this rank's gradient was finite, and whether its shard overflowed all the same.")
      .def_property_readonly("pending", &Self::pending, "Groups of the step in progress.")
      .def("wait", &Self::wait,
           "Blocks until the shards so far are written.\n\nRaises:\n    TransportError: the group "
           "is finished.")
      .def("commit", &Self::commit,
           "wait(), and the end of the step: collective. Returns whether the residuals of its "
           "groups are those of the step now: False with on_nonfinite='skip'.\n\n"
           "Raises:\n    NonFiniteGradient: naming the group; nothing was committed on any rank.")
      .def("abandon", &Self::abandon, "Drops the step in progress, on all ranks.")
      .def("step", &Self::step, py::arg("group"), "Committed steps of a group.")
      .def("residuals", &Self::residuals, py::arg("group"),
           "Copies of the committed residuals of a group's slices, by rank; None without feedback.")
      .def("state", &Self::state, py::arg("group"),
           "What a checkpoint needs of a group's slices, by rank: their identity ('spec', 'numel', "
           "'dtype', 'seed', 'rank', 'shapes'), 'step', 'learned', and copies of 'residual' (None "
           "without feedback) and 'velocity'.")
      .def("load", &Self::load, py::arg("group"), py::arg("state"),
           "Takes over 'step', 'learned', 'residual' and 'velocity' of what state() returned.\n\n"
           "Raises:\n    InvalidArgument: they are not of this group; nothing has changed.");
}

}  // namespace gradwire::bindings
