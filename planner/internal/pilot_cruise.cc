// The choice, and cruising under the guard and with an eye on the link.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// Of the step: exchanges that are short in it vary by as much from one window to the next.
constexpr double kMuchOfStep = 1.0 / 3;
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
    begin_tuning();
  }
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
  // What became shorter has gained that already: only of much of the step is there more to gain.
  const auto is_another = [&](double than, double band) {
    return (now > band * than && now - than > options.least_change * step) ||
           (now * band < than && than - now > std::max(options.least_change, kMuchOfStep) * step);
  };
  if (expected_s <= 0) {
    // A few steps of a trial say less than a window, but enough to see that the link has changed
    // since.
    const double band = options.link_band * options.link_band;
    expected_s = timed_s > 0 && is_another(timed_s, band) ? timed_s : now;
  }
  const bool differs = is_another(expected_s, options.link_band);
  const double exposed = running.off() ? exposed_now() : -1;
  const bool worth_a_look = exposed < 0 || may_gain(exposed, step);
  const bool changed = differs && (differed || std::abs(now - expected_s) > kMuchOfStep * step);
  differed = differs;
  if (!link_changed && changed) {
    link_changed = true;
    note("link", running.name,
         concat(known ? "exchanges of" : "", " a step took ", now, " s in a window, expected ",
                expected_s,
                !worth_a_look ? " s: still too small a part of the step to gain anything"
                : may_probe() ? " s: measured anew"
                              : " s: to be measured anew when enough steps have run"),
         {{"measured_s", now},
          {"expected_s", expected_s},
          {"band", options.link_band},
          {"step_s", step}});
  } else if (link_changed && !changed) {
    link_changed = false;  // it has come back
  }
  if (link_changed && !worth_a_look) {
    link_changed = differed = false;
    expected_s = now;
    return false;
  }
  if (link_changed && may_probe()) {
    wants_costs = true;
    dense_step_s = running.off() ? step : 0;  // what was known is of the old link
    dense_exposed_s = exposed;
    rest_seen_s = exposed_s.empty() ? 0 : step - exposed_now();
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
  if (verdict.overall == Verdict::kLoosen) {
    loosen_due = verdict;
  }
  if (watch_link() || (differed && !link_changed)) {
    return;  // what may be another link decides nothing about the plan
  }
  const double step = typical_of(step_s);
  if (compressed && dense_step_s > 0 && step >= dense_step_s && !link_changed) {
    not_faster(step);
    return;
  }
  if (replaced_s > 0 && step >= replaced_s && !link_changed) {
    back_to_replaced(step);
    return;
  }
  replaced_s = 0;
  if (!compressed && look_again(step)) {
    return;
  }
  const bool may_pay = exposed_now() < 0 || may_gain(exposed_now(), step);
  if (!compressed && !retry.ladder.empty() && steps >= retry.from_step && may_pay && may_retry()) {
    begin_retry("it is time to look again whether compression pays", step);
    return;
  }
  if (const auto due = std::exchange(loosen_due, std::nullopt)) {
    if (level == ceiling) {
      grow_older();
    } else {
      obey(*due);
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
