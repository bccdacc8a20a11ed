// Kineto traces of PyTorch's DistributedDataParallel.

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/collectives.h"
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
  std::optional<size_t> numel;  // none: the trace does not say
  DType dtype = DType::kFloat32;
  size_t ranks = 1;
};

// What the host was doing when it launched a kernel.
struct Launch {
  Json thread;
  double time = 0;
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

struct StepSpan : Span {
  Json thread;
};

std::vector<StepSpan> steps_of(const JsonNode& events) {
  std::vector<StepSpan> steps;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i].value();
    if (has_text(event, "cat", "user_annotation") && has_text(event, "name", "ProfilerStep")) {
      // Of a newer trace the GPU's own steps are other events: "gpu_user_annotation".
      steps.push_back({span_of(events[i]), event.value("tid", Json())});
    }
  }
  std::ranges::sort(steps, {}, &StepSpan::begin);
  return steps;
}

// Of one trace: what a step's kernels are told apart by.
class Host {
 public:
  Host(const JsonNode& events, const StepSpan& step) : step_(step) {
    for (size_t i = 0; i < events.size(); ++i) {
      const Json& event = events[i].value();
      // On the thread of the training loop autograd runs what is on the CPU.
      if (in_step(event) && has_text(event, "name", "autograd::engine::evaluate_function") &&
          event["tid"] != step.thread) {
        threads_.insert(event["tid"]);
      }
    }
    for (size_t i = 0; i < events.size(); ++i) {
      const JsonNode event = events[i];
      if (!event.has("args") || !event.has("tid")) {
        continue;
      }
      const JsonNode args = event.at("args");
      if (in_step(event.value()) && threads_.contains(event.value()["tid"])) {
        if (const auto id = args.find("External id")) {
          backward_.insert(id->count());
        }
      }
      if (has_text(event.value(), "cat", "cuda") && args.has("correlation")) {
        launches_[args.at("correlation").count()] = {event.value()["tid"], event.at("ts").number()};
      } else if (is_all_reduce_call(event.value()) && !sums_whole_numbers(args, {})) {
        if (const auto size = collective_size(args)) {
          calls_.push_back({span_of(event), event.value()["tid"], *size});
        }
      }
    }
  }

  const Launch* launch_of(const JsonNode& args) const {
    const auto correlation = args.find("correlation");
    const auto found = correlation ? launches_.find(correlation->count()) : launches_.end();
    return found == launches_.end() ? nullptr : &found->second;
  }

  // A kernel runs in another step than the one that launched it where the GPU is behind.
  bool is_of_step(const JsonNode& kernel, const JsonNode& args) const {
    const Launch* launch = launch_of(args);
    return step_.holds(launch != nullptr ? launch->time : kernel.at("ts").number());
  }

  // Older traces have no operator's id at a kernel, but the thread that launched it.
  bool is_backward(const JsonNode& args) const {
    const Launch* launch = launch_of(args);
    const auto id = args.find("External id");
    return (launch != nullptr && threads_.contains(launch->thread)) ||
           (id && backward_.contains(id->count()));
  }

  // Elements that the call says which launched this kernel.
  std::optional<CollectiveSize> size_of_call(const JsonNode& args) const {
    const Launch* launch = launch_of(args);
    if (launch == nullptr) {
      return std::nullopt;
    }
    const auto call = std::ranges::find_if(calls_, [&](const Call& one) {
      return one.thread == launch->thread && one.span.holds(launch->time);
    });
    return call == calls_.end() ? std::nullopt : std::optional(call->size);
  }

 private:
  struct Call {
    Span span;
    Json thread;
    CollectiveSize size;
  };

  bool in_step(const Json& event) const {
    return has_text(event, "cat", "cpu_op") && event.contains("tid") && event.contains("ts") &&
           event["ts"].is_number() && step_.holds(event["ts"].get<double>());
  }

  static bool is_all_reduce_call(const Json& event) {
    const auto args = event.find("args");
    const bool other =
        args->contains("Collective name") && !has_text(*args, "Collective name", "allreduce");
    return !other && (has_text(event, "name", "nccl:all_reduce") ||
                      has_text(event, "name", "c10d::allreduce_") ||
                      has_text(event, "name", "record_param_comms"));
  }

  const StepSpan& step_;
  std::set<Json> threads_;     // autograd's own
  std::set<size_t> backward_;  // operators that run there, by the id that kernels carry
  std::map<size_t, Launch> launches_;
  std::vector<Call> calls_;
};

