// The Reducer for Python: what happens between steps.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>

#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/python_files.h"
#include "gradwire/bindings/reducer.h"

namespace gradwire::bindings {
namespace {

using Fields = py::typing::Dict<py::str, py::object>;

void set_plan(BoundReducer& self, const Plan& plan) {
  self.run([&](Reducer& reducer) {
    self.check_no_views("set_plan");
    reducer.set_plan(plan);
  });
}

void replan(BoundReducer& self, const std::string& spec, const std::string& exchange,
            const std::string& exempt_1d, std::optional<uint64_t> seed,
            std::optional<int> ranks_per_node, const std::optional<LinkCosts>& link,
            size_t most_bytes, const std::string& order, const std::vector<RuleFields>& rules) {
  ReplanOptions options;
  options.plan = options_of(
      {.spec = spec, .exchange = exchange, .exempt_1d = exempt_1d, .rules = rules});
  options.link = link.value_or(options.link);
  options.most_bytes = most_bytes;
  options.order = one_of<LeavingOrder>(
      "order", order, {{"ready", LeavingOrder::kReady}, {"needed", LeavingOrder::kNeeded}});
  self.run([&](Reducer& reducer) {
    self.check_no_views("replan");
    options.plan.dtype = reducer.plan().dtype;
    options.plan.seed = seed.value_or(reducer.plan().seed);
    options.plan.residual_memory = reducer.plan().residual_memory;
    options.plan.ranks_per_node = ranks_per_node.value_or(reducer.plan().ranks_per_node);
    reducer.replan(options);
  });
}

py::typing::List<Fields> gradient_timings(BoundReducer& self) {
  const auto timings = self.run([](Reducer& reducer) { return reducer.gradient_timings(); });
  py::typing::List<Fields> list;
  for (const GradientTiming& timing : timings) {
    py::dict fields;
    fields["parameter"] = timing.parameter;
    fields["ready_s"] = timing.ready_s;
    fields["bytes"] = timing.bytes;
    list.append(fields);
  }
  return list;
}

void save(BoundReducer& self, const py::object& file) {
  const auto out = write_to(file);
  self.run([&](Reducer& reducer) { reducer.save(*out); });
}

// `open` is called in the thread of the call, which is inside the reducer meanwhile.
void load(BoundReducer& self, const py::typing::Callable<py::object(int)>& open) {
  self.run([&](Reducer& reducer) {
    reducer.load([&](int rank) -> std::unique_ptr<std::istream> {
      const py::gil_scoped_acquire gil;
      const Callback callback;
      py::object file = open(rank);
      return file.is_none() ? nullptr : read_from(std::move(file));
    });
  });
}

Reducer::Rebuilt rebuild(BoundReducer& self, BoundTransport& survivors) {
  std::shared_ptr<Transport> next = survivors.get();
  std::vector<std::shared_ptr<Array>> done;
  return self.run([&](Reducer& reducer) {
    const Reducer::Rebuilt rebuilt = reducer.rebuild(*next);
    self.stand_on(std::move(next));  // what it stood on may end here, without the GIL
    done = self.let_go();
    return rebuilt;
  });
}

std::optional<int> source(const Reducer::Rebuilt& rebuilt) {
  return rebuilt.source < 0 ? std::nullopt : std::optional(rebuilt.source);
}

void bind_plans(ReducerClass& type) {
  type.def(
          "set_plan", &set_plan, py::arg("plan"),
          "Changes the plan between steps: a new epoch, with residuals carried over by parameter "
          "(into the next step's gradient where the new plan keeps none). Collective, as the "
          "constructor is.\n\nRaises:\n    InvalidArgument: parameters or dtype differ, a step has "
          "begun, plans differ between ranks, or, on the rank where it is so, arrays of "
          "gradient() are in use, whose memory would end; the old plan stays.\n"
          "    TransportError: the group is finished.")
      .def("replan", &replan, py::arg("spec"), py::kw_only(), py::arg("exchange") = "auto",
           py::arg("exempt_1d") = "auto", py::arg("seed") = py::none(),
           py::arg("ranks_per_node") = py::none(), py::arg("link") = py::none(),
           py::arg("most_bytes") = ReplanOptions{}.most_bytes, py::arg("order") = "ready",
           py::arg("rules") = std::vector<RuleFields>{},
           "Makes a plan from what was measured since the last one, and sets it: rank 0 merges "
           "gradients to buckets by when they appeared and what exchanges cost, all ranks follow. "
           "Collective, between steps.\n\n"
           "Args:\n    spec, exchange, exempt_1d, rules: as for make_plan(); with exchange 'auto' "
           "and a "
           "link, each bucket gets the cheapest exchange that keeps the rank-order sum.\n"
           "    seed, ranks_per_node: by default those of the plan, whose residual_memory stays.\n"
           "    link: from probe_link(); without one start-ups and bytes cost nothing.\n"
           "    most_bytes: of dense gradient in a bucket.\n"
           "    order: of buckets that wait: 'ready' as gradients appear, or 'needed' as the next "
           "forward pass needs them.\n\n"
           "Raises:\n    InvalidArgument: before the first step of a plan, and as set_plan().")
      .def("gradient_timings", &gradient_timings,
           "When gradients became ready on this rank since the last plan, load() or rebuild(): "
           "dicts of 'parameter', 'ready_s' (mean seconds since the first one of a step) and "
           "'bytes'. Without those that were never reached.");
}

void bind_lasting(py::module_& module, ReducerClass& type) {
  py::class_<Reducer::Rebuilt>(module, "Rebuilt", "Where a rebuilt group goes on; read-only.")
      .def_readonly("committed_steps", &Reducer::Rebuilt::committed_steps, "The same on all ranks.")
      .def_property_readonly(
          "source", &source,
          "The rank of the new group that gives parameters and optimizer state to those behind; "
          "None when no rank is.")
      .def_readonly("behind", &Reducer::Rebuilt::behind,
                    "Whether this rank must be given them before the next step.")
      .def("__repr__", [](const Reducer::Rebuilt& rebuilt) {
        const auto from = source(rebuilt);
        return concat("<gradwire.Rebuilt, ", rebuilt.committed_steps, " committed steps, source ",
                      from ? concat(*from) : "None", rebuilt.behind ? ", behind>" : ">");
      });
  type.def("save", &save, py::arg("file"),
           "Writes what this rank keeps between steps to an object with write(bytes) -> int, in "
           "the format of comm/CHECKPOINT_FORMAT.md. Parameters and optimizer state are the "
           "caller's. Between steps, or after a TransportError; what write() raises is raised.\n\n"
           "Raises:\n    InvalidArgument: a step has begun, or write() does not say how many bytes "
           "it took.")
      .def("load", &load, py::arg("open"),
           "Collective: continues where save() was called, bit for bit; with another world size "
           "rank j takes over the residuals of the old ranks i with i % world_size == j, times new "
           "/ old world size.\n\n"
           "Args:\n    open: open(rank) returns an object with read(most_bytes) -> bytes of what "
           "that rank saved, or None when there was no such rank. It is called in this thread, for "
           "the ranks needed here and once each, and may not call the reducer.\n\n"
           "Raises:\n    InvalidArgument: on every rank, when one finds its checkpoint missing, "
           "damaged, of other parameters or of another step than rank 0's; nothing has changed "
           "then. What open() or read() raise is raised on their rank.")
      .def("rebuild", &rebuild, py::arg("survivors"),
           "After a TransportError: goes on with `survivors`, the group Transport.rebuild() made "
           "of the ranks that are left, which all call this. The step in progress is dropped, "
           "arrays of gradient() stay valid, residuals are scaled by new / old world size. Ranks "
           "that are behind must be given parameters and optimizer state by `source`.\n\n"
           "Raises:\n    TransportError: another rank failed meanwhile; the reducer is as before, "
           "and rebuild may be called with the next group.\n"
           "    InvalidArgument: no rank that is left has the parameters of the newest step: load "
           "a checkpoint.");
}

}  // namespace

void bind_between_steps(py::module_& module, ReducerClass& type) {
  bind_plans(type);
  bind_lasting(module, type);
}

}  // namespace gradwire::bindings
