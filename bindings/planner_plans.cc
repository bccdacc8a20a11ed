// The planner for Python: links and costs, bucket plans, breakdowns, stalls, recommendations.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/planner.h"
#include "gradwire/planner/bucket_options.h"
#include "gradwire/planner/cost_file.h"
#include "gradwire/planner/fit.h"
#include "gradwire/planner/profile.h"
#include "gradwire/planner/straggler.h"
#include "gradwire/planner/units.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;
using Dict = py::typing::Dict<py::str, py::object>;
using Rows = py::typing::List<Dict>;
using planner::BucketOption;
using planner::BucketPlan;
using planner::CodecCost;
using planner::Costs;
using planner::LinkCost;
using planner::ReadyGradient;

/// A plan with the options its buckets point at.
struct NamedPlan {
  BucketPlan plan;
  std::vector<BucketOption> options;
  std::vector<ReadyGradient> gradients;
  int world_size = 1;
};

void bind_units(py::module_& module) {
  module.def("parse_rate", &planner::parse_rate_bytes_per_s, py::arg("text"),
             "Bytes per second of '10gbit', '25Gb/s' or '1.2GB/s'; b is a bit, B a byte.");
  module.def("parse_seconds", &planner::parse_seconds, py::arg("text"),
             "Seconds of '60us', '1.5ms', '2h'.");
  module.def("parse_bytes", &planner::parse_bytes, py::arg("text"), "Bytes of '25MB', '64KiB'.");
  module.def("seconds_text", &planner::seconds_text, py::arg("seconds"),
             "'60 us': three digits and the unit that fits.");
}

void bind_links(py::module_& module) {
  py::class_<LinkCost>(module, "PlannedLink",
                       "What messages cost on a line: alpha_s + bytes / effective rate, where s "
                       "streams have min(efficiency * bytes_per_s, s * stream_bytes_per_s).")
      .def(
          py::init([](const std::string& text) { return planner::find_link(text); }),
          py::arg("text"),
          "A preset ('10gbe', 'nvlink', ..) or a rate ('10gbit', '1.2GB/s'). InvalidArgument lists "
          "the presets.")
      .def_readonly("name", &LinkCost::name, "The preset or the rate.")
      .def_readwrite("alpha_s", &LinkCost::alpha_s, "Start-up of a message, seconds.")
      .def_readwrite("bytes_per_s", &LinkCost::bytes_per_s, "The nominal rate, one way.")
      .def_readwrite("efficiency", &LinkCost::efficiency, "What of it can be had, in (0, 1].")
      .def_readwrite("stream_bytes_per_s", &LinkCost::stream_bytes_per_s,
                     "What one stream can have of it; 0: all.")
      .def_readonly("source", &LinkCost::source, "Where the figures are from.")
      .def("effective_bytes_per_s", &LinkCost::effective_bytes_per_s, py::arg("streams"),
           "What so many streams carry together.")
      .def(
          "message_seconds",
          [](const LinkCost& link, double bytes, const std::string& exchange, int streams) {
            planner::validate(link);
            return link.message_seconds(bytes, exchange, streams);
          },
          py::arg("bytes"), py::arg("exchange") = "", py::arg("streams") = 1,
          "Seconds of one message.")
      .def("__repr__", [](const LinkCost& link) { return "PlannedLink('" + link.name + "')"; });
  module.def(
      "link_presets",
      [] {
        const auto presets = planner::link_presets();
        return std::vector<LinkCost>(presets.begin(), presets.end());
      },
      "pcie3, pcie4, nvlink, 10gbe, 25gbe, 100gbe, infiniband, each with its source.");
  module.def(
      "exchange_seconds",
      [](const std::string& exchange, size_t numel, size_t payload_bytes, int world_size,
         const LinkCost& link, double density, int streams) {
        planner::validate(link);
        ExchangeLoad load;
        load.numel = numel;
        load.payload_bytes = payload_bytes;
        load.world_size = world_size;
        load.density = density;
        return planner::exchange_seconds(exchange, load, Costs{.link = link}, streams);
      },
      py::arg("exchange"), py::arg("numel"), py::arg("payload_bytes"), py::arg("world_size"),
      py::arg("link"), py::arg("density") = 1.0, py::arg("streams") = 1,
      "Predicted seconds of an exchange ('ring', 'gather', .., 'tree', 'parameter_server') of a "
      "payload among world_size ranks, by the formulas of `gradwire info`'s table.");
}

