// The planner for Python: profiles as text, predictions as dictionaries.

#include "gradwire/bindings/planner.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>
#include <tuple>
#include <vector>

#include "gradwire/kernels/core/error.h"

#if GRADWIRE_WITH_PLANNER
#include "gradwire/planner/importers.h"
#include "gradwire/planner/predict.h"
#endif

namespace gradwire::bindings {

namespace py = pybind11;

#if GRADWIRE_WITH_PLANNER

namespace {

using Dict = py::typing::Dict<py::str, py::object>;

// What is asked of simulate(), as words and numbers.
struct Question {
  planner::Profile profile;
  planner::Cluster cluster;
  planner::StepOptions options;
};

Question question_of(const std::string& profile_json, const std::string& schedule,
                     const Dict& settings) {
  Question question;
  question.profile = planner::parse_profile(profile_json);
  question.options.schedule = planner::schedule_named(schedule);
  planner::Cluster& cluster = question.cluster;
  cluster.inter = planner::find_link(py::cast<std::string>(settings["link"]));
  cluster.workers = py::cast<size_t>(settings["workers"]);
  cluster.gpus_per_node = py::cast<size_t>(settings["gpus_per_node"]);
  cluster.streams = py::cast<size_t>(settings["streams"]);
  cluster.jitter = py::cast<double>(settings["jitter"]);
  cluster.seed = py::cast<uint64_t>(settings["seed"]);
  const auto set = [&](const char* key, double& value) {
    if (!settings[key].is_none()) {
      value = py::cast<double>(settings[key]);
    }
  };
  set("alpha_s", cluster.inter.alpha_s);
  set("bytes_per_s", cluster.inter.bytes_per_s);
  set("efficiency", cluster.inter.efficiency);
  set("stream_bytes_per_s", cluster.inter.stream_bytes_per_s);
  set("message_cpu_s", cluster.inter.message_cpu_s);
  set("cpu_bytes_per_s", cluster.inter.cpu_bytes_per_s);
  set("cores_per_worker", cluster.cores_per_worker);
  set("threads", cluster.threads);
  set("hand_over_s", question.profile.hand_over_s);
  if (!settings["intra"].is_none()) {
    cluster.intra = planner::find_link(py::cast<std::string>(settings["intra"]));
  }
  cluster.pattern = planner::pattern_named(py::cast<std::string>(settings["exchange"]));
  cluster.servers = py::cast<size_t>(settings["servers"]);
  for (const auto& [compute, input, link] :
       py::cast<std::vector<std::tuple<double, double, double>>>(settings["uneven"])) {
    cluster.uneven.push_back({compute, input, link});
  }
  set("compression", question.options.codec.compression);
  if (!settings["codec"].is_none()) {
    const auto [encode_floor, encode_rate, decode_floor, decode_rate] =
        py::cast<std::tuple<double, double, double, double>>(settings["codec"]);
    question.options.codec.cost = {encode_floor, encode_rate, decode_floor, decode_rate};
  }
  const auto bucket_bytes = py::cast<std::vector<double>>(settings["bucket_bytes"]);
  if (!bucket_bytes.empty()) {
    question.options.buckets = planner::buckets_by_cap(question.profile, bucket_bytes);
  }
  if (py::cast<bool>(settings["measured_exchanges"])) {
    question.options.exchange = planner::StepOptions::Exchange::kMeasured;
  }
  return question;
}

Dict dict_of(const planner::Prediction& prediction) {
  Dict out;
  out["schedule"] = std::string(planner::name_of(prediction.schedule));
  out["workers"] = prediction.workers;
  out["step_s"] = prediction.step_s;
  out["least_s"] = prediction.least_s;
  out["most_s"] = prediction.most_s;
  out["compute_s"] = prediction.compute_s;
  out["exposed_s"] = prediction.exposed_s;
  out["input_s"] = prediction.input_s;
  out["exchange_s"] = prediction.exchange_s;
  out["exchanges"] = prediction.exchanges;
  out["samples_per_s"] = prediction.samples_per_s;
  py::list path;
  for (const planner::CriticalTask& task : prediction.critical_path) {
    py::dict row;
    row["kind"] = std::string(planner::name_of(task.kind));
    row["what"] = task.what;
    row["begin_s"] = task.begin_s;
    row["seconds"] = task.seconds;
    path.append(row);
  }
  out["critical_path"] = path;
  return out;
}

Dict simulate_step(const std::string& profile_json, const std::string& schedule,
                   const Dict& settings) {
  const Question asked = question_of(profile_json, schedule, settings);
  planner::Prediction prediction;
  {
    py::gil_scoped_release release;
    prediction = planner::predict(asked.profile, asked.cluster, asked.options);
  }
  return dict_of(prediction);
}

py::typing::List<Dict> scaling_curve(const std::string& profile_json, const std::string& schedule,
                                     const Dict& settings) {
  const Question asked = question_of(profile_json, schedule, settings);
  std::vector<planner::ScalingPoint> curve;
  {
    py::gil_scoped_release release;
    curve = planner::scaling_curve(asked.profile, asked.cluster, asked.options,
                                   planner::doubling_workers(asked.cluster));
  }
  py::typing::List<Dict> rows;
  for (const planner::ScalingPoint& point : curve) {
    Dict row;
    row["workers"] = point.workers;
    row["step_s"] = point.step_s;
    row["exposed_s"] = point.exposed_s;
    row["samples_per_s"] = point.samples_per_s;
    row["speedup"] = point.speedup;
    row["efficiency"] = point.efficiency;
    rows.append(row);
  }
  return rows;
}

py::typing::List<Dict> sensitivities(const std::string& profile_json, const std::string& schedule,
                                     const Dict& settings) {
  const Question asked = question_of(profile_json, schedule, settings);
  std::vector<planner::Sensitivity> found;
  {
    py::gil_scoped_release release;
    found = planner::sensitivities(asked.profile, asked.cluster, asked.options);
  }
  py::typing::List<Dict> rows;
  for (const planner::Sensitivity& one : found) {
    Dict row;
    row["input"] = one.input;
    row["value"] = one.value;
    row["elasticity"] = one.elasticity;
    row["no_effect"] = one.no_effect;
    rows.append(row);
  }
  return rows;
}

std::string predicted_trace(const std::string& profile_json, const std::string& schedule,
                            const Dict& settings) {
  const Question asked = question_of(profile_json, schedule, settings);
  py::gil_scoped_release release;
  return planner::predicted_chrome_json(asked.profile, asked.cluster, asked.options);
}

std::string profile_from(const std::string& format, const std::string& text,
                         const std::string& name, const Dict& options) {
  using planner::BCaffeTimes;
  std::vector<size_t> elements;
  if (options.contains("elements")) {
    elements = py::cast<std::vector<size_t>>(options["elements"]);
  }
  if (format == "profile") {
    return to_json(planner::parse_profile(text, name));
  }
  if (format == "columns") {
    return to_json(planner::import_columns(text, name));
  }
  if (format == "b-caffe" || format == "b-caffe-merged") {
    const BCaffeTimes times = format == "b-caffe" ? BCaffeTimes::kLayers : BCaffeTimes::kMerged;
    return to_json(planner::import_b_caffe(text, times, name));
  }
  if (format == "layers") {
    planner::TableOptions table;
    table.flops_per_s = py::cast<double>(options["flops_per_s"]);
    table.batch = py::cast<size_t>(options["batch"]);
    table.flops_per_element = py::cast<double>(options["flops_per_element"]);
    return to_json(planner::import_layers(text, table, name));
  }
  if (format == "kineto") {
    return to_json(planner::import_kineto(text, py::cast<size_t>(options["step"]), name, elements));
  }
  if (format == "chakra") {
    return to_json(
        planner::import_chakra(text, py::cast<size_t>(options["batch"]), name, elements));
  }
  if (format == "pipedream") {
    return to_json(planner::import_pipedream(text, py::cast<size_t>(options["batch"]), name));
  }
  constexpr std::string_view kKnown[] = {"profile", "columns", "b-caffe",   "b-caffe-merged",
                                         "kineto",  "chakra",  "pipedream", "layers"};
  throw_unknown_name("profile format", format, kKnown);
}

std::vector<std::string> schedules() {
  std::vector<std::string> names;
  for (size_t s = 0; s < planner::kSchedules; ++s) {
    names.emplace_back(planner::name_of(static_cast<planner::Schedule>(s)));
  }
  return names;
}

std::vector<std::string> patterns() {
  std::vector<std::string> names;
  for (size_t p = 0; p < planner::kPatterns; ++p) {
    names.emplace_back(planner::name_of(static_cast<planner::Pattern>(p)));
  }
  return names;
}

std::string calibrated(const std::string& profile_json, double step_s) {
  return to_json(planner::calibrated(planner::parse_profile(profile_json), step_s));
}

}  // namespace

void bind_planner(py::module_& module) {
  using py::arg;
  module.attr("planner_unavailable_reason") = "";
  module.def("planner_schedules", &schedules, "Names of the schedules of a predicted step.");
  module.def("planner_exchanges", &patterns, "Names of the exchanges of a predicted step.");
  module.def("planner_beside_measured", &planner::beside_measured, arg("predicted"),
             arg("measured"), arg("step"), arg("name"),
             "Chrome/Perfetto JSON of both; see gradwire.planner.beside_measured.");
  module.def("planner_profile", &profile_from, arg("format"), arg("text"), arg("name"),
             arg("options"), "JSON of the profile that `text` in one of the formats holds.");
  module.def("planner_calibrated", &calibrated, arg("profile"), arg("step_s"),
             "JSON of the profile whose step on one worker takes step_s seconds.");
  module.def("planner_simulate", &simulate_step, arg("profile"), arg("schedule"), arg("settings"),
             "A predicted step as a dict; see gradwire.planner.simulate.");
  module.def("planner_scaling", &scaling_curve, arg("profile"), arg("schedule"), arg("settings"),
             "One dict per number of workers; see gradwire.planner.scaling.");
  module.def("planner_sensitivities", &sensitivities, arg("profile"), arg("schedule"),
             arg("settings"), "One dict per input; see gradwire.planner.sensitivities.");
  module.def("planner_trace", &predicted_trace, arg("profile"), arg("schedule"), arg("settings"),
             "Chrome/Perfetto JSON; see gradwire.planner.trace.");
  bind_planner_plans(module);
  bind_planner_jobs(module);
  bind_planner_pilot(module);
}

#else

void bind_planner(py::module_& module) {
  module.attr("planner_unavailable_reason") =
      "this build has no planner: nlohmann-json was not found (Debian: nlohmann-json3-dev)";
  module.def("planner_schedules", [] { return std::vector<std::string>(); });
  module.def("planner_exchanges", [] { return std::vector<std::string>(); });
}

#endif

}  // namespace gradwire::bindings
