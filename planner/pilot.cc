#include "gradwire/planner/pilot.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/bandit.h"
#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/internal/pilot_state.h"

namespace gradwire::planner {

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kMeasure:
      return "measure";
    case Phase::kTime:
      return "time";
    case Phase::kTune:
      return "tune";
    case Phase::kCruise:
      return "cruise";
  }
  return "unknown";
}

std::string_view to_string(Updates updates) {
  return updates == Updates::kLinear ? "linear" : "scaled";
}

Updates parse_updates(std::string_view text) {
  check(text == "linear" || text == "scaled", "updates: are '", text,
        "', must be linear or scaled");
  return text == "linear" ? Updates::kLinear : Updates::kScaled;
}

void validate(const PilotOptions& options) {
  for (const std::string& text : options.specs) {
    check(!changes_by_step(parse_spec(text)), "pilot: '", text,
          "' is another spec in its first steps, expected one without start= or warmup=: what ",
          "those send is the pilot's to choose");
  }
  check(!options.streams.empty(), "pilot: 0 numbers of streams, expected at least 1");
  for (const int streams : options.streams) {
    check(streams >= 1 && streams <= 16, "pilot: ", streams, " streams, must be from 1 to 16");
  }
  check(options.plan.dtype == DType::kFloat32, "pilot: gradients are of dtype ",
        to_string(options.plan.dtype), ", expected float32, which is what prices are of");
  const auto at_least = [](size_t value, size_t least, std::string_view name) {
    check(value >= least, "pilot: ", name, " is ", value, ", must be at least ", least);
  };
  at_least(options.candidates, 2, "candidates");
  at_least(options.measure_steps, 1, "measure_steps");
  at_least(options.trial_steps, 1, "trial_steps");
  at_least(options.trial_rounds, 1, "trial_rounds");
  at_least(options.window_steps, 2, "window_steps");
  const auto in = [](double value, double least, double most, std::string_view name) {
    check(value >= least && value <= most, "pilot: ", name, " is ", value, ", must be in [", least,
          ", ", most, "]");
  };
  in(options.tolerance, 0, 1, "tolerance");
  in(options.least_gain, 0, 1, "least_gain");
  in(options.waiting, 0, 1000, "waiting");
  in(options.hopeless, 0, 100, "hopeless");
  in(options.most_probing, 0, 1, "most_probing");
  in(options.link_band, 1.01, 100, "link_band");
  in(options.least_change, 0, 1, "least_change");
  validate(options.guard);
}

Pilot::Pilot(std::vector<ParamInfo> parameters, int world_size, PilotOptions options)
    : state_(std::make_unique<State>(std::move(parameters), world_size, std::move(options))) {}
Pilot::~Pilot() = default;
Pilot::Pilot(Pilot&&) noexcept = default;
Pilot& Pilot::operator=(Pilot&&) noexcept = default;

Phase Pilot::phase() const { return state_->phase; }
const PilotPlan& Pilot::plan() const { return state_->running; }
size_t Pilot::window_steps() const { return state_->window_steps(); }
bool Pilot::wants_norms() const {
  // Norms say what is left out: of bf16, next to nothing.
  const bool judged = state_->phase == Phase::kCruise || state_->phase == Phase::kMeasure;
  return judged && !is_wide(state_->running.spec);
}
bool Pilot::wants_costs() const { return state_->wants_costs; }
std::span<const std::string> Pilot::specs() const { return state_->specs; }
std::span<const Decision> Pilot::log() const { return state_->log; }
std::string Pilot::log_json_lines() const { return to_json_lines(state_->log); }
uint64_t Pilot::steps() const { return state_->steps; }
uint64_t Pilot::probing_steps() const { return state_->probing; }

bool Pilot::begins_slowly(double alpha_s, double bytes_per_s) const {
  return state_->begins_slowly(alpha_s, bytes_per_s);
}

void Pilot::set_updates(Updates updates) { state_->options.updates = updates; }
Updates Pilot::updates() const { return state_->options.updates; }

bool Pilot::begin(const PilotCosts& costs) { return state_->begin(costs); }

bool Pilot::set_costs(const PilotCosts& costs) {
  State& s = *state_;
  check(s.wants_costs, "pilot: costs are given, expected them only where wants_costs()");
  s.check_costs(costs);
  return s.predict(costs);
}

bool Pilot::end_window(const PilotWindow& window) {
  State& s = *state_;
  s.check_window(window);
  const std::string before = s.running.name;
  const int epoch = s.epoch;
  s.steps += window.step_s.size();
  if (s.phase != Phase::kCruise) {
    s.probing += window.step_s.size();
  }
  s.skip_first(window);
  switch (s.phase) {
    case Phase::kMeasure:
      s.end_measuring(window);
      break;
    case Phase::kTime:
      s.end_turn(window);
      break;
    case Phase::kTune:
      s.end_tuning_turn(window);
      break;
    case Phase::kCruise:
      s.end_cruise_window(window);
      break;
  }
  return s.epoch != epoch;
}

}  // namespace gradwire::planner
