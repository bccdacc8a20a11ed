#include "gradwire/planner/internal/pilot_state.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"

namespace gradwire::planner {
namespace {

constexpr size_t kMostDecisions = 1000;

/// Whether a step sends what the next one does not: powersgd's left factors, then its right ones,
/// which may be of very different size.
bool sides_alternate(const PlanOptions& plan) {
  const auto alternates = [](const CompressorSpec& spec) {
    return spec.choice.rank != 0 && spec.choice.rounds == 1;
  };
  return alternates(plan.spec) || std::ranges::any_of(plan.rules, [&](const SpecRule& rule) {
           return alternates(rule.spec);
         });
}

/// Each value becomes the mean of its pair, in the order they came; the last of an odd number that
/// of the last two.
std::vector<double> in_pairs(const std::vector<double>& each) {
  std::vector<double> means = each;
  for (size_t i = 0; i + 1 < each.size(); i += 2) {
    means[i] = means[i + 1] = (each[i] + each[i + 1]) / 2;
  }
  if (each.size() % 2 == 1 && each.size() > 1) {
    means.back() = (each[each.size() - 2] + each.back()) / 2;
  }
  return means;
}

}  // namespace

Pilot::State::State(std::vector<ParamInfo> of, int ranks, PilotOptions with)
    : parameters(std::move(of)), world_size(ranks), options(std::move(with)), guard(options.guard) {
  validate(options);
  check(world_size >= 1, "pilot: world_size is ", world_size, ", must be at least 1");
  few_messages = options.tuning_turns > 0;
  specs = {"bf16"};
  for (const std::string& text : options.specs) {
    const std::string spec = to_string(parse_spec(text));
    if (!asks_for_nothing(spec) && std::ranges::find(specs, spec) == specs.end()) {
      specs.push_back(spec);
    }
  }
  off.plan = options.plan;
  off.plan.spec = {};
  off.plan.exchange = "auto";
  off.plan.buckets.clear();
  off.plan.exchanges.clear();
  off.name = "none";
  make_plan(parameters, off.plan);
  running = off;
  if (world_size == 1) {
    ladder = {off};
    phase = Phase::kCruise;
    note("choose", off.name, "one rank: nothing is exchanged", {});
  }
}

size_t Pilot::State::window_steps() const {
  switch (phase) {
    case Phase::kMeasure:
      return 1 + options.measure_steps;
    case Phase::kTime:
    case Phase::kTune:
      return 1 + options.trial_steps +
             (sides_alternate(running.plan) ? options.trial_steps % 2 : 0);
    case Phase::kCruise:
      break;
  }
  return options.window_steps;
}

void Pilot::State::check_costs(const PilotCosts& costs) const {
  check(costs.ready_s.size() == parameters.size(), "pilot: costs have ", costs.ready_s.size(),
        " ready times, expected one for each of ", parameters.size(), " parameters");
  for (size_t p = 0; p < costs.ready_s.size(); ++p) {
    check(std::isfinite(costs.ready_s[p]) && costs.ready_s[p] >= 0, "pilot: gradient of '",
          parameters[p].name, "' is ready after ", costs.ready_s[p],
          " s, must be finite and not negative");
  }
  check_link(costs.alpha_s, costs.bytes_per_s);
  for (const std::string& spec : specs) {
    const auto found = costs.codecs.find(spec);
    check(found != costs.codecs.end(), "pilot: costs do not price '", spec,
          "', expected a codec for each of specs()");
    validate(found->second, spec);
  }
}

void Pilot::State::check_link(double alpha_s, double bytes_per_s) {
  check(std::isfinite(alpha_s) && alpha_s >= 0, "pilot: a message's start-up is ", alpha_s,
        " s, must be finite and not negative");
  check(std::isfinite(bytes_per_s) && bytes_per_s > 0, "pilot: the link carries ", bytes_per_s,
        " bytes per second, must be finite and above 0");
}

void Pilot::State::check_window(const PilotWindow& window) const {
  check(!wants_costs, "pilot: a window has ended, expected set_costs() first");
  check(window.step_s.size() == window_steps(), "pilot: a window of ", window.step_s.size(),
        " steps, expected ", window_steps());
  const auto positive = [](std::span<const double> seconds, std::string_view name, bool zero) {
    for (size_t i = 0; i < seconds.size(); ++i) {
      check(std::isfinite(seconds[i]) && (seconds[i] > 0 || (zero && seconds[i] == 0)),
            "pilot: ", name, " of step ", i, " of the window took ", seconds[i],
            " s, must be finite and ", zero ? "not negative" : "above 0");
    }
  };
  positive(window.step_s, "step", false);
  check(window.exchange_s.empty() || window.exchange_s.size() == window.step_s.size(),
        "pilot: ", window.exchange_s.size(), " exchange times of ", window.step_s.size(),
        " steps, expected none or as many");
  positive(window.exchange_s, "exchange", true);
  check(window.exposed_s.empty() || window.exposed_s.size() == window.step_s.size(), "pilot: ",
        window.exposed_s.size(), " exposed times of ", window.step_s.size(),
        " steps, expected none or as many");
  positive(window.exposed_s, "waiting for the exchange", true);
  check(window.skipped <= window.step_s.size(), "pilot: ", window.skipped, " steps skipped of ",
        window.step_s.size(), ", expected at most as many");
  check(window.norms.empty() || window.norms.size() == parameters.size(), "pilot: norms of ",
        window.norms.size(), " parameters, expected none or ", parameters.size());
}

// The first step after a change grows buffers and meets ranks that replanned for different times.
void Pilot::State::skip_first(const PilotWindow& window) {
  const size_t first = phase == Phase::kCruise ? 0 : 1;
  const auto rest = [first](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<ptrdiff_t>(std::min(first, all.size())),
                               all.end());
  };
  step_s = rest(window.step_s);
  exchange_s = rest(window.exchange_s);
  exposed_s = rest(window.exposed_s);
  if (sides_alternate(running.plan)) {
    step_s = in_pairs(step_s);
    exchange_s = in_pairs(exchange_s);
    exposed_s = in_pairs(exposed_s);
  }
}

