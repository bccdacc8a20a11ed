// From the choice on: tuning, and cruising under the guard and with an eye on the link.

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// What another number of streams or bucket size must gain, of the step.
constexpr double kTuningGain = 0.01;
/// Complaints after which the plan complained of is not tried again, and windows without one behind
/// which they are forgotten: every change of the learning rate is a complaint.
constexpr size_t kMostHarm = 2, kForgiven = 10;

/// Such a plan has nothing that norms could be blamed on.
bool sends_nearly_all(const PilotPlan& plan) { return is_wide(plan.spec); }

}  // namespace

void Pilot::State::choose() {
  if (retry.timing) {
    end_retry();
    return;
  }
  const std::string from = running.name;
  std::map<std::string, double> numbers;
  double fastest = 0;
  for (Timed& each : timed) {
    if (each.step_s.empty()) {
      each.out = true;
      continue;
    }
    const double middle = typical_of(each.step_s);
    numbers["step_s of " + each.plan.name] = middle;
    note_waits(each.plan, numbers);
    if (each.plan.off()) {
      dense_step_s = middle;  // in turn with the others: the machine was the same for all
      dense_unseen = false;
    }
    if (!each.out) {
      fastest = fastest == 0 ? effective_s(each) : std::min(fastest, effective_s(each));
    }
  }
  if (dense_step_s == 0) {
    dense_step_s = dense_predicted_s;
    dense_unseen = true;
  }
  // Where "none" had no turn its first window counts: it may be the least lossy of the fast ones.
  const Timed* taken = nullptr;
  for (const Timed& each : timed) {
    const bool fast = !each.out && effective_s(each) <= (1 + options.tolerance) * fastest;
    if (fast && (taken == nullptr || each.plan.loss < taken->plan.loss)) {
      taken = &each;
    }
  }
  numbers[dense_name()] = dense_step_s;
  numbers["tolerance"] = options.tolerance;
  const bool off_is_fast =
      taken == nullptr || (dense_step_s > 0 && dense_step_s <= (1 + options.tolerance) * fastest);
  if (off_is_fast && (taken == nullptr || !taken->plan.off())) {
    ladder = {off};
    level = ceiling = 0;
    keep_for_later(off, dense_step_s);
    cruise(off);
    note("choose", from,
         taken == nullptr ? "nothing that was timed may go on: off"
                          : "without compression a step is as fast as any that was timed: off",
         std::move(numbers));
    plan_retry();
    return;
  }
  const PilotPlan plan = taken->plan;
  // As of steps, the faster half: where the link changed in the middle of its turns, the old one.
  const double expected = typical_of(taken->exchange_s.empty() ? taken->step_s : taken->exchange_s);
  std::erase_if(ladder, [&](const PilotPlan& each) {
    return each.loss > plan.loss || (each.loss == plan.loss && each.name != plan.name);
  });
  if (std::ranges::find(ladder, plan.name, &PilotPlan::name) == ladder.end()) {
    ladder.push_back(plan);
  }
  if (!ladder.front().off()) {
    ladder.insert(ladder.begin(), off);
  }
  level = ceiling = ladder.size() - 1;
  harm = 0;
  keep_for_later(plan, typical_of(taken->step_s));
  cruise(plan);
  timed_s = expected;
  note("choose", from,
       plan.off() ? "not compressing is as fast as any that was timed: off"
                  : "the least lossy of those within the tolerance of the fastest",
       std::move(numbers));
  if (plan.off()) {
    plan_retry();
  }
  const bool worth_tuning =
      !taken->exchange_s.empty() ? expected > options.tolerance * typical_of(taken->step_s) : true;
  if (worth_tuning && again == 0) {
    const double middle = typical_of(taken->step_s);
    begin_tuning();
    if (phase == Phase::kTune) {
      bandit.add(0, middle);
      run(arms[arm = bandit.next()]);
    }
  }
}

