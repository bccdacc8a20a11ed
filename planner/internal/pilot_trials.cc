// What may have turns on steps of the job. They cost steps, and what they send is what the job
// learns from: nothing is tried where nothing can be gained, nor what may lose out of curiosity.

#include <algorithm>
#include <cmath>
#include <utility>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// Of a dense step that was never timed, kNotWorthATurn: predictions are off by a quarter now and
/// then.
constexpr double kUnseenNotWorthATurn = 2;

}  // namespace

/// Of a step of the window, seconds that it waited for exchanges; where that is not known, what
/// they took, which is no less. Below 0: not known either.
double Pilot::State::exposed_now() const {
  if (exposed_s.empty() && exchange_s.empty()) {
    return -1;
  }
  return typical_of(exposed_s.empty() ? exchange_s : exposed_s);
}

/// A predicted step, as short as the rest of one was seen to be. Where exchanges take longer than
/// the link says they weigh more, too.
double Pilot::State::lean_s(const PilotPlan& plan) const {
  return plan.predicted_s - (rest_seen_s > 0 ? std::max(0.0, rest_s - rest_seen_s) : 0);
}

/// What steps waited for exchanges when it was timed; below 0: it was not, or that is not known.
double Pilot::State::exposed_of(const PilotPlan& plan) const {
  const auto found =
      std::ranges::find_if(timed, [&](const Timed& each) { return each.plan.name == plan.name; });
  if (found != timed.end() && !found->exposed_s.empty()) {
    return typical_of(found->exposed_s);
  }
  return plan.off() ? dense_exposed_s : -1;
}

bool Pilot::State::may_gain(double exposed, double step) const {
  return exposed >= options.least_gain * step;
}

/// By its prediction, and by what dense steps have shown: no more can be saved than they wait.
bool Pilot::State::gains_clearly(const PilotPlan& plan, double dense) const {
  const double predicted = dense - plan.predicted_s;
  const double gain = dense_exposed_s >= 0 ? std::min(predicted, dense_exposed_s) : predicted;
  return gain >= options.least_gain * std::max(dense, dense_step_s);
}

/// Whether the job has not run for as many steps as gradients wait by the plan, with an optimizer
/// that makes as much of those that come late as of those that come in time.
bool Pilot::State::is_young_for(const PilotPlan& plan) const {
  const double density =
      parse_spec(plan.spec).choice.density;  // a plan may send some elements plainly
  const double waits = std::max(late_steps(plan), 1 / density - 1);
  return options.updates == Updates::kScaled &&
         static_cast<double>(job_age()) < options.waiting * waits;
}

/// Whether it is what would be chosen among them by their predictions, far before all that loses
/// nothing; or before it, where it runs already.
bool Pilot::State::is_choice_by_far(const PilotPlan& plan, std::span<const PilotPlan> plans) const {
  const double own = effective_s(plan, lean_s(plan));
  const double far = plan.spec == running.spec ? 1 : 1 + kByFar;
  return !is_young_for(plan) && std::ranges::all_of(plans, [&](const PilotPlan& other) {
    const double theirs = effective_s(other, lean_s(other));
    return may_lose(other.spec) ? is_young_for(other) || own <= theirs : far * own <= theirs;
  });
}

bool Pilot::State::may_try(const PilotPlan& plan, std::span<const PilotPlan> plans) const {
  if (plan.off()) {
    return true;
  }
  if (may_lose(plan.spec)) {
    return is_choice_by_far(plan, plans);
  }
  // That dense steps wait for long enough has been measured where it is known at all; a prediction
  // of the link alone may be wrong there.
  return (is_wide(plan.spec) && dense_exposed_s >= 0) || gains_clearly(plan, dense_predicted_s);
}