void Pilot::State::note(const std::string& what, const std::string& from, const std::string& reason,
                        std::map<std::string, double> numbers) {
  if (log.size() == kMostDecisions) {
    log.erase(log.begin());
  }
  log.push_back({.step = steps,
                 .what = what,
                 .from = from,
                 .to = running.name,
                 .reason = reason,
                 .numbers = std::move(numbers)});
}

void Pilot::State::run(const PilotPlan& plan) {
  running = plan;
  ++epoch;
}

void Pilot::State::cruise(const PilotPlan& plan) {
  phase = Phase::kCruise;
  chosen_once = true;
  expected_s = timed_s = 0;  // the first window says what is usual
  replaced_s = 0;
  differed = false;
  loosen_due.reset();
  guard.plan_changed();
  run(plan);
}

void Pilot::State::end_measuring(const PilotWindow& window) {
  // Its loss is what later ones are compared with; norms of the first few steps are not.
  GuardVerdict verdict = guard.judge(
      {.loss = window.loss, .dense = running.off(), .steps = window.step_s.size()});
  if (verdict.overall != Verdict::kOff && !running.off()) {
    verdict = Guard(options.guard).judge({.units = window.norms, .steps = window.step_s.size()});
  }
  if (!running.off() && verdict.overall == Verdict::kOff) {  // less is for the guard to say, later
    ruled_out = running.loss;
    const std::string from = running.name;
    guard.plan_changed();
    run(off);  // which is measured in its place
    std::map<std::string, double> numbers{{"gain", verdict.gain}, {"error", verdict.error}};
    if (window.loss != GuardWindow::kUnknown) {
      numbers["loss"] = window.loss;
    }
    note("drop", from, "in the first window: " + verdict.reason, std::move(numbers));
    return;
  }
  measured_step_s = typical_of(step_s);
  rest_seen_s = exposed_s.empty() ? 0 : measured_step_s - exposed_now();
  if (!running.off()) {
    wants_costs = true;
    return;
  }
  dense_step_s = measured_step_s;
  dense_exposed_s = exposed_now();
  if (dense_exposed_s >= 0 && !may_gain(dense_exposed_s, dense_step_s)) {
    stay_untried("the exchange holds up too small a part of the step to gain anything",
                 {{"step_s", dense_step_s}, {"exposed_s", dense_exposed_s}});
    return;
  }
  wants_costs = true;
}

