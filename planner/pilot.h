#pragma once
// The auto-pilot's decisions: measure without compression, predict, time the best few on the job's
// own steps, take the least lossy of the fastest, and keep watching.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/plan.h"
#include "gradwire/planner/bucket_options.h"
#include "gradwire/planner/decision.h"
#include "gradwire/planner/guard.h"

namespace gradwire::planner {

/// What an optimizer makes of a gradient that comes late, but whole.
enum class Updates : unsigned char {
  kScaled,  ///< divided by the size of gradients, of the element or layer, as by Adam, LAMB, LARS or
            ///< signs: what comes once in a hundred steps moves it as far as any other step does
  kLinear,  ///< a sum of gradients, as SGD's, with momentum or without, where none are clipped: at the
            ///< same rate it moves it as far as it would have in time
};
std::string_view to_string(Updates updates);
/// @throws InvalidArgument for another word than "scaled" and "linear".
Updates parse_updates(std::string_view text);

struct PilotOptions {
  /// Compressors to choose from besides "none" and "bf16", which always take part. One whose bytes
  /// depend on the shapes of parameters (powersgd) takes all of them, not some buckets.
  std::vector<std::string> specs = {"int8", "int4", "topk:1%,int4"};
  /// Exchanges in flight to try: a bandit over these and fewer or more buckets, after the compressor
  /// was chosen. {1}: no others are tried.
  std::vector<int> streams = {1, 2, 4};
  /// What every plan starts from: rules, seed, dtype, the means that are allowed (`mean`). Its
  /// spec, exchange, buckets and exchanges are the pilot's.
  PlanOptions plan{};
  /// Of the gradients: on a GPU exchanges are those that are there.
  DeviceType device = DeviceType::kCpu;
  double tolerance = 0.03;   ///< the least lossy plan within this of the fastest is taken
  /// Of a dense step, what its exchange must hold up before anything is tried on steps of the job,
  /// and what a plan that rounds to less than 16 bits must be predicted to save of it.
  double least_gain = 0.1;
  /// What a plan's waiting weighs. A job that has run for t steps is taken to run for t more; of
  /// these the last `waits` (PilotPlan) come late, so that its steps count as (1 + waiting waits / t)
  /// times as long. Of what chooses by size, where updates are linear, no more than the square root:
  /// gradients of so many steps that differ add up to the norm of so few. 0: only step times count,
  /// at any age.
  double waiting = 1;
  Updates updates = Updates::kScaled;  ///< of the optimizer; where it is not known, kScaled
  uint64_t age = 0;          ///< steps that the job has run before this pilot
  size_t candidates = 4;     ///< timed at most, "none" and "bf16" among them; at least 2
  size_t measure_steps = 4;  ///< of the first window, and one more that does not count
  size_t trial_steps = 2;    ///< of a candidate's turn, and one more that does not count
  size_t trial_rounds = 3;   ///< turns of each candidate, interleaved
  /// A candidate that is slower than the fastest by this much after a round has no further turn, nor
  /// has another number of streams or buckets after its first.
  double hopeless = 0.2;
  /// Of the bandit, at most; the first is the plan's as it is. Where there are any, several buckets
  /// must be predicted to gain a tenth of the step. 0: none.
  size_t tuning_turns = 6;
  size_t window_steps = 20;  ///< that the guard judges together while cruising
  /// Largest share of all steps that goes into measuring again after the first choice.
  double most_probing = 0.05;
  /// How far the measured exchange may be from what it was when the plan was chosen, as a factor,
  /// up or down, for a window, before the link counts as changed; for two in a row where that is
  /// less than a third of the step.
  double link_band = 2;
  /// Changes of the exchange by less than this share of the step are not worth a look, nor is what
  /// became shorter by less than a third of the step.
  double least_change = 0.05;
  GuardOptions guard{};
};

/// @throws InvalidArgument for an option out of its range, or a spec that does not parse.
void validate(const PilotOptions& options);

/// What to run. Caller's duty: make_plan(parameters, plan) for a Reducer with so many streams.
struct PilotPlan {
  /// "topk:1%,int4, 3 buckets, 2 streams"; of a plan that mixes specs, their shares of the elements:
  /// "int4 for 20% of the gradient, none for 80%, 2 buckets".
  std::string name;
  /// The lossiest of its buckets, what a caller sets that knows one spec alone; "none": off.
  std::string spec = "none";
  PlanOptions plan{};
  int streams = 1;
  double loss = 0;         ///< part of the dense bytes that is not sent, mean over elements
  /// Steps that an element's gradient waits until it is sent, mean over elements: 1 / density - 1, of
  /// what sends something of every element in every step 0.
  double waits = 0;
  double predicted_s = 0;  ///< a step; 0: not predicted
  bool off() const { return asks_for_nothing(spec); }
};

/// What has been measured of the machine, the same on all ranks: the caller takes the largest of
/// the ranks, of times, and the smallest of rates.
struct PilotCosts {
  /// When backward has made each parameter's gradient, by id, in seconds since the first one or
  /// since backward began.
  std::vector<double> ready_s = {};
  double alpha_s = 0;      ///< start-up of a message (probe_link())
  double bytes_per_s = 0;  ///< of a rank's link, 1 / beta
  /// By canonical spec (Pilot::specs()).
  std::map<std::string, CodecCost> codecs = {};
};

/// What the steps of a window have shown, the same on all ranks.
struct PilotWindow {
  std::vector<double> step_s = {};  ///< of each step since the last window: the slowest rank's
  /// Of each of these steps, seconds that its exchanges took inside the transport, all buckets
  /// together: the smallest of the ranks, since the last one to come waits for nobody. Empty: not
  /// known, then the time of steps tells of changes of the link.
  std::vector<double> exchange_s = {};
  /// Likewise, seconds that the end of the step waited for exchanges: the part of them that backward
  /// does not hide, the smallest of the ranks. Empty: not known, then those of exchanges count.
  std::vector<double> exposed_s = {};
  double loss = GuardWindow::kUnknown;  ///< mean over steps and ranks
  size_t skipped = 0;                   ///< steps left out for gradients that were not finite
  std::vector<GuardNorms> norms =
      {};  ///< by parameter id, sums over the ranks; empty: not measured
};

enum class Phase : unsigned char {
  kMeasure,  ///< without compression, or by begin()'s plan; then costs are wanted
  kTime,     ///< candidates in turn
  kTune,     ///< streams and bucket sizes in turn
  kCruise,   ///< under the guard
};
std::string_view to_string(Phase phase);

/// Decides; does nothing else. No clock, device or network: a state machine of what it is fed, so
/// that ranks which feed it the same numbers run the same plans.
///
/// The caller's loop:
///   if begins_slowly(link): begin(what is known of costs)
///   run plan() for window_steps() steps
///   if end_window(what they have shown): replan, to plan() and plan().streams
///   if wants_costs(): measure, set_costs(...), replan
class Pilot {
 public:
  /// Parameters as of make_plan(), in the order of the forward pass.
  /// @throws InvalidArgument as validate() and make_plan(), and for fewer than one rank.
  Pilot(std::vector<ParamInfo> parameters, int world_size, PilotOptions options = {});
  ~Pilot();
  Pilot(Pilot&&) noexcept;
  Pilot& operator=(Pilot&&) noexcept;

