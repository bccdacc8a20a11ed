#pragma once
// What a pilot knows, and its transitions.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/planner/internal/bandit.h"
#include "gradwire/planner/pilot.h"

namespace gradwire::planner {

/// Predicted to be slower than the fastest by this factor: not worth a turn.
inline constexpr double kNotWorthATurn = 1.5;
/// By what a plan that may lose must be predicted to be ahead, what waits counted, before it runs:
/// by two predictions, each of which is off by a tenth.
inline constexpr double kByFar = 0.2;
/// Windows without compression before the first look whether it pays; twice as many before each
/// that follows.
inline constexpr uint64_t kFirstWait = 5;

struct Pilot::State {
  State(std::vector<ParamInfo> of, int ranks, PilotOptions with);

  std::vector<ParamInfo> parameters;
  int world_size = 1;
  PilotOptions options;
  std::vector<std::string> specs;  // that costs must price
  Guard guard;

  Phase phase = Phase::kMeasure;
  PilotPlan running;
  PilotPlan off;  // of the first window
  bool wants_costs = false;
  int epoch = 0;  // counts changes of the plan
  uint64_t steps = 0, probing = 0;
  uint64_t again = 0;  // of the probing steps, those after the first choice
  bool chosen_once = false;
  std::vector<Decision> log;

  // What the last window has shown, without its first step where that does not count.
  std::vector<double> step_s, exchange_s, exposed_s;
  double dense_step_s = 0;    // median, of the fastest plan of loss 0 on this link; 0: not known
  bool dense_unseen = false;  // it is a prediction: "none" has never run on this link
  double dense_predicted_s = 0;
  double dense_exposed_s = -1;  // of dense_step_s, what waited for exchanges; below 0: not known
  double measured_step_s = 0;   // median of the first window
  double rest_s = 0;            // of a step beside waiting for exchanges; 0: not known
  double rest_seen_s = 0;       // the same by what steps waited, not by prediction; 0: not known

  /// A plan that is timed.
  struct Timed {
    PilotPlan plan;
    std::vector<double> step_s, exchange_s, exposed_s;
    bool out = false;
  };
  std::vector<Timed> timed;
  size_t turn = 0, round = 0;
  std::vector<PilotPlan> untried;  // predicted, but not to be tried on steps of the job as it was

  /// Where nothing could be gained nothing was tried: from that step on it is looked at again.
  struct Look {
    uint64_t from_step = 0;  // 0: something was tried
    uint64_t wait = 0;       // steps before the next one
    bool due = false;        // the window before says so: once may be chance
  };
  Look look;

  /// Plans from off to the chosen one, less and less of the gradient sent.
  std::vector<PilotPlan> ladder;
  size_t level = 0;    // that runs
  size_t ceiling = 0;  // that may run
  size_t harm = 0;     // times the guard complained at the ceiling
  size_t quiet = 0;    // windows at the ceiling since
  /// Plans that leave out as much as this have done harm for good, on whatever link.
  double ruled_out = std::numeric_limits<double>::infinity();

  /// A lossier plan that was faster than the chosen one beside it, or is predicted to be: for an
  /// older job.
  struct Later {
    PilotPlan plan;
    double step_s = 0;
    double exchange_s = 0;  ///< 0: not known
    bool was_timed = true;
  };
  std::vector<Later> later;
  double replaced_s =
      0;  // what the plan took before one that was never timed; 0: it has shown itself
  double chosen_step_s = 0;  // what the chosen one took beside them; 0: not known yet

  // Tuning: arms[0] is the chosen plan as it is.
  std::vector<PilotPlan> arms;
  std::vector<double> arms_expected_s;  // as timed_s, of their first turns; 0: had none
  Bandit bandit{0};
  size_t arm = 0, turns_left = 0;
  /// Plans have one bucket where several gain little by prediction: of who tries more of them,
  /// until more were better.
  bool few_messages = false;

  // Cruising: seconds of the exchange (of the step, where that is not known) that are expected.
  double expected_s = 0;                   // 0: the first window will say
  double timed_s = 0;                      // what they took when the plan was timed; 0: it was not
  bool differed = false;                   // the last window's did from that: once may be chance
  std::optional<GuardVerdict> loosen_due;  // what the guard said then
  bool link_changed = false;               // and nothing was done about it yet

  /// A plan that was not faster than "none": once in a while the two are timed anew, in turn.
  struct Retry {
    std::vector<PilotPlan> ladder = {};  // as it was; empty: there is none
    size_t level = 0, ceiling = 0;
    bool timing = false;
    uint64_t from_step = 0;
    uint64_t wait = 0;  // steps before the next one
  };
  Retry retry;

  std::string dense_name() const {
    return dense_unseen ? "dense_step_s, predicted" : "dense_step_s";
  }
  /// Steps that the job has run.
  uint64_t job_age() const { return options.age + steps; }
  size_t window_steps() const;
  void check_costs(const PilotCosts& costs) const;
  static void check_link(double alpha_s, double bytes_per_s);
  void check_window(const PilotWindow& window) const;
  void skip_first(const PilotWindow& window);

  bool begins_slowly(double alpha_s, double bytes_per_s) const;
  bool begin(const PilotCosts& costs);
  bool predict(const PilotCosts& costs);
  void end_measuring(const PilotWindow& window);
  void end_turn(const PilotWindow& window);
  bool none_may_win() const;
  double exposed_now() const;
  double lean_s(const PilotPlan& plan) const;
  double exposed_of(const PilotPlan& plan) const;
  bool may_gain(double exposed, double step) const;
  bool gains_clearly(const PilotPlan& plan, double dense) const;
  bool is_young_for(const PilotPlan& plan) const;
  bool is_choice_by_far(const PilotPlan& plan, std::span<const PilotPlan> plans) const;
  bool may_try(const PilotPlan& plan, std::span<const PilotPlan> plans) const;
  void stay_untried(const std::string& why, std::map<std::string, double> numbers);
  bool look_again(double step);
  double late_steps(const PilotPlan& plan) const;
  double effective_s(const PilotPlan& plan, double seconds) const;
  double effective_s(const Timed& each) const;
  double earliest_effective_s(std::span<const PilotPlan> plans) const;
  void keep_for_later(const PilotPlan& chosen, double seconds);
  void follow(double now_s);
  bool is_ripe(const Later& each) const;
  void grow_older();
  void back_to_replaced(double step);
  void next_turn();
  void choose();
  void begin_tuning();
  void drop_hopeless_arms();
  void end_tuning_turn(const PilotWindow& window);
  void finish_tuning();
  void end_cruise_window(const PilotWindow& window);
  double exchange_or_step_s() const;
  bool watch_link();
  void obey(const GuardVerdict& verdict);
  std::string collapse_of(const PilotWindow& window);
  void not_faster(double step);
  void begin_retry(const std::string& why, double step);
  void end_retry();
  bool may_retry() const;
  void stay_off();
  void plan_retry();

  void run(const PilotPlan& plan);
  void cruise(const PilotPlan& plan);
  bool may_probe() const;
  size_t rounds() const {
    return chosen_once ? std::min<size_t>(2, options.trial_rounds) : options.trial_rounds;
  }
  void note_waits(const PilotPlan& plan, std::map<std::string, double>& numbers) const;
  void note(const std::string& what, const std::string& from, const std::string& reason,
            std::map<std::string, double> numbers);
};

}  // namespace gradwire::planner
