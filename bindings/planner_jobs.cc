// The planner's questions about whole jobs for Python: breakdowns, stalls, recommendations.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/planner.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/breakdown.h"
#include "gradwire/planner/recommend.h"
#include "gradwire/planner/stalls.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;
using Dict = py::typing::Dict<py::str, py::object>;
using Rows = py::typing::List<Dict>;
using planner::Hardware;
using planner::StepDemand;

std::string text_of(std::string_view text) { return std::string(text); }

Hardware or_default(const std::optional<Hardware>& hardware) {
  return hardware.value_or(Hardware());
}

Dict row_of(const planner::StepBreakdown& step) {
  Dict row;
  row["data_s"] = step.data_s;
  row["compute_bound_s"] = step.compute_bound_s;
  row["memory_bound_s"] = step.memory_bound_s;
  row["weights_ethernet_s"] = step.weights_ethernet_s;
  row["weights_pcie_s"] = step.weights_pcie_s;
  row["weights_nvlink_s"] = step.weights_nvlink_s;
  row["total_s"] = step.total_s();
  row["communication_share"] = step.communication_share();
  row["bottleneck"] = text_of(to_string(step.bottleneck()));
  return row;
}

void bind_breakdowns(py::module_& module) {
  py::class_<Hardware>(module, "Hardware",
                       "Capacities per second of a GPU and its machine; the defaults are those of "
                       "arXiv 1910.05930.")
      .def(py::init<>(), "The defaults; set what differs.")
      .def_readwrite("flops_per_s", &Hardware::flops_per_s, "Peak FLOP/s.")
      .def_readwrite("memory_bytes_per_s", &Hardware::memory_bytes_per_s, "Of the GPU's memory.")
      .def_readwrite("ethernet_bytes_per_s", &Hardware::ethernet_bytes_per_s, "Between machines.")
      .def_readwrite("pcie_bytes_per_s", &Hardware::pcie_bytes_per_s, "Between host and GPU.")
      .def_readwrite("nvlink_bytes_per_s", &Hardware::nvlink_bytes_per_s, "Between GPUs.")
      .def_readwrite("efficiency", &Hardware::efficiency, "What of each can be had, in (0, 1].");
  py::class_<StepDemand>(module, "StepDemand", "What one GPU does and moves in a training step.")
      .def(py::init([](const std::string& name, double flops, double memory_bytes,
                       double input_bytes, double weight_bytes, double embedding_bytes,
                       double touched_bytes, int gpus_per_server) {
             return StepDemand{name,         flops,           memory_bytes,  input_bytes,
                               weight_bytes, embedding_bytes, touched_bytes, gpus_per_server};
           }),
           py::arg("name") = "step", py::kw_only(), py::arg("flops"), py::arg("memory_bytes"),
           py::arg("input_bytes") = 0.0, py::arg("weight_bytes"), py::arg("embedding_bytes") = 0.0,
           py::arg("touched_bytes") = 0.0, py::arg("gpus_per_server") = 1,
           "embedding_bytes of weight_bytes belong to embeddings, of which a step touches "
           "touched_bytes: read where embeddings are cut up.")
      .def_readonly("name", &StepDemand::name, "For messages.");
  module.def(
      "break_down",
      [](const StepDemand& step, const std::string& arrangement,
         const std::optional<Hardware>& hardware) {
        return row_of(planner::break_down(step, planner::find_arrangement(arrangement),
                                          or_default(hardware)));
      },
      py::arg("step"), py::arg("arrangement"), py::arg("hardware") = py::none(),
      "Seconds of a step by resource, nothing overlapped, as a dict. arrangement: '1w1g', '1wng', "
      "'ps', 'allreduce-local', 'allreduce-cluster', 'pearl-local', 'pearl-cluster'.");
  module.def(
      "what_if",
      [](const StepDemand& step, const std::string& arrangement, const std::string& capacity,
         const std::vector<double>& values, const std::optional<Hardware>& hardware) {
        Rows rows;
        for (const planner::WhatIf& at :
             planner::what_if(step, planner::find_arrangement(arrangement), or_default(hardware),
                              planner::find_capacity(capacity), values)) {
          Dict row;
          row["value"] = at.value;
          row["total_s"] = at.total_s;
          row["gain"] = at.gain;
          row["bottleneck"] = text_of(to_string(at.bottleneck));
          row["has_effect"] = at.has_effect;
          rows.append(row);
        }
        return rows;
      },
      py::arg("step"), py::arg("arrangement"), py::arg("capacity"), py::arg("values"),
      py::arg("hardware") = py::none(),
      "The step with 'compute', 'memory', 'ethernet', 'pcie' or 'nvlink' at each value: a dict "
      "each. has_effect is False where the step does not use it.");
  module.def(
      "moves_from",
      [](const StepDemand& step, const std::string& arrangement,
         const std::optional<Hardware>& hardware) {
        Rows rows;
        for (const planner::Move& move : planner::moves_from(
                 step, planner::find_arrangement(arrangement), or_default(hardware))) {
          Dict row;
          row["to"] = text_of(to_string(move.to));
          row["total_s"] = move.total_s;
          row["gain"] = move.gain;
          row["bottleneck"] = text_of(to_string(move.bottleneck));
          rows.append(row);
        }
        return rows;
      },
      py::arg("step"), py::arg("arrangement"), py::arg("hardware") = py::none(),
      "The step in all other arrangements, fastest first: a dict each.");
}