  Phase phase() const;
  /// What runs now. Valid until the next call that changes it.
  const PilotPlan& plan() const;
  size_t window_steps() const;
  /// Whether the caller shall measure norms in (some step of) this window.
  bool wants_norms() const;
  /// Whether set_costs() is to be called before the next step.
  bool wants_costs() const;
  /// Canonical specs whose codecs set_costs() must price; "none" costs nothing and is not among
  /// them.
  std::span<const std::string> specs() const;

  /// Whether the first window, without compression, would spend so long on such a link that begin()
  /// is worth pricing the compressors for: dense exchanges of 50 ms and more.
  /// @throws InvalidArgument for a start-up or rate that cannot be.
  bool begins_slowly(double alpha_s, double bytes_per_s) const;
  /// Optional, before the first window: costs are known, but nothing of the job's own times
  /// (ready_s is not read). Where a dense exchange is predicted to take three times as long as the
  /// fastest, and begins_slowly(), the first window runs with the least lossy of those that are
  /// nearly as fast, and "none" is timed later only if it may win.
  /// @returns whether plan() has changed. @throws InvalidArgument behind a window, and as
  /// set_costs(); nothing has changed then.
  bool begin(const PilotCosts& costs);

  /// What is known of the optimizer by now, the same on all ranks; what is decided later goes by it.
  void set_updates(Updates updates);
  Updates updates() const;

  /// @returns whether plan() has changed. @throws InvalidArgument for a window of another number of
  /// steps than window_steps(), times that are not positive and finite, another number of norms
  /// than parameters, and while costs are wanted; nothing has changed then.
  bool end_window(const PilotWindow& window);
  /// @returns whether plan() has changed. @throws InvalidArgument for times or rates that cannot
  /// be, a codec without a price, and when costs are not wanted; nothing has changed then.
  bool set_costs(const PilotCosts& costs);

  /// Every decision, oldest first; the last 1000.
  std::span<const Decision> log() const;
  std::string log_json_lines() const;
  uint64_t steps() const;
  uint64_t probing_steps() const;  ///< of them, in phases other than kCruise

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire::planner
