// The first window's plan. Without compression it costs as many dense steps as are measured, which
// on a slow link is more than all that follows in a short job.

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>

#include "gradwire/comm/choose.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// Dense exchanges shorter than that are measured before anybody misses the time: five take a
/// quarter of a second. What part of a step they are is not known before.
constexpr double kShortExchange = 50e-3;
/// A link is slow where a dense exchange takes so many times as long as the fastest.
constexpr double kSlowLink = 3;

}  // namespace

bool Pilot::State::begins_slowly(double alpha_s, double bytes_per_s) const {
  check_link(alpha_s, bytes_per_s);
  const size_t numel = numel_of(parameters);
  const std::string_view dense[] = {"dense"};
  const auto costs = exchange_costs({.alpha_s = alpha_s,
                                     .bytes_per_s = bytes_per_s,
                                     .world_size = world_size,
                                     .numel = numel,
                                     .payload_bytes = sizeof(float) * numel},
                                    dense);
  return costs.front().seconds >= kShortExchange;
}

bool Pilot::State::begin(const PilotCosts& costs) {
  check(steps == 0 && phase == Phase::kMeasure && running.off(), "pilot: begins behind ", steps,
        " steps, phase '", to_string(phase),
        "', expected before the first window of 2 and more ranks");
  PilotCosts alone = costs;  // nothing is known of backward: all gradients are there at once
  alone.ready_s.assign(parameters.size(), 0);
  check_costs(alone);
  if (!begins_slowly(costs.alpha_s, costs.bytes_per_s)) {
    return false;
  }
  const std::vector<PilotPlan> all = predict_candidates({.parameters = parameters,
                                                         .world_size = world_size,
                                                         .options = options,
                                                         .costs = alone,
                                                         .few_messages = few_messages});
  std::vector<PilotPlan> plans;
  std::ranges::copy_if(all, std::back_inserter(plans), [&](const PilotPlan& plan) {
    return !may_lose(plan.spec) || is_choice_by_far(plan, all);
  });
  const double fastest = earliest_effective_s(plans);
  const auto dense = std::ranges::find_if(plans, [](const PilotPlan& plan) { return plan.off(); });
  if (dense->predicted_s < kSlowLink * fastest) {
    return false;
  }
  const auto lossiness = [&](const PilotPlan& plan) {
    const bool fast = effective_s(plan, plan.predicted_s) <= kNotWorthATurn * fastest;
    return fast ? plan.loss : std::numeric_limits<double>::infinity();
  };
  const PilotPlan plan = *std::ranges::min_element(plans, {}, lossiness);
  std::map<std::string, double> numbers{{"alpha_s", costs.alpha_s},
                                        {"bytes_per_s", costs.bytes_per_s}};
  for (const PilotPlan& each : all) {
    numbers["exchange_s of " + each.name] = each.predicted_s;
    note_waits(each, numbers);
  }
  const std::string from = running.name;
  run(plan);
  note("begin", from, "on such a link dense steps are too long to be measured first",
       std::move(numbers));
  return true;
}

}  // namespace gradwire::planner