void bind_stalls(py::module_& module) {
  module.def(
      "find_stalls",
      [](std::optional<double> one_gpu, std::optional<double> all_gpus,
         std::optional<double> cold_data, std::optional<double> cached_data,
         std::optional<double> two_hosts) {
        const planner::Stalls stalls =
            planner::find_stalls({one_gpu, all_gpus, cold_data, cached_data, two_hosts});
        std::map<std::string, std::pair<double, double>> found;
        const auto add = [&found](const char* name, const std::optional<planner::Stall>& stall) {
          if (stall) {
            found[name] = {stall->seconds, stall->share};
          }
        };
        add("interconnect", stalls.interconnect);
        add("network", stalls.network);
        add("preparation", stalls.preparation);
        add("fetch", stalls.fetch);
        return found;
      },
      py::kw_only(), py::arg("one_gpu") = py::none(), py::arg("all_gpus") = py::none(),
      py::arg("cold_data") = py::none(), py::arg("cached_data") = py::none(),
      py::arg("two_hosts") = py::none(),
      "Stalls by name, (seconds, share) each, from seconds of the same work in runs that differ in "
      "one thing; those whose runs were not made are left out (Stash, arXiv 2208.14344).");
  module.def(
      "fit_stalls",
      [](const std::vector<std::tuple<double, double, double>>& samples) {
        std::vector<planner::StallSample> rows;
        for (const auto& [layers, bytes, stall] : samples) {
          rows.push_back({concat("sample ", rows.size()), layers, bytes, stall});
        }
        const planner::StallFit fit = planner::fit_stalls(rows);
        return std::tuple(fit.constant_s, fit.per_layer_s, fit.per_byte_s, fit.r_squared);
      },
      py::arg("samples"),
      "(a0, a1, a2, r_squared) of stall = a0 + a1 layers + a2 bytes by least squares through "
      "(layers, gradient bytes, stall seconds).");
  module.def("extrapolate_ring_stall", &planner::extrapolate_ring_stall, py::arg("stall_s"),
             py::arg("from_workers"), py::arg("to_workers"),
             "The stall with other numbers of workers, where 2 (N-1) / N of the bytes are sent.");
}

void bind_recommendations(py::module_& module) {
  py::class_<planner::Instance>(module, "Instance", "A row of a price table.")
      .def(py::init([](const std::string& name, const std::string& gpu, int gpus, double usd) {
             return planner::Instance{name, gpu, gpus, usd};
           }),
           py::arg("name"), py::arg("gpu"), py::arg("gpus"), py::arg("usd_per_hour"))
      .def_readonly("name", &planner::Instance::name, "The instance.")
      .def_readonly("gpu", &planner::Instance::gpu, "The kind of its GPUs.")
      .def_readonly("gpus", &planner::Instance::gpus, "How many.")
      .def_readonly("usd_per_hour", &planner::Instance::usd_per_hour, "Its price.");
  module.def(
      "default_instances",
      [] {
        const auto rows = planner::default_instances();
        return std::vector<planner::Instance>(rows.begin(), rows.end());
      },
      "AWS p2 and p3, on-demand prices of 2022: replace them by yours.");
  module.def("read_instances", &planner::read_instances, py::arg("csv"),
             "A price table: 'instance,gpu,gpus,usd_per_hour', then a row each.");
  module.def("epoch_seconds", &planner::epoch_seconds, py::arg("samples"), py::arg("batch_per_gpu"),
             py::arg("gpus"), py::arg("step_s"), "Whole steps of an epoch, times step_s.");
  py::class_<planner::Configuration>(module, "Configuration", "Something that could be rented.")
      .def_readonly("instance", &planner::Configuration::instance, "What.")
      .def_readonly("count", &planner::Configuration::count, "How many of it.")
      .def_readonly("plan", &planner::Configuration::plan, "With which plan.")
      .def_readonly("epoch_s", &planner::Configuration::epoch_s, "Seconds of an epoch.")
      .def_readonly("cost_usd", &planner::Configuration::cost_usd, "Price of an epoch.")
      .def_readonly("within_budget", &planner::Configuration::within_budget, "Fast enough?")
      .def_readonly("on_front", &planner::Configuration::on_front,
                    "Whether nothing is both faster and cheaper.");
  py::class_<planner::Recommendation>(
      module, "Recommendation", "The cheapest configuration within a budget, if there is one.")
      .def_property_readonly(
          "chosen",
          [](const planner::Recommendation& found) -> std::optional<planner::Configuration> {
            return found.chosen ? std::optional(found.configurations[*found.chosen]) : std::nullopt;
          },
          "None: no configuration meets the budget.")
      .def_readonly("configurations", &planner::Recommendation::configurations, "Cheapest first.")
      .def_readonly("budget_s", &planner::Recommendation::budget_s, "Of an epoch.")
      .def("explain", &planner::Recommendation::explain,
           "What is recommended, or that nothing meets the budget; and the front: a line each.");
  module.def(
      "recommend",
      [](const std::vector<planner::Instance>& instances, const planner::EpochTime& epoch_s,
         double budget_s, const std::vector<int>& counts, const std::vector<std::string>& plans) {
        return planner::recommend(
            instances, {.counts = counts, .plans = plans, .budget_s = budget_s}, epoch_s);
      },
      py::arg("instances"), py::arg("epoch_s"), py::kw_only(), py::arg("budget_s"),
      py::arg("counts") = std::vector<int>{1}, py::arg("plans") = std::vector<std::string>{"none"},
      "Asks epoch_s(instance, count, plan) for seconds, or None where that cannot run, and takes "
      "the cheapest configuration within budget_s. InvalidArgument for lists that are empty, times "
      "that are not positive, and where nothing can run.");
}

}  // namespace

void bind_planner_jobs(py::module_& module) {
  bind_breakdowns(module);
  bind_stalls(module);
  bind_recommendations(module);
}

}  // namespace gradwire::bindings