void bind_fits(py::module_& module) {
  module.def(
      "fit_line",
      [](const std::vector<std::pair<double, double>>& measured) {
        std::vector<planner::ProbePoint> points;
        for (const auto& [bytes, seconds] : measured) {
          points.push_back({bytes, seconds});
        }
        const planner::LineFit fit = planner::fit_line(points);
        return std::tuple(fit.alpha_s, fit.bytes_per_s, fit.quality.residuals);
      },
      py::arg("measured"),
      "(alpha_s, bytes_per_s, residuals) of seconds = alpha + bytes / rate through measured "
      "(bytes, "
      "seconds); a residual is measured / fitted - 1. Robust against hiccups. InvalidArgument for "
      "what follows no such law.");
  module.def("sampled_straggler_factor", &planner::sampled_straggler_factor, py::arg("variation"),
             py::arg("workers"), py::arg("seed") = 1, py::arg("draws") = 4096,
             "E[slowest of workers] / mean of log-normal times with this standard deviation over "
             "mean.");
  module.def(
      "measured_straggler_factor",
      [](const std::vector<double>& times, int workers) {
        return planner::measured_straggler_factor(times, workers);
      },
      py::arg("step_times"), py::arg("workers"),
      "The same of times drawn from those that were measured, exactly.");
}

void bind_specs(py::module_& module) {
  module.def(
      "spec_traffic",
      [](const std::string& spec, int world_size) {
        const planner::SpecTraffic traffic = planner::spec_traffic(spec, world_size);
        return std::tuple(4 / traffic.bytes_per_element, traffic.exchanges);
      },
      py::arg("spec"), py::arg("world_size"),
      "(dense bytes over payload bytes, names of the exchanges that carry it) of a compressor.");
}

using CodecTuple = std::tuple<double, double, double, double>;

NamedPlan plan_of(std::vector<ReadyGradient> gradients, const Costs& costs,
                  const planner::BucketOptionRequest& request, double tolerance, size_t beam) {
  NamedPlan named{.plan = {},
                  .options = {},
                  .gradients = std::move(gradients),
                  .world_size = request.world_size};
  named.options = planner::make_bucket_options(request, costs);
  named.plan =
      planner::plan_buckets(named.gradients, named.options, {.beam = beam, .tolerance = tolerance});
  return named;
}

Costs costs_of(const LinkCost& link, const std::map<std::string, CodecTuple>& codecs) {
  Costs costs;
  costs.link = link;
  for (const auto& [spec, numbers] : codecs) {
    const auto [encode_floor, encode_rate, decode_floor, decode_rate] = numbers;
    costs.codecs[to_string(parse_spec(spec))] =
        CodecCost{encode_floor, encode_rate, decode_floor, decode_rate};
  }
  return costs;
}

Rows buckets_of(const NamedPlan& named) {
  Rows rows;
  for (const planner::PlannedBucket& bucket : named.plan.buckets) {
    const BucketOption& option = named.options[bucket.option];
    py::list names;
    for (size_t g = bucket.begin; g < bucket.end; ++g) {
      names.append(named.gradients[g].name);
    }
    Dict row;
    row["gradients"] = names;
    row["numel"] = bucket.numel;
    row["spec"] = option.compressor;
    row["exchange"] = option.exchange;
    row["streams"] = option.streams;
    row["ready_s"] = bucket.ready_s;
    row["start_s"] = bucket.start_s;
    row["end_s"] = bucket.end_s;
    rows.append(row);
  }
  return rows;
}

Rows candidates_of(const NamedPlan& named) {
  Rows rows;
  for (const planner::PlanCandidate& candidate : named.plan.candidates) {
    Dict row;
    row["name"] = candidate.name;
    row["end_s"] = candidate.end_s;
    row["behind_s"] = candidate.behind_s;
    row["loss"] = candidate.loss;
    row["buckets"] = candidate.buckets.size();
    row["memory"] = fields_of(
        planner::memory_of(named.gradients, named.options, candidate.buckets, named.world_size));
    rows.append(row);
  }
  return rows;
}