std::optional<AllReduce> all_reduce_of(const JsonNode& kernel, const Span& span,
                                       const JsonNode& args, const Host& host) {
  const std::string name = kernel.at("name").text();
  const bool named = args.has("Collective name");
  if (named ? !has_text(args.value(), "Collective name", "allreduce")
            : name.find("AllReduce") == std::string::npos) {
    return std::nullopt;
  }
  if (sums_whole_numbers(args, name)) {
    return std::nullopt;
  }
  const auto size = args.has("In msg nelems") ? collective_size(args) : host.size_of_call(args);
  const auto ranks = args.find("Group size");
  const std::optional<DType> dtype = size && size->dtype ? size->dtype : dtype_in_kernel_name(name);
  check(dtype.has_value(), kernel.place(), ": all-reduce '", name,
        "' does not say its type, expected float32, float16 or bfloat16 in its name or its dtype");
  return AllReduce{.span = span,
                   .numel = size ? std::optional(size->numel) : std::nullopt,
                   .dtype = *dtype,
                   .ranks = ranks ? ranks->count() : 1};
}

Step read_step(const JsonNode& events, const StepSpan& whole) {
  Step step;
  step.whole = whole;
  const Host host(events, whole);
  step.forward = step.backward = {std::numeric_limits<double>::max(), 0};
  for (size_t i = 0; i < events.size(); ++i) {
    const JsonNode event = events[i];
    if (!has_text(event.value(), "cat", "kernel")) {
      continue;
    }
    const JsonNode args = event.at("args");
    if (!host.is_of_step(event, args)) {
      continue;
    }
    const Span span = span_of(event);
    if (has_text(event.value(), "name", "nccl")) {
      if (const auto exchange = all_reduce_of(event, span, args, host)) {
        step.exchanges.push_back(*exchange);
      }
      continue;
    }
    Span& part = host.is_backward(args) ? step.backward : step.forward;
    part = {std::min(part.begin, span.begin), std::max(part.end, span.end)};
    step.computed_until = std::max(step.computed_until, span.end);
  }
  std::ranges::sort(step.exchanges, {}, [](const AllReduce& one) { return one.span.begin; });
  return step;
}

// What a trace does not say, whoever reads it has to.
void fill_sizes(Step& step, std::span<const size_t> elements, size_t number,
                std::string_view name) {
  const auto silent = static_cast<size_t>(std::ranges::count_if(
      step.exchanges, [](const AllReduce& one) { return !one.numel.has_value(); }));
  if (!elements.empty()) {
    check(elements.size() == step.exchanges.size(), name, ": elements of ", elements.size(),
          " all-reduces are given, step ", number, " has ", step.exchanges.size(),
          ", expected one for each, in the order in which they leave");
    for (size_t i = 0; i < elements.size(); ++i) {
      step.exchanges[i].numel = elements[i];
    }
    return;
  }
  check(silent == 0, name, ": ", silent, " of the ", step.exchanges.size(), " all-reduces of step ",
        number,
        " do not say their elements, expected a trace that was recorded with "
        "record_shapes=True or by PyTorch from 2.2 on, or the elements of each, in the order in "
        "which they leave (--elements)");
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
    numel += static_cast<double>(*exchange.numel);
    profile.ranks = std::max(profile.ranks, exchange.ranks);
  }
  for (const AllReduce& exchange : step.exchanges) {
    const double ready_s =
        std::max(before_s, (exchange.span.begin - step.backward.begin) * kTraceUnit);
    LayerProfile layer;
    layer.name = concat("bucket ", profile.layers.size());
    layer.numel = *exchange.numel;
    layer.dtype = exchange.dtype;
    layer.backward_s = ready_s - before_s;
    layer.ready_s = ready_s;
    layer.exchange_s = (exchange.span.end - exchange.span.begin) * kTraceUnit;
    layer.update_s = update_s * static_cast<double>(*exchange.numel) / numel;
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

Profile import_kineto(std::string_view json, size_t step, std::string_view name,
                      std::span<const size_t> elements) {
  const Json parsed = parse_json(json, name);
  const JsonNode events = JsonNode(parsed, concat(name, ": ")).at("traceEvents");
  const std::vector<StepSpan> steps = steps_of(events);
  check(!steps.empty(), name,
        ": no ProfilerStep events, expected a trace of torch.profiler with its step() called");
  check(step < steps.size(), name, ": step ", step, ", must be below ", steps.size(),
        ", the trace's steps");
  Step found = read_step(events, steps[step]);
  check(!found.exchanges.empty(), name, ": step ", step,
        " has no all-reduce kernel, expected DistributedDataParallel over NCCL");
  fill_sizes(found, elements, step, name);
  check(found.backward.begin < found.backward.end, name, ": step ", step,
        " has no kernel that autograd launched, expected a backward pass on a GPU");
  Profile profile = profile_of(found);
  profile.model = name;
  if (const auto job = JsonNode(parsed, concat(name, ": ")).find("distributedInfo")) {
    if (const auto ranks = job->find("world_size"); ranks && profile.ranks == 1) {
      profile.ranks = ranks->count();
    }
  }
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
