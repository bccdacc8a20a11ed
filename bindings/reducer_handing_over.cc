// The Reducer for Python: gradients of several passes, of none, or of a bucket at once; results as
// payloads.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>

#include "gradwire/bindings/payload_groups.h"
#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/python_calls.h"
#include "gradwire/bindings/reducer.h"

namespace gradwire::bindings {
namespace {

void accumulate(BoundReducer& self, ParamId p, py::handle values) {
  const auto [dtype, numel] = self.run([&](Reducer& reducer) {
    return std::pair(reducer.plan().dtype, parameter_of(reducer.plan(), p).numel());
  });
  const Place place{self.device(), self.on_gpu() ? self.stream().native_handle() : nullptr};
  const Array array = Array::input(values, {"values", dtype, numel}, place);
  self.run([&](Reducer& reducer) { reducer.accumulate(p, array.view()); });
}

void bucket_ready(BoundReducer& self, BucketId bucket, py::handle gradient) {
  const auto [dtype, numel] = self.run([&](Reducer& reducer) {
    const auto& buckets = reducer.plan().buckets;
    check(bucket < buckets.size(), "bucket: is ", bucket, ", must be below ", buckets.size());
    return std::pair(reducer.plan().dtype, buckets[bucket].numel);
  });
  // The reducer writes there until the step has ended, whatever becomes of the caller's name for
  // it.
  const auto array = keep(Array::output(gradient, {"gradient", dtype, numel}));
  self.run_at_once([&](Reducer& reducer) {
    reducer.bucket_ready(bucket, array->writable_view());
    self.hold(array);
  });
}

// A scope of accumulation as an object to be used by `with`.
class NoSyncScope {
 public:
  explicit NoSyncScope(py::object reducer) : reducer_(std::move(reducer)) {}

  void enter() {
    check(!scope_, "no_sync: this scope has been entered already, expected once at a time");
    reducer_.cast<BoundReducer&>().run([&](Reducer& reducer) { scope_.emplace(reducer); });
  }
  void leave() {
    reducer_.cast<BoundReducer&>().run([&](Reducer&) { scope_.reset(); });
  }

