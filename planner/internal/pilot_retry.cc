// A plan that was no longer faster than "none" may be so again: the machine was busy for a window,
// or steps take longer for another reason. The two are timed in turn, now and then.

#include <algorithm>
#include <utility>

#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// Windows without compression before the first look; twice as many before each that follows.
constexpr uint64_t kFirstWait = 5;

}  // namespace

bool Pilot::State::may_retry() const {
  const size_t rounds_again = std::min<size_t>(2, options.trial_rounds);
  const auto cost = static_cast<double>(2 * rounds_again * (1 + options.trial_steps));
  return static_cast<double>(again) + cost <=
         options.most_probing * static_cast<double>(steps) + 2 * cost;
}

// Called where a window of a plan that compresses was no faster than steps without it were.
void Pilot::State::not_faster(double step) {
  retry.ladder = ladder;
  retry.level = level;
  retry.ceiling = ceiling;
  // Where it is much slower, trials of it are not worth their steps.
  if (step < (1 + options.hopeless) * dense_step_s && may_retry()) {
    begin_retry("a step with compression is not faster than one without was: both are timed anew",
                step);
    return;
  }
  const std::string from = running.name;
  std::map<std::string, double> numbers{{"step_s", step}, {"dense_step_s", dense_step_s}};
  stay_off();
  numbers["next_look_after_steps"] = static_cast<double>(retry.wait);
  note("off", from, "a step with compression is not faster than one without was",
       std::move(numbers));
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
  timed.clear();
  timed.emplace_back().plan = retry.ladder[retry.level];
  timed.emplace_back().plan = retry.ladder.front();
  retry.timing = true;
  phase = Phase::kTime;
  turn = round = 0;
  run(timed.front().plan);
  note("retry", from, why, {{"step_s", step}, {"dense_step_s", dense_step_s}});
}

// Called in choose()'s place, with both timed.
void Pilot::State::end_retry() {
  const std::string from = running.name;
  const PilotPlan plan = timed[0].plan;
  const double with_s = typical_of(timed[0].step_s);
  dense_step_s = typical_of(timed[1].step_s);
  retry.timing = false;
  std::map<std::string, double> numbers{{"step_s of " + plan.name, with_s},
                                        {"dense_step_s", dense_step_s},
                                        {"tolerance", options.tolerance}};
  const bool harmful = plan.loss >= ruled_out;
  if (!harmful && dense_step_s > (1 + options.tolerance) * with_s) {
    const Retry back = std::exchange(retry, {});
    ladder = back.ladder;
    level = back.level;
    ceiling = back.ceiling;
    cruise(plan);
    note("choose", from, "timed in turn, compression is faster than none", std::move(numbers));
    return;
  }
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