void Pilot::State::begin_tuning() {
  arms = {running};
  const size_t largest = largest_bucket(running, parameters);
  for (const int streams : options.streams) {
    PilotPlan plan = running;
    if (plan.plan.buckets.size() < static_cast<size_t>(streams) && largest > 0) {
      // Streams carry whole buckets: there must be as many.
      plan = with_largest_bucket(running, parameters, largest / static_cast<size_t>(streams) + 1);
    }
    plan.streams = std::min(streams, static_cast<int>(plan.plan.buckets.size()));
    plan.name = name_of(plan, parameters);
    if (std::ranges::find(arms, plan.name, &PilotPlan::name) == arms.end()) {
      arms.push_back(std::move(plan));
    }
  }
  for (const size_t numel : {largest / 2, largest * 2}) {
    PilotPlan plan = with_largest_bucket(running, parameters, std::max<size_t>(numel, 1));
    if (largest > 0 && plan.plan.buckets != running.plan.buckets) {
      arms.push_back(std::move(plan));
    }
  }
  arms_expected_s.assign(arms.size(), 0);
  arms_expected_s[0] = timed_s;
  bandit = Bandit(arms.size());
  turns_left = options.tuning_turns;
  if (arms.size() > 1 && turns_left > 0) {
    phase = Phase::kTune;
  }
}

void Pilot::State::end_tuning_turn(const PilotWindow& window) {
  bandit.add(arm, typical_of(step_s));
  if (arms_expected_s[arm] == 0) {
    arms_expected_s[arm] = exchange_or_step_s();
  }
  if (const std::string why = collapse_of(window); !why.empty()) {
    obey({.overall = Verdict::kOff, .reason = "while streams were tuned: " + why});
    return;
  }
  if (--turns_left == 0) {
    finish_tuning();
    return;
  }
  const size_t next = bandit.next();
  if (next != arm) {
    run(arms[arm = next]);
  }
}

void Pilot::State::finish_tuning() {
  const std::string from = running.name;
  size_t best = bandit.best();
  if (bandit.median(best) > (1 - kTuningGain) * bandit.median(0)) {
    best = 0;
  }
  std::map<std::string, double> numbers;
  for (size_t i = 0; i < arms.size(); ++i) {
    if (bandit.turns(i) > 0) {
      numbers["step_s of " + arms[i].name] = bandit.median(i);
    }
  }
  for (PilotPlan& plan : ladder) {
    if (plan.name != arms[0].name && !plan.off()) {
      plan.streams = std::min<int>(arms[best].streams,
                                   static_cast<int>(std::max<size_t>(plan.plan.buckets.size(), 1)));
      plan.name = name_of(plan, parameters);
    }
  }
  ladder[level] = arms[best];
  chosen_step_s *= bandit.median(best) / bandit.median(0);
  cruise(arms[best]);
  // The link may have changed since, or even before its first turn. Exchanges that share a link each
  // take the longer.
  const bool share = !exchange_s.empty() && arms[best].streams > arms[0].streams;
  const double times = share ? static_cast<double>(arms[best].streams) / arms[0].streams : 1;
  timed_s = std::min(arms_expected_s[best], times * arms_expected_s[0]);
  note("tune", from,
       best == 0 ? "streams and bucket sizes stay: none gains more than a hundredth"
                 : "the fastest of the streams and bucket sizes that were tried",
       std::move(numbers));
}

bool Pilot::State::may_probe() const {
  const double turn_steps = static_cast<double>(1 + options.trial_steps);
  const double cost =
      static_cast<double>(options.candidates * std::min<size_t>(2, options.trial_rounds)) *
      turn_steps;
  return static_cast<double>(again) + cost <=
         options.most_probing * static_cast<double>(steps) + 2 * cost;
}

double Pilot::State::exchange_or_step_s() const {
  return exchange_s.empty() ? typical_of(step_s) : median_of(exchange_s);
}

