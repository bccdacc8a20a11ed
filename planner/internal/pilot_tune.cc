// Tuning: a few numbers of streams and bucket sizes of the chosen plan, in turn.

#include <algorithm>

#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {
namespace {

/// What another number of streams or bucket size must gain, of the step.
constexpr double kTuningGain = 0.01;

size_t buckets_of(const PilotPlan& plan) { return plan.plan.buckets.size(); }

}  // namespace

void Pilot::State::begin_tuning() {
  arms = {running};
  const auto add = [&](PilotPlan plan) {
    const auto same = [&](const PilotPlan& each) {
      return each.streams == plan.streams && each.plan.buckets == plan.plan.buckets;
    };
    if (std::ranges::none_of(arms, same)) {
      arms.push_back(std::move(plan));
    }
  };
  const size_t largest = largest_bucket(running, parameters, 1);
  const size_t divisible = largest_bucket(running, parameters, 2);
  // Fewer messages, then more; of these first those of several streams, which cost the least.
  add(with_largest_bucket(running, parameters, largest * 2));
  for (const int streams : options.streams) {
    PilotPlan plan = running;
    if (buckets_of(plan) < static_cast<size_t>(streams) && divisible > 0) {
      // Streams carry whole buckets: there must be as many.
      plan = with_largest_bucket(running, parameters, divisible / static_cast<size_t>(streams) + 1);
    }
    plan.streams = std::min(streams, static_cast<int>(buckets_of(plan)));
    plan.name = name_of(plan, parameters);
    add(std::move(plan));
  }
  if (divisible > 0) {
    add(with_largest_bucket(running, parameters, std::max<size_t>(divisible / 2, 1)));
  }
  arms_expected_s.assign(arms.size(), 0);
  arms_expected_s[0] = timed_s;
  bandit = Bandit(arms.size());
  turns_left = options.tuning_turns;
  if (arms.size() > 1 && turns_left > 0) {
    phase = Phase::kTune;
    arm = 0;  // it runs; in its trial the machine may have been busier than it is now
  }
}

/// What is far behind has no further turn; nor has what goes further in the same direction a first.
/// The plan as it was stays: all are compared with it.
void Pilot::State::drop_hopeless_arms() {
  const double most = (1 + options.hopeless) * bandit.median(bandit.best());
  for (size_t lost = 1; lost < arms.size(); ++lost) {
    if (bandit.turns(lost) == 0 || bandit.median(lost) <= most) {
      continue;
    }
    bandit.drop(lost);
    const bool more = buckets_of(arms[lost]) >= buckets_of(arms[0]);
    for (size_t i = 1; i < arms.size(); ++i) {
      const bool further = buckets_of(arms[i]) >= buckets_of(arms[lost]) &&
                           arms[i].streams >= arms[lost].streams;
      if (more && further && bandit.turns(i) == 0) {
        bandit.drop(i);
      }
    }
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
  drop_hopeless_arms();
  if (--turns_left == 0 || bandit.left() == 1) {
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
      std::string key = "step_s of " + arms[i].name;
      while (numbers.contains(key)) {
        key += ", cut otherwise";
      }
      numbers[key] = bandit.median(i);
    }
  }
  for (PilotPlan& plan : ladder) {
    if (plan.name != arms[0].name && !plan.off()) {
      plan.streams = std::min<int>(arms[best].streams,
                                   static_cast<int>(std::max<size_t>(buckets_of(plan), 1)));
      plan.name = name_of(plan, parameters);
    }
  }
  few_messages = few_messages && buckets_of(arms[best]) <= buckets_of(arms[0]);
  ladder[level] = arms[best];
  chosen_step_s *= bandit.median(best) / bandit.median(0);
  cruise(arms[best]);
  // The link may have changed since, or even before its first turn. Exchanges that share a link each
  // take the longer.
  const bool share = !exchange_s.empty() && arms[best].streams > arms[0].streams;
  const double times = share ? static_cast<double>(arms[best].streams) / arms[0].streams : 1;
  timed_s = std::min(arms_expected_s[best], times * arms_expected_s[0]);
  note("tune", from,
       best == 0 ? "streams and bucket sizes stay: none that was tried gains more than a hundredth"
                 : "the fastest of the streams and bucket sizes that were tried",
       std::move(numbers));
}

}  // namespace gradwire::planner
