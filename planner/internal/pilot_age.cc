// What waits weighs in a young job. Of what sends a hundredth of the elements in a step each waits
// for a hundred steps, on average: a job of 60 steps never gets them back, one of 100,000 does not
// notice. Nobody says how long a job will run, so it is taken to run for as long again as it has.
// Where updates are sums of gradients, and the largest go first, less is lost: those of n steps
// that differ add up to the norm of sqrt(n).

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// What a step takes that took `step_s` where another took `before_s`, which now takes `now_s`.
/// What that is more than it was this one takes, too; of what is less, its share.
double beside(double step_s, double before_s, double now_s) {
  return step_s * std::min(1.0, now_s / before_s) + std::max(0.0, now_s - before_s);
}

}  // namespace

/// Steps that a job must run longer for what waits at the end of it.
double Pilot::State::late_steps(const PilotPlan& plan) const {
  const bool root = options.updates == Updates::kLinear && chooses_by_size(plan.spec);
  return root ? std::min(plan.waits, std::sqrt(plan.waits)) : plan.waits;
}

/// Seconds of a step, those included that the job must run longer for what waits at the end of it.
/// No job is taken to end before its first window does.
double Pilot::State::effective_s(const PilotPlan& plan, double seconds) const {
  const auto age = static_cast<double>(std::max<uint64_t>(job_age(), 1 + options.measure_steps));
  return seconds * (1 + options.waiting * late_steps(plan) / age);
}

double Pilot::State::effective_s(const Timed& each) const {
  return effective_s(each.plan, typical_of(each.step_s));
}

double Pilot::State::earliest_effective_s(std::span<const PilotPlan> plans) const {
  double earliest = std::numeric_limits<double>::infinity();
  for (const PilotPlan& plan : plans) {
    earliest = std::min(earliest, effective_s(plan, plan.predicted_s));
  }
  return earliest;
}

void Pilot::State::note_waits(const PilotPlan& plan, std::map<std::string, double>& numbers) const {
  if (plan.waits > 0) {
    numbers["waits_steps of " + plan.name] = late_steps(plan);
    numbers["age_steps"] = static_cast<double>(job_age());
    numbers["linear_updates"] = options.updates == Updates::kLinear ? 1 : 0;
  }
}

/// Those that were not tried by their prediction, as far as that of the chosen one was right: what
/// steps waited for exchanges, where that is known, and what is beside that.
void Pilot::State::keep_for_later(const PilotPlan& chosen, double seconds) {
  chosen_step_s = seconds;
  later.clear();
  for (const Timed& each : timed) {
    if (!each.out && each.plan.loss > chosen.loss && each.plan.waits > chosen.waits &&
        typical_of(each.step_s) < seconds) {
      later.push_back({.plan = each.plan,
                       .step_s = typical_of(each.step_s),
                       .exchange_s = each.exchange_s.empty() ? 0 : typical_of(each.exchange_s)});
    }
  }
  const double predicted_s = chosen.off() ? dense_predicted_s : chosen.predicted_s;
  for (const PilotPlan& plan : untried) {
    const double waited = exposed_of(chosen);
    const double expected =
        waited >= 0 && predicted_s > rest_s
            ? seconds - waited + beside(plan.predicted_s - rest_s, predicted_s - rest_s, waited)
            : beside(plan.predicted_s, predicted_s, seconds);
    if (plan.loss > chosen.loss && plan.waits > chosen.waits && expected < seconds) {
      later.push_back({.plan = plan, .step_s = expected, .was_timed = false});
    }
  }
}

/// The plan that runs takes so long now.
void Pilot::State::follow(double now_s) {
  for (Later& each : later) {
    if (chosen_step_s > 0) {
      each.step_s = beside(each.step_s, chosen_step_s, now_s);
    }
  }
  chosen_step_s = now_s;
}

/// Whether it is clearly faster than what runs, what waits counted.
bool Pilot::State::is_ripe(const Later& each) const {
  const double ahead = each.was_timed ? options.tolerance : kByFar;
  return !is_young_for(each.plan) &&
         effective_s(running, chosen_step_s) > (1 + ahead) * effective_s(each.plan, each.step_s);
}

// Called behind quiet windows of the lossiest plan that may run.
void Pilot::State::grow_older() {
  std::erase_if(later, [&](const Later& each) {
    return each.plan.loss >= ruled_out || each.plan.loss <= running.loss;
  });
  if (later.empty()) {
    return;
  }
  follow(typical_of(step_s));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double fastest = kNever;
  for (const Later& each : later) {
    fastest = is_ripe(each) ? std::min(fastest, effective_s(each.plan, each.step_s)) : fastest;
  }
  if (fastest == kNever) {
    return;
  }
  // Of those that are fast enough the first by its loss; the fastest is among them.
  const Later taken = *std::ranges::min_element(later, {}, [&](const Later& each) {
    const double step = effective_s(each.plan, each.step_s);
    return is_ripe(each) && step <= (1 + options.tolerance) * fastest ? each.plan.loss : kNever;
  });
  PilotPlan plan = taken.plan;
  plan.streams = std::min<int>(running.streams,
                               static_cast<int>(std::max<size_t>(plan.plan.buckets.size(), 1)));
  plan.name = name_of(plan, parameters);
  const std::string from = running.name;
  std::map<std::string, double> numbers{{"tolerance", options.tolerance},
                                        {"now_s of " + from, chosen_step_s},
                                        {"expected_s of " + plan.name, taken.step_s},
                                        {"was_timed", taken.was_timed ? 1 : 0}};
  note_waits(running, numbers);
  note_waits(plan, numbers);
  const double before_s = std::exchange(chosen_step_s, taken.step_s);
  std::erase_if(later, [&](const Later& each) { return each.plan.loss <= plan.loss; });
  ladder.resize(ceiling + 1);  // what is beyond has done harm
  ladder.push_back(plan);
  level = ceiling = ladder.size() - 1;
  harm = 0;
  retry = {};
  cruise(plan);
  if (taken.was_timed) {
    timed_s = taken.exchange_s > 0 ? taken.exchange_s : taken.step_s;
  } else {
    replaced_s = before_s;
  }
  note(
      "loosen", from,
      concat("the job is ", job_age(), " steps old: what waits weighs less than the time it saves"),
      std::move(numbers));
}

// Called where one that was never timed is not what it was predicted to be.
void Pilot::State::back_to_replaced(double step) {
  const std::string from = running.name;
  const double before_s = replaced_s;
  ladder.resize(level);
  level = ceiling = ladder.size() - 1;
  cruise(ladder[level]);
  chosen_step_s = before_s;
  note("tighten", from, "it was predicted to be faster than what ran before, and is not",
       {{"step_s", step}, {"before_s", before_s}});
}

}  // namespace gradwire::planner
