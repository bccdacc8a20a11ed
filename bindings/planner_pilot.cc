// The planner's pilot for Python: what has been measured goes in, what to run next comes out.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/planner.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/comm/probe.h"
#include "gradwire/planner/pilot.h"

namespace gradwire::bindings {

namespace py = pybind11;

namespace {

using planner::Decision;
using planner::GuardNorms;
using planner::GuardWindow;
using planner::PilotCosts;
using planner::PilotOptions;
using planner::PilotWindow;
using Dict = py::typing::Dict<py::str, py::object>;
using CodecTuple = std::tuple<double, double, double, double>;
using NormsTuple = std::tuple<double, double, double, double, double>;

constexpr double kBeyondAnyLink = 1e13;  // bytes per second

// A Pilot and the parameters it plans for.
struct BoundPilot {
  std::vector<ParamInfo> parameters;
  planner::Pilot pilot;
};

BoundPilot make(const NamedShapes& shapes, int world_size, const std::vector<std::string>& specs,
                int streams, const std::string& dtype, const std::string& exempt_1d, uint64_t seed,
                int ranks_per_node, const std::vector<RuleFields>& rules, size_t bucket_bytes,
                size_t window_steps, size_t tuning_turns, const std::string& device,
                uint64_t age, const std::string& updates) {
  std::vector<ParamInfo> parameters = parameters_of(shapes);
  PilotOptions options;
  options.specs = specs;
  options.streams = {streams};
  options.plan = options_of({.spec = "none",
                             .exchange = "auto",
                             .exempt_1d = exempt_1d,
                             .rules = rules,
                             .seed = seed,
                             .ranks_per_node = ranks_per_node});
  options.plan.dtype = parse_dtype_name(dtype);
  options.plan.bucket_bytes = bucket_bytes;
  options.window_steps = window_steps;
  options.tuning_turns = tuning_turns;
  options.age = age;
  options.updates = planner::parse_updates(updates);
  check(device == "cpu" || device == "cuda", "device: is '", device, "', must be cpu or cuda");
  options.device = device == "cpu" ? DeviceType::kCpu : DeviceType::kCuda;
  planner::Pilot pilot(parameters, world_size, options);
  return {std::move(parameters), std::move(pilot)};
}

double bytes_per_s_of(const LinkCosts& link) {
  return link.beta_s_per_byte > 0 ? 1 / link.beta_s_per_byte : kBeyondAnyLink;
}

PilotCosts costs_of(std::vector<double> ready_s, const LinkCosts& link,
                    const std::map<std::string, CodecTuple>& codecs) {
  PilotCosts costs;
  costs.ready_s = std::move(ready_s);
  costs.alpha_s = link.alpha_s;
  costs.bytes_per_s = bytes_per_s_of(link);
  for (const auto& [spec, numbers] : codecs) {
    const auto [encode_floor, encode_rate, decode_floor, decode_rate] = numbers;
    costs.codecs[to_string(parse_spec(spec))] = {encode_floor, encode_rate, decode_floor,
                                                 decode_rate};
  }
  return costs;
}

bool set_costs(BoundPilot& self, std::vector<double> ready_s, const LinkCosts& link,
               const std::map<std::string, CodecTuple>& codecs) {
  const PilotCosts costs = costs_of(std::move(ready_s), link, codecs);
  const py::gil_scoped_release release;
  return self.pilot.set_costs(costs);
}

bool begin(BoundPilot& self, const LinkCosts& link,
           const std::map<std::string, CodecTuple>& codecs) {
  const PilotCosts costs = costs_of({}, link, codecs);
  const py::gil_scoped_release release;
  return self.pilot.begin(costs);
}

bool end_window(BoundPilot& self, std::vector<double> step_s, std::vector<double> exchange_s,
                std::vector<double> exposed_s, std::optional<double> loss, size_t skipped,
                const std::vector<NormsTuple>& norms) {
  PilotWindow window;
  window.step_s = std::move(step_s);
  window.exchange_s = std::move(exchange_s);
  window.exposed_s = std::move(exposed_s);
  window.loss = loss.value_or(GuardWindow::kUnknown);
  window.skipped = skipped;
  for (const auto& [to_send, sent, residual, gradient, mean] : norms) {
    window.norms.push_back({to_send, sent, residual, gradient, mean});
  }
  const py::gil_scoped_release release;
  return self.pilot.end_window(window);
}

py::typing::List<Dict> log_of(const BoundPilot& self) {
  py::typing::List<Dict> rows;
  for (const Decision& decision : self.pilot.log()) {
    Dict row;
    row["step"] = decision.step;
    row["what"] = decision.what;
    row["from"] = decision.from;
    row["to"] = decision.to;
    row["reason"] = decision.reason;
    row["numbers"] = py::cast(decision.numbers);
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_planner_pilot(py::module_& module) {
  const PilotOptions usual;
  py::class_<BoundPilot>(
      module, "Pilot",
      "Decides what gradients travel as: measures steps without compression, predicts, times the "
      "best few on steps of the job, takes the least lossy of the fastest and keeps watching. It "
      "measures nothing itself; fed the same numbers, all ranks decide alike.\n\n"
      "Run `plan` for `window_steps` steps; hand what they have shown to end_window(); where "
      "`wants_costs`, call set_costs(). After either, where it returned True, run the new plan.")
      .def(py::init(&make), py::arg("parameters"), py::arg("world_size"), py::kw_only(),
           py::arg("specs") = usual.specs, py::arg("streams") = 1, py::arg("dtype") = "float32",
           py::arg("exempt_1d") = "auto", py::arg("seed") = 0, py::arg("ranks_per_node") = 1,
           py::arg("rules") = std::vector<RuleFields>(),
           py::arg("bucket_bytes") = PlanOptions{}.bucket_bytes,
           py::arg("window_steps") = usual.window_steps,
           py::arg("tuning_turns") = usual.tuning_turns, py::arg("device") = "cpu",
           py::arg("age") = usual.age,
           py::arg("updates") = std::string(to_string(usual.updates)),
           "Args:\n    parameters, dtype, exempt_1d, seed, ranks_per_node, rules, bucket_bytes: as "
           "of make_plan(); the last one's are those of the first, dense window.\n"
           "    specs: to choose from, besides 'none' and 'bf16'.\n"
           "    streams: of the Reducer.\n"
           "    window_steps: that are judged together once the choice is made.\n"
           "    tuning_turns: windows that try sizes of buckets, at most; where there are any, several "
           "buckets must be predicted to gain a tenth of the step. 0: none.\n"
           "    device: of the gradients, 'cpu' or 'cuda'.\n"
           "    age: steps that the job has run before: in a young one what sends a part of the "
           "elements must be the faster for it.\n"
           "    updates: of the optimizer, 'linear' of SGD that clips nothing, 'scaled' of all that "
           "divide by the size of gradients, where what comes late counts for more.\n\n"
           "Raises:\n    InvalidArgument: an option out of its range; a spec that is none.")
      .def_property_readonly(
          "phase",
          [](const BoundPilot& self) { return std::string(to_string(self.pilot.phase())); },
          "'measure', 'time', 'tune' or 'cruise'.")
      .def_property_readonly(
          "plan",
          [](const BoundPilot& self) {
            return gradwire::make_plan(self.parameters, self.pilot.plan().plan);
          },
          "What to run now, for Reducer.set_plan().")
      .def_property_readonly(
          "name", [](const BoundPilot& self) { return self.pilot.plan().name; },
          "Of that plan, for people.")
      .def_property_readonly(
          "spec", [](const BoundPilot& self) { return self.pilot.plan().spec; },
          "Of that plan: the lossiest of its buckets; 'none': it does not compress.")
      .def_property_readonly(
          "window_steps", [](const BoundPilot& self) { return self.pilot.window_steps(); },
          "How many steps end_window() wants.")
      .def_property_readonly(
          "wants_norms", [](const BoundPilot& self) { return self.pilot.wants_norms(); },
          "Whether a step of this window shall be measured for norms.")
      .def_property_readonly(
          "wants_costs", [](const BoundPilot& self) { return self.pilot.wants_costs(); },
          "Whether set_costs() shall be called before the next step.")
      .def_property(
          "updates",
          [](const BoundPilot& self) { return std::string(to_string(self.pilot.updates())); },
          [](BoundPilot& self, const std::string& updates) {
            self.pilot.set_updates(planner::parse_updates(updates));
          },
          "What the optimizer makes of a gradient that comes late, 'linear' or 'scaled'; may be set "
          "at any time, on all ranks behind the same step.")
      .def_property_readonly(
          "specs",
          [](const BoundPilot& self) {
            const auto specs = self.pilot.specs();
            return std::vector<std::string>(specs.begin(), specs.end());
          },
          "Canonical texts of the compressors that set_costs() must price.")
      .def("end_window", &end_window, py::arg("step_s"), py::kw_only(),
           py::arg("exchange_s") = std::vector<double>(),
           py::arg("exposed_s") = std::vector<double>(), py::arg("loss") = py::none(),
           py::arg("skipped") = 0, py::arg("norms") = std::vector<NormsTuple>(),
           "Returns whether the plan has changed. The same numbers on all ranks.\n\n"
           "Args:\n    step_s: seconds of each step since the last window, of the slowest rank.\n"
           "    exchange_s: of each, seconds inside the transport; empty: not known.\n"
           "    exposed_s: of each, seconds that its end waited for exchanges; empty: not known.\n"
           "    loss: mean over steps and ranks; None: not known.\n"
           "    skipped: steps left out for gradients that were not finite.\n"
           "    norms: by parameter, squared and summed over ranks, (gradient plus residual before, "
           "what was sent of it, residual after, own gradients, mean gradient); empty: not "
           "measured.\n\n"
           "Raises:\n    InvalidArgument: another number of steps than window_steps, times that are "
           "none, or costs are wanted; nothing has changed.")
      .def("set_costs", &set_costs, py::arg("ready_s"), py::arg("link"), py::arg("codecs"),
           "Returns whether the plan has changed. The same numbers on all ranks.\n\n"
           "Args:\n    ready_s: when backward has made each parameter's gradient, by id, in "
           "seconds.\n    link: of probe_link().\n"
           "    codecs: of planner.measure_codecs(), for each of `specs`.\n\n"
           "Raises:\n    InvalidArgument: a spec without a price, or costs are not wanted; nothing "
           "has changed.")
      .def(
          "begins_slowly",
          [](const BoundPilot& self, const LinkCosts& link) {
            return self.pilot.begins_slowly(link.alpha_s, bytes_per_s_of(link));
          },
          py::arg("link"),
          "Whether dense exchanges take 50 ms and more on such a link, of probe_link(): then "
          "compressors are worth pricing for begin().")
      .def("begin", &begin, py::arg("link"), py::arg("codecs"),
           "Optional, before the first window: where a dense exchange is predicted to take three "
           "times as long as the fastest, the first window runs with what is fast. Returns whether "
           "the plan has changed. The same numbers on all ranks, as of set_costs().\n\n"
           "Raises:\n    InvalidArgument: a spec without a price, or a window has ended; nothing "
           "has changed.")
      .def("log", &log_of,
           "Decisions, oldest first, the last 1000: dicts of 'step', 'what', 'from', 'to', "
           "'reason' and 'numbers'.")
      .def_property_readonly(
          "steps", [](const BoundPilot& self) { return self.pilot.steps(); },
          "Steps of all windows.")
      .def_property_readonly(
          "probing_steps", [](const BoundPilot& self) { return self.pilot.probing_steps(); },
          "Of them, before the choice was made or to make it anew.");
}

}  // namespace gradwire::bindings