bool Pilot::State::predict(const PilotCosts& costs) {
  const int before = epoch;
  PredictedJob job{.parameters = parameters,
                   .world_size = world_size,
                   .options = options,
                   .costs = costs,
                   .rest_s = rest_s,
                   .few_messages = few_messages};
  if (rest_s == 0) {  // another link does not change it
    job.rest_s = rest_of_step(job, running.plan, measured_step_s);
  }
  std::vector<PilotPlan> plans = predict_candidates(job);
  std::erase_if(plans, [&](const PilotPlan& plan) { return plan.loss >= ruled_out; });
  rest_s = job.rest_s;
  wants_costs = false;
  link_changed = false;
  retry = {};
  const std::string from = running.name;
  std::map<std::string, double> numbers{{"alpha_s", costs.alpha_s},
                                        {"bytes_per_s", costs.bytes_per_s},
                                        {"dense_step_s", dense_step_s}};
  if (dense_exposed_s >= 0) {
    numbers["exposed_s"] = dense_exposed_s;
  }
  timed.clear();
  later.clear();
  ladder.clear();
  untried.clear();
  for (const PilotPlan& plan : plans) {
    numbers["predicted_s of " + plan.name] = plan.predicted_s;
    note_waits(plan, numbers);
    dense_predicted_s = plan.off() ? plan.predicted_s : dense_predicted_s;
  }
  std::vector<PilotPlan> tried;
  for (const PilotPlan& plan : plans) {
    (may_try(plan, plans) ? tried : untried).push_back(plan);
  }
  if (tried.size() == 1) {
    stay_untried(concat("no plan that loses nothing is predicted to save ",
                        std::lround(100 * options.least_gain), "% of a step: off"),
                 std::move(numbers));
    return epoch != before;
  }
  const double earliest = tried.front().predicted_s;
  const double earliest_effective = earliest_effective_s(tried);
  // The one for a young job might have no turn among several that are faster and make gradients
  // wait.
  const PilotPlan& young = *std::ranges::min_element(
      tried, {}, [&](const PilotPlan& plan) { return effective_s(plan, plan.predicted_s); });
  const auto always = [&](const PilotPlan& plan) {
    return is_always_considered(plan.spec) ||
           (options.candidates > 2 && &plan == &young && &plan != tried.data());
  };
  const auto hopeless = [&](const PilotPlan& plan) {
    const double unseen = plan.off() && dense_step_s == 0 ? kUnseenNotWorthATurn : kNotWorthATurn;
    return plan.predicted_s > unseen * earliest &&
           effective_s(plan, plan.predicted_s) > unseen * earliest_effective &&
           (!plan.off() || dense_step_s == 0 || dense_step_s > kNotWorthATurn * earliest_effective);
  };
  for (const PilotPlan& plan : tried) {
    const size_t left = options.candidates > timed.size() ? options.candidates - timed.size() : 0;
    const auto always_to_come = static_cast<size_t>(
        std::ranges::count_if(std::span(tried).subspan(static_cast<size_t>(&plan - tried.data())),
                              [&](const PilotPlan& p) { return always(p) && !hopeless(p); }));
    if (!hopeless(plan) && (always(plan) || left > always_to_come)) {
      timed.emplace_back().plan = plan;
    }
  }
  for (const PilotPlan& plan : plans) {
    const bool may_run = !may_lose(plan.spec) ||
                         std::ranges::find(tried, plan.name, &PilotPlan::name) != tried.end();
    if (may_run && (plan.off() || plan.predicted_s <= dense_predicted_s)) {
      ladder.push_back(plan);
    }
  }
  std::ranges::stable_sort(ladder, {}, &PilotPlan::loss);
  // A job may end with the first of them on trial: what makes gradients wait for later comes later.
  std::ranges::stable_sort(
      timed, {}, [&](const Timed& each) { return effective_s(each.plan, each.plan.predicted_s); });
  phase = Phase::kTime;
  turn = round = 0;
  look = {};
  run(timed.front().plan);
  note("predict", from, "the plans that are predicted to be fastest are timed in turn",
       std::move(numbers));
  return true;
}

/// Nothing is tried: it goes on without compression, or again.
void Pilot::State::stay_untried(const std::string& why, std::map<std::string, double> numbers) {
  const std::string from = running.name;
  const bool goes_on = running.off();
  const PilotPlan plan = goes_on ? running : off;
  const double exchange = goes_on && !exchange_s.empty() ? median_of(exchange_s) : 0;
  if (dense_step_s == 0) {
    dense_step_s = dense_predicted_s;
    dense_unseen = true;
  }
  ladder = {plan};
  level = ceiling = harm = 0;
  timed.clear();
  keep_for_later(plan, dense_step_s);
  cruise(plan);
  timed_s = exchange;
  epoch -= goes_on ? 1 : 0;
  look.wait = std::max(kFirstWait * options.window_steps, 2 * look.wait);
  look.from_step = steps + look.wait;
  look.due = false;
  numbers["least_gain"] = options.least_gain;
  numbers["next_look_after_steps"] = static_cast<double>(look.wait);
  note("choose", from, why, std::move(numbers));
}

/// Where nothing was tried: whether steps wait for the exchange by now, so that costs are wanted.
bool Pilot::State::look_again(double step) {
  const bool was_due = look.due;
  look.due = look.from_step > 0 && steps >= look.from_step && may_gain(exposed_now(), step);
  if (!look.due || !was_due || !may_probe()) {
    return false;
  }
  wants_costs = true;
  dense_step_s = measured_step_s = step;
  dense_exposed_s = exposed_now();
  rest_s = 0;  // it is not the exchange that has changed
  rest_seen_s = exposed_s.empty() ? 0 : step - dense_exposed_s;
  note("retry", running.name, "the exchange holds up more of a step by now: measured anew",
       {{"step_s", step}, {"exposed_s", dense_exposed_s}, {"least_gain", options.least_gain}});
  return true;
}

}  // namespace gradwire::planner