void bind_bucket_plans(py::module_& module) {
  py::class_<NamedPlan>(module, "BucketPlan",
                        "Which gradients travel together and how each bucket is sent.")
      .def_property_readonly(
          "end_s", [](const NamedPlan& named) { return named.plan.end_s; },
          "Predicted end of communication, seconds since backward began.")
      .def_property_readonly(
          "backward_end_s", [](const NamedPlan& named) { return named.plan.backward_end_s; },
          "End of backward alone: end_s less this is exposed.")
      .def_property_readonly(
          "encode_s", [](const NamedPlan& named) { return named.plan.encode_s; },
          "What compressing takes of the time of backward.")
      .def_property_readonly(
          "exact", [](const NamedPlan& named) { return named.plan.exact; },
          "Whether no contiguous buckets with these options end earlier.")
      .def_property_readonly(
          "chosen", [](const NamedPlan& named) { return named.plan.chosen; },
          "Place of the plan among the candidates.")
      .def_property_readonly("buckets", &buckets_of,
                             "A dict per bucket, in the order they leave: gradients, numel, spec, "
                             "exchange, streams, ready_s, start_s, end_s.")
      .def_property_readonly("candidates", &candidates_of,
                             "A dict per plan that was considered, earliest first: name, end_s, "
                             "behind_s, loss, buckets, and memory, as Plan.memory() of the buckets.")
      .def(
          "explain", [](const NamedPlan& named) { return named.plan.explain(); },
          "What was chosen, and which candidates lost by how much: a line each.");
  module.def(
      "plan_buckets",
      [](const std::vector<std::tuple<std::string, size_t, double>>& gradients,
         const LinkCost& link, int world_size, const std::map<std::string, CodecTuple>& codecs,
         const std::vector<std::string>& specs, const std::vector<std::string>& exchanges,
         const std::vector<int>& streams, double tolerance, size_t beam) {
        std::vector<ReadyGradient> ready;
        for (const auto& [name, numel, ready_s] : gradients) {
          ready.push_back({name, numel, ready_s});
        }
        const py::gil_scoped_release released;
        return plan_of(
            std::move(ready), costs_of(link, codecs),
            {.world_size = world_size, .specs = specs, .exchanges = exchanges, .streams = streams},
            tolerance, beam);
      },
      py::arg("gradients"), py::kw_only(), py::arg("link"), py::arg("world_size"),
      py::arg("codecs"), py::arg("specs") = std::vector<std::string>(),
      py::arg("exchanges") = std::vector<std::string>(), py::arg("streams") = std::vector<int>{1},
      py::arg("tolerance") = 0.0, py::arg("beam") = 64,
      "The plan whose last exchange ends first. gradients: (name, numel, ready_s) in the order "
      "backward makes them. codecs: spec -> (encode floor s, encode bytes/s, decode floor s, "
      "decode "
      "bytes/s) of dense bytes, a rate of 0 costing nothing; 'bf16' and every spec asked for must "
      "have an entry. Candidates always include no compression and bf16. Within tolerance of the "
      "earliest the plan that sends most is taken. InvalidArgument for prices that cannot be.");
  module.def(
      "gradients_of_profile",
      [](const std::string& profile_json) {
        const planner::Profile profile = planner::parse_profile(profile_json);
        std::vector<std::tuple<std::string, size_t, double>> gradients;
        for (const ReadyGradient& gradient : planner::ready_gradients(profile)) {
          gradients.emplace_back(gradient.name, gradient.numel, gradient.ready_s);
        }
        return gradients;
      },
      py::arg("profile"),
      "(name, numel, ready_s) of the gradients of a profile, which is JSON text as "
      "gradwire.planner.read_profile gives it, in the order backward makes them: what plan_buckets "
      "takes.");
}

}  // namespace

void bind_planner_plans(py::module_& module) {
  bind_units(module);
  bind_links(module);
  bind_fits(module);
  bind_specs(module);
  bind_bucket_plans(module);
}

}  // namespace gradwire::bindings
