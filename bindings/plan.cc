// Plans for Python, and what a line between ranks costs.

#include "gradwire/bindings/plan.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/comm/probe.h"

namespace gradwire::bindings {

namespace {

constexpr size_t kMostShown = 80;  // characters of what is refused

SpecRule rule_of(const RuleFields& fields, size_t index) {
  const std::string what = concat("rules[", index, "]");
  check(fields.contains("spec"), what, ": has no 'spec', expected one");
  SpecRule rule;
  for (const auto& [key, value] : fields) {
    const auto name = py::cast<std::string>(key);
    const auto count = one_of<size_t SpecRule::*>(what, name,
                                                  {{"spec", nullptr},
                                                   {"name", nullptr},
                                                   {"least_ndim", &SpecRule::least_ndim},
                                                   {"most_ndim", &SpecRule::most_ndim},
                                                   {"least_numel", &SpecRule::least_numel},
                                                   {"most_numel", &SpecRule::most_numel}});
    try {
      if (name == "spec") {
        rule.spec = parse_spec(py::cast<std::string>(value));
      } else if (name == "name") {
        rule.name = py::cast<std::string>(value);
      } else {
        rule.*count = py::cast<size_t>(value);
      }
    } catch (const py::cast_error&) {
      throw InvalidArgument(concat(what, "['", name, "']: is ", py::repr(value).cast<std::string>(),
                                   ", must be ", count == nullptr ? "a string" : "an integer from 0"));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(concat(what, "['", name, "']: ", error.what()));
    }
  }
  return rule;
}

}  // namespace

std::vector<ParamInfo> parameters_of(const NamedShapes& named) {
  std::vector<ParamInfo> parameters;
  for (const py::handle each : named) {
    try {
      auto [name, shape] = py::cast<std::pair<std::string, std::vector<size_t>>>(each);
      parameters.push_back({std::move(name), std::move(shape)});
    } catch (const py::cast_error&) {
      const auto text = py::repr(each).cast<std::string>();
      const std::string head = text.substr(0, std::min(text.find('\n'), kMostShown));
      throw InvalidArgument(concat("parameters[", parameters.size(), "]: is ", head,
                                   head.size() < text.size() ? "..." : "",
                                   ", must be a name and a shape, such as ('weight', (20, 10))"));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(concat("parameters[", parameters.size(), "]: ", error.what()));
    }
  }
  return parameters;
}

PlanOptions options_of(const PlanWords& words) {
  PlanOptions options;
  options.spec = parse_spec(words.spec);
  for (size_t i = 0; i < words.rules.size(); ++i) {
    options.rules.push_back(rule_of(words.rules[i], i));
  }
  options.exchange = words.exchange;
  options.exempt_1d = one_of<PlanOptions::Exempt1D>(
      "exempt_1d", words.exempt_1d,
      {{"auto", PlanOptions::Exempt1D::kAuto}, {"never", PlanOptions::Exempt1D::kNever}});
  options.seed = words.seed;
  options.ranks_per_node = words.ranks_per_node;
  return options;
}

py::typing::Dict<py::str, py::int_> fields_of(const PlanMemory& memory) {
  py::typing::Dict<py::str, py::int_> fields;
  fields["gradients"] = memory.gradients;
  fields["residuals"] = memory.residuals + memory.narrow;
  fields["estimates"] = memory.estimates;
  fields["compressors"] = memory.compressors;
  fields["scratch"] = memory.scratch;
  fields["payloads"] = memory.payloads;
  fields["messages"] = memory.messages;
  return fields;
}

namespace {

using Fields = py::typing::Dict<py::str, py::object>;

Plan plan_of(const NamedShapes& parameters, const std::string& spec, const std::string& exchange,
             size_t bucket_bytes, size_t last_bucket_bytes, py::handle dtype,
             const std::string& exempt_1d, uint64_t seed, int ranks_per_node,
             const std::optional<std::vector<std::vector<ParamId>>>& buckets,
             const std::optional<std::vector<std::string>>& exchanges,
             const std::vector<RuleFields>& rules, const std::string& residual_memory) {
  const std::vector<ParamInfo> infos = parameters_of(parameters);
  PlanOptions options = options_of({.spec = spec,
                                    .exchange = exchange,
                                    .exempt_1d = exempt_1d,
                                    .rules = rules,
                                    .seed = seed,
                                    .ranks_per_node = ranks_per_node});
  options.bucket_bytes = bucket_bytes;
  options.last_bucket_bytes = last_bucket_bytes;
  options.dtype = parse_dtype(dtype);
  check(!buckets || !buckets->empty(), "buckets: is empty, expected every parameter in one");
  options.buckets = buckets.value_or(options.buckets);
  options.exchanges = exchanges.value_or(options.exchanges);
  options.residual_memory = one_of<ResidualMemory>(
      "residual_memory", residual_memory,
      {{"device", ResidualMemory::kDevice}, {"host", ResidualMemory::kHost}});
  return make_plan(infos, options);
}

py::typing::List<Fields> layout(const Plan& plan) {
  py::typing::List<Fields> buckets;
  for (const PlanBucket& bucket : plan.buckets) {
    py::list groups;
    for (const PlanGroup& group : bucket.groups) {
      py::list members;
      for (const Segment& segment : group.segments) {
        members.append(segment.parameter);
      }
      py::dict fields;
      fields["spec"] = to_string(group.spec);
      fields["offset"] = group.offset;
      fields["numel"] = group.numel;
      fields["parameters"] = members;
      groups.append(fields);
    }
    py::dict fields;
    fields["exchange"] = bucket.exchange;
    fields["numel"] = bucket.numel;
    fields["groups"] = groups;
    buckets.append(fields);
  }
  return buckets;
}

LinkCosts probe(BoundTransport& over, double budget, size_t most_bytes) {
  check(budget > 0 && budget < 1e6, "budget: is ", budget,
        " seconds, must be above 0 and below 1e6");
  const auto transport = over.get();
  const ProbeOptions options{
      .budget = std::chrono::microseconds(static_cast<int64_t>(budget * 1e6)),
      .most_bytes = most_bytes};
  LinkCosts costs;
  over.work(transport, [&](Context& context) {
    const Device device = over.device();
    if (device.type == DeviceType::kCpu) {
      costs = probe_link(*transport, context, options);
      return;
    }
    const auto stream = cuda::make_stream(device.index);
    Workspace workspace(device);
    Context there{*stream, workspace};
    costs = probe_link(*transport, there, options);
  });
  return costs;
}

void bind_link(py::module_& module) {
  py::class_<LinkCosts>(module, "LinkCosts",
                        "What a message costs on the line between ranks: alpha_s seconds, and "
                        "beta_s_per_byte for each byte; read-only.")
      .def(py::init([](double alpha_s, double beta_s_per_byte) {
             check(alpha_s >= 0 && alpha_s < 1e9, "alpha_s: is ", alpha_s,
                   ", must be a number of seconds from 0");
             check(beta_s_per_byte >= 0 && beta_s_per_byte < 1e9, "beta_s_per_byte: is ",
                   beta_s_per_byte, ", must be a number of seconds from 0");
             return LinkCosts{alpha_s, beta_s_per_byte};
           }),
           py::kw_only(), py::arg("alpha_s"), py::arg("beta_s_per_byte"))
      .def_property_readonly(
          "alpha_s", [](const LinkCosts& costs) { return costs.alpha_s; },
          "Seconds of a message of no bytes.")
      .def_property_readonly(
          "beta_s_per_byte", [](const LinkCosts& costs) { return costs.beta_s_per_byte; },
          "Seconds of each byte.")
      .def("__repr__", [](const LinkCosts& costs) {
        return concat("LinkCosts(alpha_s=", costs.alpha_s,
                      ", beta_s_per_byte=", costs.beta_s_per_byte, ")");
      });
  module.def("probe_link", &probe, py::arg("transport"), py::kw_only(), py::arg("budget") = 0.005,
             py::arg("most_bytes") = ProbeOptions{}.most_bytes,
             "Measures the line between the ranks by a few all-gathers: the same LinkCosts on all. "
             "Collective; a Reducer over the transport must be between steps.\n\n"
             "Args:\n    budget: seconds that three calls of the largest size may take.\n"
             "    most_bytes: of a message.\n\n"
             "Raises:\n    TransportError: naming a rank; the group is finished.");
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_link(module);
  py::class_<Plan>(module, "Plan",
                   "Which parameters travel together, compressed and exchanged how: read-only, "
                   "equal on all ranks. str() is a table of it.")
      .def_property_readonly(
          "parameters",
          [](const Plan& plan) {
            std::vector<std::string> names;
            for (const ParamInfo& info : plan.parameters) {
              names.push_back(info.name);
            }
            return names;
          },
          "Names, in forward order; a parameter's id is its place here.")
      .def_property_readonly(
          "buckets", [](const Plan& plan) { return plan.buckets.size(); },
          "How many messages a step has.")
      .def_property_readonly(
          "layout", &layout,
          "The buckets in the order they leave, as dicts: 'exchange', 'numel' (elements) and "
          "'groups', a list of dicts 'spec', 'offset' (first element in the bucket), 'numel' and "
          "'parameters' (their ids, one after another from that offset).")
      .def_property_readonly("fingerprint", &Plan::fingerprint,
                             "FNV-1a over describe(), but for where residuals lie.")
      .def("describe", &Plan::describe,
           "A table of the buckets, their groups, capacities and parameters.")
      .def(
          "memory", [](const Plan& plan, int world_size) { return fields_of(memory_of(plan, world_size)); },
          py::arg("world_size"),
          "Bytes that each of so many ranks holds, in memory of the CPU, behind the first steps of start= "
          "and warmup=: 'gradients' (untouched where the caller hands over its own), 'residuals' and "
          "'estimates' (both buffers), 'compressors' (velocities, and what low rank has learned), "
          "'scratch' (for residuals that are kept narrow), 'payloads' (of all buckets) and 'messages' "
          "(of the largest).")
      .def("__str__", &Plan::describe)
      .def("__repr__", [](const Plan& plan) {
        return concat("<gradwire.Plan of ", plan.parameters.size(), " parameters in ",
                      plan.buckets.size(), " buckets; str() is a table of it>");
      });
  module.def(
      "make_plan", &plan_of, py::arg("parameters"), py::arg("spec") = "topk:1%", py::kw_only(),
      py::arg("exchange") = "auto", py::arg("bucket_bytes") = PlanOptions{}.bucket_bytes,
      py::arg("last_bucket_bytes") = PlanOptions{}.last_bucket_bytes, py::arg("dtype") = "float32",
      py::arg("exempt_1d") = "auto", py::arg("seed") = 0, py::arg("ranks_per_node") = 1,
      py::arg("buckets") = py::none(), py::arg("exchanges") = py::none(),
      py::arg("rules") = std::vector<RuleFields>{}, py::arg("residual_memory") = "device",
      "Makes a plan without looking at any value.\n\n"
      "Args:\n    parameters: (name, shape) in the order of the model's forward pass.\n"
      "    spec: a compressor, such as 'topk:1%,int4'.\n"
      "    exchange: a row of gradwire.exchanges(), or 'auto'.\n"
      "    bucket_bytes: of dense gradient in a message; a larger parameter is a bucket alone.\n"
      "    last_bucket_bytes: the same for the bucket that leaves last; 0: as bucket_bytes.\n"
      "    dtype: of the gradients: 'float32', 'float16' or 'bfloat16'.\n"
      "    exempt_1d: 'auto': lossy specs narrower than 16 bits send 1-D parameters as bf16; or "
      "'never'.\n    seed: of stochastic rounding.\n"
      "    ranks_per_node: neighbouring ranks that share a node, for the hierarchical exchange.\n"
      "    buckets: ids of the parameters that travel together, in the order the buckets leave, "
      "every parameter once; in place of bucket_bytes.\n"
      "    exchanges: of each of those buckets, in place of exchange.\n"
      "    rules: dicts of a 'spec' and which parameters it is for, by any of 'name' (a pattern, * "
      "stands for any characters), 'least_ndim', 'most_ndim', 'least_numel' and 'most_numel': the "
      "first rule that fits a parameter decides, before spec and exempt_1d.\n"
      "    residual_memory: 'device', beside the gradients, or 'host'; of gradients in CPU memory "
      "both "
      "are that.\n\n"
      "Raises:\n    InvalidArgument: two parameters of one name, one without elements, an exchange "
      "that cannot carry the spec, buckets that do not hold every parameter once.");
}

}  // namespace gradwire::bindings
