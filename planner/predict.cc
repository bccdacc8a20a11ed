#include "gradwire/planner/predict.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/steady_step.h"

namespace gradwire::planner {
namespace {

struct Span {
  double begin_s, end_s;
};

// Disjoint and in order, within [begin_s, end_s].
std::vector<Span> merged(std::vector<Span> spans, double begin_s, double end_s) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_s < b.begin_s; });
  std::vector<Span> out;
  for (Span span : spans) {
    span = {std::max(span.begin_s, begin_s), std::min(span.end_s, end_s)};
    if (span.begin_s >= span.end_s) {
      continue;
    }
    if (!out.empty() && span.begin_s <= out.back().end_s) {
      out.back().end_s = std::max(out.back().end_s, span.end_s);
    } else {
      out.push_back(span);
    }
  }
  return out;
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) {
    sum += span.end_s - span.begin_s;
  }
  return sum;
}

// How one draw's step divides.
struct Parts {
  double compute_s = 0, exposed_s = 0, exchange_s = 0;
};

Parts parts_of(const SteadyState& state) {
  // Worker 0 is the slowest at computing. Exchanges are of all workers.
  std::vector<Span> computing, busy;
  double exchange_s = 0;
  const std::vector<Task>& tasks = state.steps.graph.tasks();
  const std::vector<Resource>& resources = state.steps.graph.resources();
  for (TaskId t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    const Span span{state.timeline.begin_s[t], state.timeline.end_s[t]};
    if (task.resource == kNone || span.end_s <= state.begin_s) {
      continue;
    }
    const bool exchange = task.kind == TaskKind::kExchange;
    const bool input = task.kind == TaskKind::kIo || task.kind == TaskKind::kHostToDevice;
    if (exchange) {
      exchange_s += span.end_s - std::max(span.begin_s, state.begin_s);
    }
    if (task.worker == 0 && resources[task.resource].name == "compute") {
      computing.push_back(span);
      busy.push_back(span);
    } else if (!input) {
      busy.push_back(span);
    }
  }
  const double computes = length(merged(std::move(computing), state.begin_s, state.end_s));
  const double works = length(merged(std::move(busy), state.begin_s, state.end_s));
  const auto steps = static_cast<double>(state.window_steps);
  return {computes / steps, (works - computes) / steps, exchange_s / steps};
}

std::vector<CriticalTask> path_of(const SteadyState& state, const Profile& profile) {
  std::vector<CriticalTask> path;
  for (const TaskId id : critical_path(state.timeline, state.steps.step_end.back())) {
    const Task& task = state.steps.graph.tasks()[id];
    const double begin_s = std::max(state.timeline.begin_s[id], state.last_begin_s);
    const double seconds = state.timeline.end_s[id] - begin_s;
    if (seconds > 0 && task.kind != TaskKind::kBarrier) {
      path.push_back({task.kind, item_name(profile, task), begin_s - state.last_begin_s, seconds});
    }
  }
  return path;
}

}  // namespace

Prediction predict(const Profile& profile, const Cluster& cluster, const StepOptions& options) {
  validate(profile);
  validate(cluster);
  validate(profile, options);
  Prediction prediction{.schedule = options.schedule, .workers = cluster.workers};
  const size_t draws = cluster.jitter > 0 ? cluster.draws : 1;
  for (size_t draw = 0; draw < draws; ++draw) {
    const SteadyState state = steady_state(profile, cluster, options, draw);
    const Parts parts = parts_of(state);
    const double share = 1 / static_cast<double>(draws);
    const double step_s = state.step_s();
    prediction.step_s += step_s * share;
    prediction.compute_s += parts.compute_s * share;
    prediction.exposed_s += parts.exposed_s * share;
    prediction.exchange_s += parts.exchange_s * share;
    prediction.least_s = draw == 0 ? step_s : std::min(prediction.least_s, step_s);
    prediction.most_s = draw == 0 ? step_s : std::max(prediction.most_s, step_s);
    if (draw == 0) {
      prediction.exchanges =
          cluster.workers > 1 || options.exchange == StepOptions::Exchange::kMeasured
              ? state.steps.buckets.size()
              : 0;
      prediction.critical_path = path_of(state, profile);
    }
  }
  prediction.input_s =
      std::max(0.0, prediction.step_s - prediction.compute_s - prediction.exposed_s);
  prediction.samples_per_s =
      static_cast<double>(profile.batch * cluster.workers) / prediction.step_s;
  return prediction;
}

std::vector<ScalingPoint> scaling_curve(const Profile& profile, const Cluster& cluster,
                                        const StepOptions& options,
                                        std::span<const size_t> workers) {
  const auto with = [&](size_t count) {
    check(count > 0, "scaling_curve: 0 workers, must be at least 1");
    Cluster smaller = cluster;
    smaller.workers = count;
    if (!smaller.uneven.empty()) {
      check(count <= smaller.uneven.size(), "scaling_curve: ", count,
            " workers, must be at most the ", smaller.uneven.size(), " uneven ones given");
      smaller.uneven.resize(count);
    }
    return predict(profile, smaller, options);
  };
  const double alone = with(1).step_s;
  std::vector<ScalingPoint> curve;
  for (const size_t count : workers) {
    const Prediction prediction = with(count);
    const double speedup = static_cast<double>(count) * alone / prediction.step_s;
    curve.push_back({count, prediction.step_s, prediction.exposed_s, prediction.samples_per_s,
                     speedup, speedup / static_cast<double>(count)});
  }
  return curve;
}

std::vector<size_t> doubling_workers(const Cluster& cluster) {
  std::vector<size_t> counts;
  for (size_t count = 1; count < cluster.workers; count *= 2) {
    if (count <= cluster.gpus_per_node || count % cluster.gpus_per_node == 0) {
      counts.push_back(count);
    }
  }
  counts.push_back(cluster.workers);
  return counts;
}

}  // namespace gradwire::planner
