// A measured step beside the predicted one.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/json_reader.h"
#include "gradwire/planner/predict.h"

namespace gradwire::planner {
namespace {

// Microseconds, as in the traces.
struct Window {
  double begin = 0, end = 0;
};

bool is_span(const Json& event) { return event.value("ph", "") == "X"; }

bool begins(const Json& event, const char* key, std::string_view text) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() &&
         found->get_ref<const std::string&>().starts_with(text);
}

double begin_of(const JsonNode& event) { return event.at("ts").number(); }

double end_of(const JsonNode& event) {
  const double duration = event.at("dur").number();
  if (duration < 0) {
    event.at("dur").fail("must be a time of at least 0 us");
  }
  return begin_of(event) + duration;
}

const Window& chosen(const std::vector<Window>& steps, std::optional<size_t> step,
                     std::string_view name) {
  check(!step || *step < steps.size(), name, ": step ", step.value_or(0), ", must be below ",
        steps.size(), ", the trace's steps");
  return steps[step.value_or(steps.size() - 1)];
}

// Of torch.profiler, in order of time; empty: not one of its traces.
std::vector<Window> profiler_steps(const JsonNode& events) {
  std::vector<Window> steps;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (begins(event, "cat", "user_annotation") && begins(event, "name", "ProfilerStep")) {
      steps.push_back({begin_of(events[i]), end_of(events[i])});
    }
  }
  std::ranges::sort(steps, {}, &Window::begin);
  return steps;
}

// Of the Reducer, by the step that each event names.
std::vector<Window> reducer_steps(const JsonNode& events) {
  std::map<size_t, Window> steps;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (!is_span(event) || !event.contains("args") || !event["args"].contains("step")) {
      continue;
    }
    const size_t step = events[i].at("args").at("step").count();
    const Window window{begin_of(events[i]), end_of(events[i])};
    const auto [found, added] = steps.try_emplace(step, window);
    if (!added) {
      found->second = {std::min(found->second.begin, window.begin),
                       std::max(found->second.end, window.end)};
    }
  }
  std::vector<Window> windows;
  for (const auto& [step, window] : steps) {
    windows.push_back(window);
  }
  return windows;
}

// When the predicted step's first gradient is there.
double first_gradient(const Json& predicted) {
  double first = 0;
  bool found = false;
  for (const Json& event : predicted["traceEvents"]) {
    if (is_span(event) && begins(event, "name", "backward")) {
      const double end = event["ts"].get<double>() + event["dur"].get<double>();
      first = found ? std::min(first, end) : end;
      found = true;
    }
  }
  return first;
}

}  // namespace

std::string beside_measured(std::string_view predicted, std::string_view measured,
                            std::optional<size_t> step, std::string_view name) {
  Json both = parse_json(predicted, "predicted");
  const Json parsed = parse_json(measured, name);
  const JsonNode whole(parsed, concat(name, ": "));
  const JsonNode events = parsed.is_array() ? whole : whole.at("traceEvents");
  const std::vector<Window> profiled = profiler_steps(events);
  const std::vector<Window> steps = profiled.empty() ? reducer_steps(events) : profiled;
  check(!steps.empty(), name,
        ": no step in it, expected a trace of gradwire's Reducer, or of torch.profiler with its "
        "step() called");
  const Window window = chosen(steps, step, name);
  const double shift = (profiled.empty() ? first_gradient(both) : 0) - window.begin;
  std::map<Json, int> processes;  // the predicted one is 0
  for (size_t i = 0; i < events.size(); ++i) {
    Json event = events[i].value();
    const std::string phase = event.is_object() ? event.value("ph", "") : "";
    if ((phase != "X" && phase != "M") || !event.contains("pid")) {
      continue;
    }
    if (phase == "X") {
      if (begin_of(events[i]) < window.begin || end_of(events[i]) > window.end) {
        continue;
      }
      event["ts"] = begin_of(events[i]) + shift;
    } else if (begins(event, "name", "process_name")) {
      event["args"]["name"] = concat("measured: ", event["args"].value("name", ""));
    }
    event["pid"] =
        processes.try_emplace(event["pid"], static_cast<int>(processes.size()) + 1).first->second;
    both["traceEvents"].push_back(std::move(event));
  }
  return both.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gradwire::planner
