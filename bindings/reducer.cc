// The Reducer for Python: a step, from gradients to means.

#include "gradwire/bindings/reducer.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <string>

#include "gradwire/bindings/device_array.h"
#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/plan.h"

namespace gradwire::bindings {
namespace {

using Fields = py::typing::Dict<py::str, py::object>;

std::unique_ptr<BoundReducer> make(const Plan& plan, BoundTransport& transport,
                                   const std::string& on_nonfinite, const std::string& unused,
                                   int threads, size_t trace_steps, int streams,
                                   const std::string& launch_order, const std::string& left_out,
                                   std::optional<uintptr_t> stream) {
  ReducerOptions options;
  options.on_nonfinite = one_of<OnNonFinite>(
      "on_nonfinite", on_nonfinite, {{"error", OnNonFinite::kError}, {"skip", OnNonFinite::kSkip}});
  options.unused = one_of<UnusedParameters>(
      "unused", unused, {{"error", UnusedParameters::kError}, {"zero", UnusedParameters::kZero}});
  options.threads = threads;
  options.trace_steps = trace_steps;
  options.streams = streams;
  options.launch_order = one_of<LaunchOrder>(
      "launch_order", launch_order, {{"plan", LaunchOrder::kPlan}, {"agreed", LaunchOrder::kAgreed}});
  options.left_out = one_of<MeansLeftOut>(
      "left_out", left_out, {{"zero", MeansLeftOut::kZero}, {"nan", MeansLeftOut::kNaN}});
  return std::make_unique<BoundReducer>(plan, transport, options, stream);
}

// What an array of gradient() stands on.
struct Viewed {
  py::object reducer;
  BoundReducer::View view;
};

py::object gradient(const py::object& self, ParamId p) {
  auto& bound = self.cast<BoundReducer&>();
  auto viewed = std::make_unique<Viewed>(Viewed{self, bound.view()});
  std::vector<size_t> shape;
  const Gradient view = bound.run([&](Reducer& reducer) {
    shape = parameter_of(reducer.plan(), p).shape;
    return reducer.gradient(p);
  });
  py::capsule owner(viewed.release(), [](void* held) { delete static_cast<Viewed*>(held); });
  if (bound.on_gpu()) {
    return py::cast(DeviceArray(std::string(to_string(view.dtype)), std::move(shape),
                                {bound.device(), bound.stream().native_handle()}, view.data,
                                std::move(owner)));
  }
  return array_over(view, shape, owner);
}

std::optional<bool> wait(BoundReducer& self) {
  std::vector<std::shared_ptr<Array>> done;
  return self.run([&](Reducer& reducer) -> std::optional<bool> {
    try {
      const StepOutcome outcome = reducer.wait();
      done = self.let_go();
      return outcome == StepOutcome::kEnqueued ? std::nullopt
                                               : std::optional(outcome == StepOutcome::kCommitted);
    } catch (const NonFiniteGradient&) {
      done = self.let_go();
      throw;
    } catch (const TransportError&) {
      done = self.let_go();
      throw;
    }  // by any other the step has not ended
  });
}

std::optional<py::array> residual(BoundReducer& self, ParamId p) {
  std::vector<float> copy;
  std::vector<size_t> shape;
  self.run([&](Reducer& reducer) {
    shape = parameter_of(reducer.plan(), p).shape;
    const ConstResidual committed = reducer.residual(p);
    copy.resize(committed.size());
    const bool on_gpu =
        self.on_gpu() && reducer.plan().residual_memory == ResidualMemory::kDevice;
    if (on_gpu) {
      copy_bytes(std::as_writable_bytes(std::span(copy)), {}, std::as_bytes(committed),
                 self.device(), self.stream());
      self.stream().wait();
    } else {
      std::ranges::copy(committed, copy.begin());
    }
  });
  if (copy.empty()) {
    return std::nullopt;
  }
  const py::array flat = copy_of({copy.data(), copy.size(), DType::kFloat32});
  return array_over({const_cast<void*>(flat.data()), copy.size(), DType::kFloat32, {}}, shape,
                    flat);
}

py::typing::List<Fields> trace(BoundReducer& self) {
  const std::vector<StepTrace> steps =
      self.run([](Reducer& reducer) { return reducer.trace().steps(); });
  py::typing::List<Fields> list;
  for (const StepTrace& step : steps) {
    py::dict fields;
    fields["step"] = step.step;
    fields["committed"] = step.committed;
    fields["exposed_us"] = step.exposed_us();
    fields["codec_us"] = step.codec_us();
    fields["transfer_us"] = step.transfer_us();
    fields["bytes_sent"] = step.bytes_sent();
    fields["bytes_received"] = step.bytes_received();
    fields["buckets"] = step.buckets.size();
    fields["rounds"] = step.agreement.rounds;
    fields["round_bytes_sent"] = step.agreement.bytes_sent;
    list.append(fields);
  }
  return list;
}

Fields last_step(BoundReducer& self) {
  const std::optional<StepTrace> step = self.run([](Reducer& reducer) -> std::optional<StepTrace> {
    return reducer.trace().steps().empty() ? std::nullopt : std::optional(reducer.trace().last());
  });
  Fields fields;
  if (!step.has_value()) {
    return fields;
  }
  py::list buckets;
  for (const BucketTrace& bucket : step->buckets) {
    py::dict times;
    times["begin_us"] = bucket.begin_us;
    times["compressed_us"] = bucket.compressed_us;
    times["exchange_us"] = bucket.exchange_us;
    times["end_us"] = bucket.end_us;
    times["codec_us"] = bucket.codec_us;
    times["stream"] = bucket.stream;
    buckets.append(times);
  }
  fields["step"] = step->step;
  fields["wait_begin_us"] = step->wait_begin_us;
  fields["wait_end_us"] = step->wait_end_us;
  fields["buckets"] = buckets;
  return fields;
}

void bind_step(ReducerClass& type) {
  type.def("gradient", &gradient, py::arg("parameter"),
           "Where a parameter's gradient belongs, in the parameter's shape and the plan's dtype, "
           "without a copy: write it here; after wait() the mean of all ranks is here. The array "
           "is good until set_plan() or replan(), which are refused while it is in use. On a GPU a "
           "DeviceArray, written and read on the reducer's stream.")
      .def(
          "grad_ready",
          [](BoundReducer& self, ParamId p) {
            self.run_at_once([p](Reducer& reducer) { reducer.grad_ready(p); });
          },
          py::arg("parameter"),
          "Says that gradient(parameter) is complete for this step. Once per parameter and "
          "step.\n\n"
          "Raises:\n    InvalidArgument: an unknown parameter, or one already ready.")
      .def("wait", &wait,
           "Blocks until every bucket of the step is reduced, then commits. Returns whether it "
           "did: False for a step skipped because of non-finite gradients. On a GPU it enqueues "
           "that and returns None: synchronize() tells.\n\n"
           "Raises:\n    NonFiniteGradient: naming rank and bucket; nothing was committed on any "
           "rank.\n    InvalidArgument: naming parameters that were never ready; the step can go "
           "on.\n    TransportError: naming rank and bucket; the group is finished.")
      .def(
          "synchronize",
          [](BoundReducer& self) { self.run([](Reducer& reducer) { reducer.synchronize(); }); },
          "On a GPU: blocks until the steps so far are over, behind the same step on all ranks. On "
          "the CPU wait() has told all: does nothing.\n\n"
          "Raises:\n    NonFiniteGradient: on_nonfinite is 'error', and a step had such a "
          "gradient; none since has been committed, the next will be.\n"
          "    InvalidArgument: a step has begun.\n    TransportError: the group is finished.")
      .def("residual", &residual, py::arg("parameter"),
           "A copy of the committed residual, float32, or None without error feedback. On a GPU "
           "it waits for the steps so far.");
}

void bind_options(ReducerClass& type) {
  type.def_property_readonly(
          "device",
          [](const BoundReducer& self) {
            return self.on_gpu() ? concat("cuda:", self.device().index) : std::string("cpu");
          },
          "Where gradients and means lie: 'cpu', or 'cuda:' and the number of a GPU.")
      .def_property_readonly(
          "stream",
          [](const BoundReducer& self) {
            return self.on_gpu()
                       ? std::optional(reinterpret_cast<uintptr_t>(self.stream().native_handle()))
                       : std::nullopt;
          },
          "The stream it was made with; None on the CPU.")
      .def_property_readonly(
          "on_nonfinite",
          [](const BoundReducer& self) {
            return self.on_nonfinite() == OnNonFinite::kSkip ? "skip" : "error";
          },
          "As it was made with.")
      .def_property_readonly(
          "left_out",
          [](const BoundReducer& self) {
            return self.left_out() == MeansLeftOut::kNaN ? "nan" : "zero";
          },
          "As it was made with.");
}

void bind_facts(ReducerClass& type) {
  type.def_property_readonly(
          "committed_steps",
          [](BoundReducer& self) {
            return self.run([](Reducer& reducer) { return reducer.committed_steps(); });
          },
          "Steps that wait() committed.")
      .def_property_readonly(
          "skipped_steps",
          [](BoundReducer& self) {
            return self.run([](Reducer& reducer) { return reducer.skipped_steps(); });
          },
          "Steps left out because of non-finite gradients.")
      .def_property_readonly(
          "plan",
          [](BoundReducer& self) {
            return self.run([](Reducer& reducer) { return reducer.plan(); });
          },
          "A copy of the plan.")
      .def("trace", &trace,
           "The last steps, oldest first, as dicts: 'step', 'committed', 'exposed_us', 'codec_us', "
           "'transfer_us' (microseconds), 'bytes_sent', 'bytes_received', 'buckets', and of an agreed "
           "launch order 'rounds' and, of the bytes sent, 'round_bytes_sent'.")
      .def("last_step", &last_step,
           "When the last step did what, in microseconds of the reducer's own clock: 'step', "
           "'wait_begin_us', 'wait_end_us' and 'buckets', for each a dict of 'begin_us' and "
           "'compressed_us' (its compression), 'exchange_us' and 'end_us' (its exchange), "
           "'codec_us' (of both, coding) and 'stream'. Empty before the first wait().")
      .def(
          "chrome_trace",
          [](BoundReducer& self) {
            return self.run(
                [&self](Reducer& reducer) { return reducer.trace().to_chrome_json(self.rank()); });
          },
          "The same as Chrome/Perfetto JSON, a track per activity, the rank as process.");
}

}  // namespace

void bind_reducer(py::module_& module) {
  ReducerClass type(
      module, "Reducer",
      "The pipeline of a step: gradients become ready during backward, buckets leave in one "
      "order on threads of their own, and wait() hands back the mean of all ranks.\n\n"
      "It keeps the transport, which nothing else may use meanwhile; arrays of gradient() keep it. "
      "One thread at a time: calls of others wait. A callback of a call may not call the reducer "
      "(InvalidArgument).",
      py::release_gil_before_calling_cpp_dtor());
  type.def(py::init(&make), py::arg("plan"), py::arg("transport"), py::kw_only(),
           py::arg("on_nonfinite") = "error", py::arg("unused") = "error", py::arg("threads") = 1,
           py::arg("trace_steps") = 64, py::arg("streams") = 1,
           py::arg("launch_order") = "plan", py::arg("left_out") = "zero",
           py::arg("stream") = py::none(),
           "Collective: compares the plan across ranks.\n\n"
           "Args:\n    on_nonfinite: 'error', or 'skip' for loss scalers.\n"
           "    unused: what wait() does about parameters never ready: 'error', or 'zero' takes "
           "their gradient as zero; the same on all ranks.\n"
           "    threads: of the compression loops.\n    trace_steps: steps the trace keeps.\n"
           "    streams: exchanges in flight at once, 1 to 16, the same on all ranks.\n"
           "    launch_order: buckets leave as the 'plan' has them, or as they are ready on all ranks, "
           "on which these have 'agreed' in rounds of ceil(buckets / 8) bytes a rank, for models whose "
           "gradients appear in another order from step to step; the same on all ranks.\n"
           "    left_out: what means are after a step that was left out: 'zero' or 'nan'.\n"
           "    stream: over a transport of GPU memory the cudaStream_t, as a number, on which "
           "gradients are written and means read; it outlives the reducer. Then no call of a step "
           "waits for the GPU; gradients are handed over in gradient(), by give_from() or "
           "bucket_ready_at(), means taken there or by write_means(); what docs/gpu.md says is not "
           "there is refused at its call.\n\n"
           "Raises:\n    InvalidArgument: naming the first line in which a rank's plan differs.");
  bind_step(type);
  bind_options(type);
  bind_handing_over(module, type);
  bind_memory(module, type);
  bind_between_steps(module, type);
  bind_facts(type);
}

}  // namespace gradwire::bindings