// True when costs are wanted: the plan goes on until they are there.
bool Pilot::State::watch_link() {
  const bool known = !exchange_s.empty();
  const double step = typical_of(step_s);
  const double now = exchange_or_step_s();
  const auto is_another = [&](double than, double band) {
    return (now > band * than || now * band < than) &&
           std::abs(now - than) > options.least_change * step;
  };
  if (expected_s <= 0) {
    // A few steps of a trial say less than a window, but enough to see that the link has changed
    // since.
    const double band = options.link_band * options.link_band;
    expected_s = timed_s > 0 && is_another(timed_s, band) ? timed_s : now;
  }
  const bool changed = is_another(expected_s, options.link_band);
  if (!link_changed && changed) {
    link_changed = true;
    note("link", running.name,
         concat(known ? "exchanges of" : "", " a step took ", now, " s in a window, expected ",
                expected_s,
                may_probe() ? " s: measured anew"
                            : " s: to be measured anew when enough steps have run"),
         {{"measured_s", now},
          {"expected_s", expected_s},
          {"band", options.link_band},
          {"step_s", step}});
  } else if (link_changed && !changed) {
    link_changed = false;  // it has come back
  }
  if (link_changed && may_probe()) {
    wants_costs = true;
    dense_step_s = running.off() ? step : 0;  // what was known is of the old link
    dense_unseen = false;
    return true;
  }
  return false;
}

void Pilot::State::end_cruise_window(const PilotWindow& window) {
  if (world_size == 1) {
    return;
  }
  const bool compressed = !running.off();
  const GuardVerdict verdict =
      guard.judge({.units = compressed ? window.norms : std::vector<GuardNorms>{},
                   .loss = window.loss,
                   .dense = !compressed,
                   .steps = window.step_s.size(),
                   .skipped = window.skipped});
  const bool harm_seen = verdict.overall == Verdict::kOff ||
                         (verdict.overall == Verdict::kTighten && !sends_nearly_all(running));
  if (compressed && harm_seen) {
    obey(verdict);
    return;
  }
  quiet = level == ceiling ? quiet + 1 : 0;
  if (quiet >= kForgiven) {
    harm = 0;
  }
  if (watch_link()) {
    return;
  }
  const double step = typical_of(step_s);
  if (compressed && dense_step_s > 0 && step >= dense_step_s) {
    not_faster(step);
    return;
  }
  if (!compressed && !retry.ladder.empty() && steps >= retry.from_step && may_retry()) {
    begin_retry("it is time to look again whether compression pays", step);
    return;
  }
  if (verdict.overall == Verdict::kLoosen) {
    if (level == ceiling) {
      grow_older();
    } else {
      obey(verdict);
    }
  }
}

void Pilot::State::obey(const GuardVerdict& verdict) {
  const std::string from = running.name;
  std::map<std::string, double> numbers{{"gain", verdict.gain},
                                        {"error", verdict.error},
                                        {"residual", verdict.residual},
                                        {"mean_norm", verdict.mean_norm},
                                        {"norm_change", verdict.norm_change},
                                        {"loss_deviations", verdict.loss_deviations}};
  if (verdict.overall == Verdict::kLoosen) {
    if (level < ceiling) {
      ++level;
      cruise(ladder[level]);
      note("loosen", from, verdict.reason, std::move(numbers));
    }
    return;
  }
  quiet = 0;
  if (level == 0) {
    return;  // nothing is compressed: whatever it is, it is not that
  }
  if (verdict.overall == Verdict::kOff || (level == ceiling && ++harm >= kMostHarm)) {
    ruled_out = std::min(ruled_out, ladder[level].loss);
    ceiling = level - 1;
    harm = 0;
  }
  level = verdict.overall == Verdict::kOff ? 0 : level - 1;
  cruise(ladder[level]);
  note(std::string(to_string(verdict.overall)), from, verdict.reason, std::move(numbers));
}

}  // namespace gradwire::planner