 private:
  py::object reducer_;
  std::optional<Reducer::NoSync> scope_;  // ends before what it belongs to
};

std::vector<PayloadGroup> take_payloads(BoundReducer& self, BucketId bucket) {
  return self.run([&](Reducer& reducer) {
    std::vector<PayloadGroup> groups;
    for (const GroupPayloads& group : reducer.take_payloads(bucket)) {
      PayloadGroup& copy = groups.emplace_back();
      copy.spec = to_string(group.group->spec);
      copy.offset = group.group->offset;
      copy.numel = group.group->numel;
      copy.segments = group.group->segments;
      copy.seed = reducer.plan().seed;
      copy.scale = group.result.scale;
      for (const ConstPayload part : group.result.parts) {
        const ConstPayload used = part.first(read_header(part).bytes);
        copy.copies.emplace_back(used.begin(), used.end());
      }
    }
    return groups;
  });
}

std::vector<ParamId> parameters_of(const PayloadGroup& group) {
  std::vector<ParamId> parameters;
  for (const Segment& segment : group.segments) {
    parameters.push_back(segment.parameter);
  }
  return parameters;
}

std::vector<std::vector<size_t>> shapes_of(const PayloadGroup& group) {
  std::vector<std::vector<size_t>> shapes;
  for (const Segment& segment : group.segments) {
    const bool matrix = segment.rows > 1;
    shapes.push_back(matrix ? std::vector{segment.rows, segment.numel / segment.rows}
                            : std::vector{segment.numel});
  }
  return shapes;
}

py::typing::List<py::object> arrays_of(const py::object& self) {
  const auto& group = self.cast<const PayloadGroup&>();
  py::typing::List<py::object> list;
  for (const std::vector<std::byte>& copy : group.copies) {
    py::array_t<uint8_t> array(static_cast<py::ssize_t>(copy.size()),
                               reinterpret_cast<const uint8_t*>(copy.data()), self);
    array.attr("setflags")(py::arg("write") = false);
    list.append(array);
  }
  for (const py::object& array : group.arrays) {
    list.append(array);
  }
  return list;
}

void bind_payloads(py::module_& module, ReducerClass& type) {
  py::class_<PayloadGroup>(
      module, "GroupPayloads",
      "The mean of one group of a bucket as payloads, read-only: "
      "Compressor(spec, numel, shapes=shapes, seed=seed).decompress(payloads, "
      "scale) gives it. Made by Reducer.take_payloads(), or of payloads that came another way.")
      .def(
          py::init(&payload_group), py::arg("spec"), py::arg("parameters"), py::arg("shapes"),
          py::arg("payloads"), py::arg("scale") = 1.0F, py::arg("seed") = 0,
          "Args:\n    spec: of the compressor that made the payloads.\n"
          "    parameters: places among an optimizer's, of those that lie one after another in the "
          "group.\n    shapes: theirs, as Compressor(shapes=...) takes them.\n"
          "    payloads: uint8 arrays in CPU memory, or on the GPU where the parameters are: of "
          "every rank, or slices that tile the group, to be added in this order. Kept as they are, "
          "and read by steps.\n"
          "    scale: the mean is this times the payloads' sum.\n"
          "    seed: of what the compressor draws.\n\n"
          "Raises:\n    InvalidArgument: a bad spec or shape, no payloads.")
      .def_readonly("spec", &PayloadGroup::spec, "Of the group's compressor.")
      .def_readonly("offset", &PayloadGroup::offset, "The group's first element in its bucket.")
      .def_readonly("numel", &PayloadGroup::numel, "Elements of the group.")
      .def_property_readonly("parameters", &parameters_of,
                             "Ids of its parameters, one after another from its first element on.")
      .def_readonly("seed", &PayloadGroup::seed, "The plan's, of what compressors draw.")
      .def_property_readonly(
          "shapes", &shapes_of,
          "Of the parameters, as Compressor(shapes=...) takes them: rows and columns of "
          "a matrix, else the number of elements.")
      .def_readonly("scale", &PayloadGroup::scale, "The mean is this times the payloads' sum.")
      .def_property_readonly(
          "payloads", &arrays_of,
          "uint8 arrays, to be read only: of every rank, or slices that tile the "
          "group, to be added in this order.");
  type.def(
          "deliver",
          [](BoundReducer& self, BucketId bucket, const std::string& as) {
            const auto delivery = one_of<Delivery>(
                "delivery", as, {{"mean", Delivery::kMean}, {"payloads", Delivery::kPayloads}});
            self.run([&](Reducer& reducer) { reducer.deliver(bucket, delivery); });
          },
          py::arg("bucket"), py::arg("delivery"),
          "How a bucket's result is handed on from the next step on, on this rank alone: 'mean', "
          "written over its gradients, or 'payloads', for take_payloads(). 'mean' again after "
          "set_plan().\n\nRaises:\n    InvalidArgument: a step has begun, or the bucket's exchange "
          "leaves no payloads of the whole.")
      .def("take_payloads", &take_payloads, py::arg("bucket"),
           "The result of a bucket that delivers payloads, after a wait() that committed: a list "
           "of GroupPayloads, copies of the same bytes on every rank. gradient() of its parameters "
           "then holds no mean.\n\nRaises:\n    InvalidArgument: there is no such result.");
}

}  // namespace

void bind_handing_over(py::module_& module, ReducerClass& type) {
  py::class_<NoSyncScope>(module, "NoSync", "A scope made by Reducer.no_sync(), for `with`.")
      .def("__enter__", &NoSyncScope::enter)
      .def(
          "__exit__",
          [](NoSyncScope& self, const py::object&, const py::object&, const py::object&) {
            self.leave();
          },
          py::arg("type"), py::arg("error"), py::arg("traceback"));
  type.def("accumulate", &accumulate, py::arg("parameter"), py::arg("values"),
           "Adds `values` (as many elements as the parameter, in the plan's dtype) to "
           "gradient(parameter): the first call of a step replaces what is there. grad_ready() "
           "follows the last. On a GPU values lie there, and stay until the stream has passed. The mean is that of the ranks' sums: scale the loss by 1 / passes "
           "for an average.\n\nRaises:\n    InvalidArgument: another size or dtype, or the "
           "parameter is already ready; nothing was added.")
      .def(
          "no_sync", [](const py::object& self) { return std::make_unique<NoSyncScope>(self); },
          "For `with`: inside, grad_ready() and bucket_ready() only note that backward has been "
          "there, nothing leaves, and wait() is refused. For backward passes that add to "
          "gradient() themselves, of which the last comes after the scope.\n\n"
          "Raises:\n    InvalidArgument: on entry, when gradients of the step are ready already.")
      .def(
          "mark_unused",
          [](BoundReducer& self, ParamId p) {
            self.run([p](Reducer& reducer) { reducer.mark_unused(p); });
          },
          py::arg("parameter"),
          "In place of grad_ready() where this rank's backward did not reach the parameter: its "
          "gradient is zero, or what was accumulated in the step.")
      .def(
          "unused_everywhere",
          [](BoundReducer& self, ParamId p) {
            return self.run([p](Reducer& reducer) { return reducer.unused_everywhere(p); });
          },
          py::arg("parameter"),
          "Whether no rank reached the parameter in the last step that wait() concluded, so that "
          "an optimizer may leave it alone. On a GPU it waits.\n\nRaises:\n    InvalidArgument: the reducer was not "
          "made with unused='zero', or there is no such parameter.")
      .def("bucket_ready", &bucket_ready, py::arg("bucket"), py::arg("gradient"),
           "Hands over a whole bucket at once: an array of the plan's dtype laid out as "
           "plan.layout[bucket] says, where the mean is written. It is kept until wait() has "
           "returned. Not together with grad_ready() in one bucket and step.\n\n"
           "Raises:\n    InvalidArgument: another size or dtype, read-only, or parameters of the "
           "bucket are ready already.");
  bind_payloads(module, type);
}

}  // namespace gradwire::bindings