// How what is tried ruins the loss; empty: it does not. Of steps that are left out it is not
// blamed: a loss scaler that looks for its scale leaves out several running.
std::string Pilot::State::collapse_of(const PilotWindow& window) {
  const GuardVerdict verdict =
      guard.judge({.loss = window.loss, .dense = running.off(), .steps = window.step_s.size()});
  return verdict.overall == Verdict::kOff && !running.off() ? verdict.reason : "";
}

void Pilot::State::end_turn(const PilotWindow& window) {
  Timed& now = timed[turn];
  now.step_s.insert(now.step_s.end(), step_s.begin(), step_s.end());
  now.exchange_s.insert(now.exchange_s.end(), exchange_s.begin(), exchange_s.end());
  now.exposed_s.insert(now.exposed_s.end(), exposed_s.begin(), exposed_s.end());
  if (chosen_once) {
    again += window.step_s.size();
  }
  if (const std::string why = collapse_of(window); !why.empty()) {
    note("drop", running.name, "while it was timed: " + why, {{"loss", window.loss}});
    now.out = true;
    ruled_out = std::min(ruled_out, now.plan.loss);
    std::erase_if(ladder, [&](const PilotPlan& plan) { return plan.loss >= now.plan.loss; });
    if (ladder.empty()) {
      ladder = {off};
    }
    for (Timed& other : timed) {
      other.out = other.out || other.plan.loss >= now.plan.loss;
    }
  }
  next_turn();
}

// Whether what was left out unseen, by its prediction, would have had a turn by what others took.
bool Pilot::State::none_may_win() const {
  if (retry.timing || dense_step_s > 0 ||
      std::ranges::any_of(timed, [](const Timed& each) { return each.plan.off(); })) {
    return false;
  }
  double fastest = std::numeric_limits<double>::infinity();
  for (const Timed& each : timed) {
    fastest = each.step_s.empty() ? fastest : std::min(fastest, effective_s(each));
  }
  return dense_predicted_s <= kNotWorthATurn * fastest;
}

void Pilot::State::next_turn() {
  do {
    ++turn;
    if (turn == timed.size()) {
      turn = 0;
      ++round;
      double fastest = std::numeric_limits<double>::infinity(), effective = fastest;
      for (const Timed& each : timed) {
        if (!each.out) {
          fastest = std::min(fastest, typical_of(each.step_s));
          effective = std::min(effective, effective_s(each));
        }
      }
      // What is behind by so much, or behind one that sends more by what lossiness has to gain; now,
      // and when the job is older.
      const auto has_lost = [&](const Timed& each) {
        const double step = typical_of(each.step_s);
        return (step > (1 + options.hopeless) * fastest &&
                effective_s(each) > (1 + options.hopeless) * effective) ||
               std::ranges::any_of(timed, [&](const Timed& other) {
                 return other.plan.loss < each.plan.loss && other.plan.waits <= each.plan.waits &&
                        !other.step_s.empty() &&
                        step > (1 + options.tolerance) * typical_of(other.step_s);
               });
      };
      for (Timed& each : timed) {
        each.out = each.out || has_lost(each);
      }
    }
  } while (round < rounds() && timed[turn].out);
  const auto in = std::ranges::count(timed, false, &Timed::out);
  if (round >= rounds() || in == 0 || (round > 0 && in == 1)) {
    if (none_may_win()) {
      timed.emplace_back().plan = off;
      turn = timed.size() - 1;
      round = rounds() - 1;  // one turn
      run(off);
    } else {
      choose();
    }
  } else {
    run(timed[turn].plan);
  }
}

}  // namespace gradwire::planner
