// Kineto traces of PyTorch's DistributedDataParallel.

#include <algorithm>
#include <set>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/json_reader.h"

namespace gradwire::planner {
namespace {

// Times in microseconds, as in the trace.
struct Span {
  double begin = 0, end = 0;
  bool holds(double time) const { return begin <= time && time < end; }
};

struct AllReduce {
  Span span;
  size_t numel = 0;
  DType dtype = DType::kFloat32;
  size_t ranks = 1;
};

// What happened in one step: all that a profile is made of.
struct Step {
  Span whole;
  std::vector<AllReduce> exchanges;  // in order of time
  Span forward, backward;            // kernels
  double computed_until = 0;
};

bool has_text(const Json& event, const char* key, std::string_view begin) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() &&
         found->get_ref<const std::string&>().starts_with(begin);
}

Span span_of(const JsonNode& event) {
  const double begin = event.at("ts").number();
  const double duration = event.at("dur").number();
  if (duration < 0) {
    event.at("dur").fail("must be a time of at least 0 us");
  }
  return {begin, begin + duration};
}

std::vector<Span> steps_of(const JsonNode& events) {
  std::vector<Span> steps;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (has_text(event, "cat", "user_annotation") && has_text(event, "name", "ProfilerStep")) {
      steps.push_back(span_of(events[i]));
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return steps;
}

DType dtype_of(const JsonNode& node) {
  constexpr std::string_view kKnown[] = {"Float", "Half", "BFloat16"};  // in the order of DType
  const std::string text = node.text();
  const auto found = std::find(std::begin(kKnown), std::end(kKnown), text);
  if (found == std::end(kKnown)) {
    throw_unknown_name(node.place(), text, kKnown);
  }
  return static_cast<DType>(found - std::begin(kKnown));
}

// The operators that autograd's own thread runs, by the id that kernels carry.
std::set<size_t> backward_operators(const JsonNode& events, const Span& step) {
  const auto in_step = [&](const Json& event) {
    return has_text(event, "cat", "cpu_op") && event.contains("tid") && event.contains("ts") &&
           event["ts"].is_number() && step.holds(event["ts"].get<double>());
  };
  std::set<Json> threads;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (in_step(event) && has_text(event, "name", "autograd::engine::evaluate_function")) {
      threads.insert(event["tid"]);
    }
  }
  std::set<size_t> operators;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (in_step(event) && threads.contains(event["tid"]) && events[i].has("args")) {
      if (const auto id = events[i].at("args").find("External id")) {
        operators.insert(id->count());
      }
    }
  }
  return operators;
}

Step read_step(const JsonNode& events, const Span& whole) {
  Step step;
  step.whole = whole;
  const std::set<size_t> backward = backward_operators(events, whole);
  step.forward = step.backward = {whole.end, whole.begin};
  for (size_t i = 0; i < events.size(); ++i) {
    const JsonNode event = events[i];
    if (!has_text(event.value(), "cat", "kernel") || !whole.holds(event.at("ts").number())) {
      continue;
    }
    const Span span = span_of(event);
    const JsonNode args = event.at("args");
    if (has_text(event.value(), "name", "nccl")) {
      if (has_text(args.value(), "Collective name", "allreduce")) {
        const auto ranks = args.find("Group size");
        step.exchanges.push_back({span, args.at("In msg nelems").count(),
                                  dtype_of(args.at("dtype")), ranks ? ranks->count() : 1});
      }
      continue;
    }
    const auto id = args.find("External id");
    Span& part = id && backward.contains(id->count()) ? step.backward : step.forward;
    part = {std::min(part.begin, span.begin), std::max(part.end, span.end)};
    step.computed_until = std::max(step.computed_until, span.end);
  }
  std::sort(step.exchanges.begin(), step.exchanges.end(),
            [](const AllReduce& a, const AllReduce& b) { return a.span.begin < b.span.begin; });
  return step;
}

Profile profile_of(const Step& step) {
  constexpr double kTraceUnit = 1e-6;
  Profile profile;
  profile.source = "Kineto";
  profile.measured_step_s = (step.whole.end - step.whole.begin) * kTraceUnit;
  profile.other_s = std::max(0.0, step.backward.begin - step.forward.begin) * kTraceUnit;
  const double exchanged_until = step.exchanges.back().span.end;
  const double update_s =
      std::max(0.0, step.computed_until - std::max(step.backward.end, exchanged_until)) *
      kTraceUnit;
  double numel = 0, before_s = 0;
  for (const AllReduce& exchange : step.exchanges) {
    numel += static_cast<double>(exchange.numel);
    profile.ranks = std::max(profile.ranks, exchange.ranks);
  }
  for (const AllReduce& exchange : step.exchanges) {
    const double ready_s =
        std::max(before_s, (exchange.span.begin - step.backward.begin) * kTraceUnit);
    LayerProfile layer;
    layer.name = concat("bucket ", profile.layers.size());
    layer.numel = exchange.numel;
    layer.dtype = exchange.dtype;
    layer.backward_s = ready_s - before_s;
    layer.ready_s = ready_s;
    layer.exchange_s = (exchange.span.end - exchange.span.begin) * kTraceUnit;
    layer.update_s = update_s * static_cast<double>(exchange.numel) / numel;
    profile.layers.push_back(std::move(layer));
    before_s = ready_s;
  }
  // What backward does after its last bucket left.
  profile.layers.back().backward_s +=
      std::max(0.0, (step.backward.end - step.backward.begin) * kTraceUnit - before_s);
  std::reverse(profile.layers.begin(), profile.layers.end());  // the first bucket: the last layers
  return profile;
}

}  // namespace

Profile import_kineto(std::string_view json, size_t step, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const JsonNode events = JsonNode(parsed, concat(name, ": ")).at("traceEvents");
  const std::vector<Span> steps = steps_of(events);
  check(!steps.empty(), name,
        ": no ProfilerStep events, expected a trace of torch.profiler with its step() called");
  check(step < steps.size(), name, ": step ", step, ", must be below ", steps.size(),
        ", the trace's steps");
  const Step found = read_step(events, steps[step]);
  check(!found.exchanges.empty(), name, ": step ", step,
        " has no all-reduce with its elements, expected DistributedDataParallel over NCCL");
  check(found.backward.begin < found.backward.end, name, ": step ", step,
        " has no kernel that autograd launched, expected a backward pass on a GPU");
  Profile profile = profile_of(found);
  profile.model = name;
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
