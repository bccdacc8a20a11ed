// A plan that was not faster than "none", or is no longer, may be so another time: the machine was
// busy for a window, or steps take longer for another reason. The two are timed in turn, now and
// then.

#include <algorithm>
#include <utility>

#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {

bool Pilot::State::may_retry() const {
  const size_t rounds_again = std::min<size_t>(2, options.trial_rounds);
  const auto cost = static_cast<double>(2 * rounds_again * (1 + options.trial_steps));
  return static_cast<double>(again) + cost <=
         options.most_probing * static_cast<double>(steps) + 2 * cost;
}

// Called where a window of a plan that compresses was no faster than steps without it were.
void Pilot::State::not_faster(double step) {
  // Where it is much slower, trials of it are not worth their steps; than a prediction is no proof.
  const bool worth_timing = dense_unseen || step < (1 + options.hopeless) * dense_step_s;
  if (dense_unseen && !may_retry()) {
    return;  // it goes on until there are steps for it
  }
  retry.ladder = ladder;
  retry.level = level;
  retry.ceiling = ceiling;
  if (worth_timing && may_retry()) {
    begin_retry(dense_unseen ? "a step with compression is not faster than one without is "
                               "predicted to be: both are timed"
                             : "a step with compression is not faster than one without was: both "
                               "are timed anew",
                step);
    return;
  }
  const std::string from = running.name;
  std::map<std::string, double> numbers{{"step_s", step}, {"dense_step_s", dense_step_s}};
  follow(step);
  chosen_step_s = 0;  // what a step without compression takes now is to be seen
  stay_off();
  numbers["next_look_after_steps"] = static_cast<double>(retry.wait);
  note("off", from, "a step with compression is not faster than one without was",
       std::move(numbers));
}

// Called where off was chosen: what was about as fast may have been unlucky in its few steps.
void Pilot::State::plan_retry() {
  const double most = (1 + options.tolerance) * dense_step_s;
  const auto near = [&](const Timed& each) {
    return !each.plan.off() && each.plan.loss < ruled_out && !each.step_s.empty() &&
           effective_s(each) <= most;
  };
  double fastest = most;
  for (const Timed& each : timed) {
    fastest = near(each) ? std::min(fastest, effective_s(each)) : fastest;
  }
  const Timed* taken = nullptr;
  for (const Timed& each : timed) {
    const bool fast = near(each) && effective_s(each) <= (1 + options.tolerance) * fastest;
    if (fast && (taken == nullptr || each.plan.loss < taken->plan.loss)) {
      taken = &each;
    }
  }
  if (taken != nullptr) {
    const uint64_t wait = kFirstWait * options.window_steps;
    retry = {.ladder = {running, taken->plan},
             .level = 1,
             .ceiling = 1,
             .from_step = steps + wait,
             .wait = wait};
  }
}

void Pilot::State::stay_off() {
  const uint64_t first = kFirstWait * options.window_steps;
  retry.wait = std::max(first, 2 * retry.wait);
  retry.from_step = steps + retry.wait;
  level = ceiling = 0;
  cruise(retry.ladder.front());
}

void Pilot::State::begin_retry(const std::string& why, double step) {
  const std::string from = running.name;
  follow(step);
  timed.clear();
  timed.emplace_back().plan = retry.ladder[retry.level];
  timed.emplace_back().plan = retry.ladder.front();
  retry.timing = true;
  phase = Phase::kTime;
  turn = round = 0;
  run(timed.front().plan);
  note("retry", from, why, {{"step_s", step}, {dense_name(), dense_step_s}});
}

// Called in choose()'s place, with both timed.
void Pilot::State::end_retry() {
  const std::string from = running.name;
  const PilotPlan plan = timed[0].plan;
  const double with_s = typical_of(timed[0].step_s);
  dense_step_s = typical_of(timed[1].step_s);
  dense_unseen = false;
  retry.timing = false;
  std::map<std::string, double> numbers{{"step_s of " + plan.name, with_s},
                                        {"dense_step_s", dense_step_s},
                                        {"tolerance", options.tolerance}};
  const bool harmful = plan.loss >= ruled_out;
  if (!harmful && dense_step_s > (1 + options.tolerance) * effective_s(plan, with_s)) {
    const Retry back = std::exchange(retry, {});
    ladder = back.ladder;
    level = back.level;
    ceiling = back.ceiling;
    chosen_step_s = with_s;
    cruise(plan);
    note("choose", from, "timed in turn, compression is faster than none", std::move(numbers));
    return;
  }
  chosen_step_s = dense_step_s;
  stay_off();
  if (harmful) {
    retry = {};
  } else {
    numbers["next_look_after_steps"] = static_cast<double>(retry.wait);
  }
  note("off", from,
       harmful ? "what was timed again did harm: off"
               : "timed in turn, compression is not faster than none: off",
       std::move(numbers));
}

}  // namespace gradwire::planner
