#include "gradwire/planner/autopilot.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>
#include <sstream>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/median.h"
#include "gradwire/planner/internal/self_measure.h"

namespace gradwire::planner {
namespace {

using Clock = std::chrono::steady_clock;

/// The probe before the first step is so much shorter: that a link is slow shows at once, in what
/// is not over as soon as a busy machine's hiccup.
constexpr int kFirstLook = 10;
constexpr std::chrono::microseconds kLeastLook{5000};
/// A later one takes no longer than so many steps did; nor is it worth its time where it would be
/// at most so many times as long as the first.
constexpr double kStepsOfProbe = 10, kLonger = 2;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct Autopilot::State {
  State(std::vector<ParamInfo> of, Transport& over, AutopilotOptions with)
      : parameters(std::move(of)),
        transport(over),
        options(std::move(with)),
        pilot(parameters, over.world_size(), options.pilot),
        stream(make_inline_stream(options.reducer.threads)),
        meter(parameters.size()) {
    check(transport.traits().device.type == DeviceType::kCpu,
          "autopilot: gradients are on a GPU, expected the CPU: there nothing can be timed");
    check(options.norm_steps >= 1, "autopilot: norm_steps is 0, must be at least 1");
    check(options.codec_numel >= 4096, "autopilot: codec_numel is ", options.codec_numel,
          ", must be at least 4096");
    begin();
    make_reducer(make_plan(parameters, pilot.plan().plan), pilot.plan().streams);
    read_specs();
    step_begin = Clock::now();
  }

  void make_reducer(Plan plan, int with_streams) {
    ReducerOptions of = options.reducer;
    of.streams = streams = with_streams;
    reducer = std::make_unique<Reducer>(std::move(plan), transport, of);
  }

  void read_specs() {
    specs.assign(parameters.size(), {});
    for (const PlanBucket& bucket : reducer->plan().buckets) {
      for (const PlanGroup& group : bucket.groups) {
        for (const Segment& segment : group.segments) {
          specs[segment.parameter] = group.spec;
        }
      }
    }
  }

  bool measures_norms() const {
    // Half of a short window's steps, which are judged by their faster half, stay as they are.
    const size_t most = std::max<size_t>(1, (pilot.window_steps() - 1) / 2);
    return kept_steps == 0 && pilot.wants_norms() &&
           step_s.size() + std::min(options.norm_steps, most) >= pilot.window_steps();
  }

  void end_step(double loss, bool skipped);
  void end_window();
  void change_plan();
  void begin();
  PilotCosts measure_costs(double step);
  LinkCosts link_of_now(std::chrono::microseconds budget);
  std::chrono::microseconds first_look() const {
    return std::min(options.probe.budget,
                    std::max(kLeastLook, options.probe.budget / kFirstLook));
  }
  ParamId largest() const;

  std::vector<ParamInfo> parameters;
  Transport& transport;
  AutopilotOptions options;
  Pilot pilot;
  std::unique_ptr<Stream> stream;
  Workspace workspace;
  Context context{*stream, workspace};
  std::unique_ptr<Reducer> reducer;
  std::optional<LinkCosts> first_link;  // until costs are wanted for the first time
  int streams = 1;
  uint64_t epoch = 0;
  size_t kept_steps = 0;              // to come, by another run's plan
  StepTrace left_behind;              // the last of a reducer that is gone
  std::vector<CompressorSpec> specs;  // of each parameter
  NormMeter meter;
  // Of the window so far, on this rank.
  std::vector<double> step_s, exchange_s, exposed_s;
  double loss_sum = 0;
  size_t losses = 0, skipped_steps = 0, norm_steps = 0;
  Clock::time_point step_begin;
};

void Autopilot::State::end_step(double loss, bool skipped) {
  if (kept_steps > 0) {
    if (--kept_steps == 0) {
      begin();
      change_plan();
    }
    step_begin = Clock::now();
    return;
  }
  step_s.push_back(std::max(seconds_since(step_begin), 1e-9));
  const std::vector<StepTrace>& traced = reducer->trace().steps();
  exchange_s.push_back(traced.empty() ? 0
                                      : 1e-6 * static_cast<double>(traced.back().transfer_us()));
  exposed_s.push_back(traced.empty() ? 0 : 1e-6 * static_cast<double>(traced.back().exposed_us()));
  if (loss != GuardWindow::kUnknown) {
    loss_sum += loss;
    ++losses;
  }
  skipped_steps += skipped ? 1 : 0;
  if (step_s.size() == pilot.window_steps()) {
    end_window();
  }
  step_begin = Clock::now();
}

// What all ranks have seen becomes the same numbers on all of them.
void Autopilot::State::end_window() {
  const size_t steps = step_s.size();
  std::vector<double> mine = step_s;
  mine.insert(mine.end(), exchange_s.begin(), exchange_s.end());
  mine.insert(mine.end(), exposed_s.begin(), exposed_s.end());
  mine.insert(mine.end(), {loss_sum, static_cast<double>(losses)});
  if (norm_steps > 0) {
    const double each = 1.0 / static_cast<double>(norm_steps);  // some steps may be left out
    for (const GuardNorms& norms : meter.norms()) {
      mine.insert(mine.end(), {each * norms.to_send, each * norms.sent, each * norms.residual,
                               each * norms.gradient, each * norms.mean});
    }
  }
  const auto rows = gather_doubles(mine, transport, context);
  const auto of_first = [&](size_t part) {
    const auto begin = rows[0].begin() + static_cast<ptrdiff_t>(part * steps);
    return std::vector<double>(begin, begin + static_cast<ptrdiff_t>(steps));
  };
  PilotWindow window{.step_s = of_first(0),
                     .exchange_s = of_first(1),
                     .exposed_s = of_first(2),
                     .skipped = skipped_steps};
  window.norms.resize(norm_steps > 0 ? parameters.size() : 0);
  double loss = 0;
  bool all_losses = true;
  for (const std::vector<double>& row : rows) {
    for (size_t i = 0; i < steps; ++i) {
      window.step_s[i] = std::max(window.step_s[i], row[i]);
      window.exchange_s[i] = std::min(window.exchange_s[i], row[steps + i]);
      window.exposed_s[i] = std::min(window.exposed_s[i], row[2 * steps + i]);
    }
    loss += row[3 * steps];
    all_losses = all_losses && row[3 * steps + 1] == static_cast<double>(steps);
    auto next = row.begin() + static_cast<ptrdiff_t>(3 * steps + 2);
    for (GuardNorms& norms : window.norms) {
      norms.to_send += *next++;
      norms.sent += *next++;
      norms.residual += *next++;
      norms.gradient += *next++;
      norms.mean += *next++;
    }
  }
  // Losses and norms that overflow are a collapse, not a wrong call.
  if (all_losses) {
    window.loss = loss / static_cast<double>(steps * rows.size());
  }
  const bool finite = std::ranges::all_of(window.norms, [](const GuardNorms& norms) {
    return std::isfinite(norms.to_send) && std::isfinite(norms.sent) &&
           std::isfinite(norms.residual) && std::isfinite(norms.gradient) &&
           std::isfinite(norms.mean);
  });
  if (!finite) {
    window.norms.clear();
  }
  step_s.clear();
  exchange_s.clear();
  exposed_s.clear();
  loss_sum = 0;
  losses = skipped_steps = norm_steps = 0;
  meter.clear();
  bool changed = pilot.end_window(window);
  if (pilot.wants_costs()) {
    changed |= pilot.set_costs(measure_costs(typical_of(window.step_s)));
  }
  if (changed) {
    change_plan();
  }
}

ParamId Autopilot::State::largest() const {
  ParamId found = 0;
  for (ParamId p = 0; p < parameters.size(); ++p) {
    found = parameters[p].numel() > parameters[found].numel() ? p : found;
  }
  return found;
}

LinkCosts Autopilot::State::link_of_now(std::chrono::microseconds budget) {
  ProbeOptions of = options.probe;
  of.budget = budget;
  LinkCosts link = probe_link(transport, context, of);
  // A line too fast to be seen to depend on bytes carries as much as memory does.
  link.beta_s_per_byte = std::max(link.beta_s_per_byte, 1e-11);
  return link;
}

// There are no gradients yet: compressors are timed on numbers like them.
void Autopilot::State::begin() {
  if (transport.world_size() == 1) {
    return;
  }
  first_link = link_of_now(first_look());
  PilotCosts costs{.ready_s = std::vector<double>(parameters.size()),
                   .alpha_s = first_link->alpha_s,
                   .bytes_per_s = 1 / first_link->beta_s_per_byte,
                   .codecs = {}};
  if (!pilot.begins_slowly(costs.alpha_s, costs.bytes_per_s)) {
    return;
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> drawn(std::min(parameters[largest()].numel(), options.codec_numel));
  std::ranges::generate(drawn, [&] { return normal(random); });
  costs.codecs = time_codecs(pilot.specs(), drawn, context);
  pilot.begin(agreed_costs(costs, transport, context));
}

// `step`: seconds that a step took, the same on all ranks.
PilotCosts Autopilot::State::measure_costs(double step) {
  PilotCosts costs;
  costs.ready_s.assign(parameters.size(), -1);
  double last_s = 0;
  for (const GradientTiming& timing : reducer->gradient_timings()) {
    costs.ready_s[timing.parameter] = timing.ready_s;
    last_s = std::max(last_s, timing.ready_s);
  }
  for (double& ready_s : costs.ready_s) {
    ready_s = ready_s < 0 ? last_s : ready_s;  // never reached: as late as the first parameters
  }
  const std::span<const float> gradient = reducer->gradient(largest()).as<float>();
  costs.codecs = time_codecs(
      pilot.specs(), gradient.first(std::min(gradient.size(), options.codec_numel)), context);
  using Microseconds = std::chrono::duration<double, std::micro>;
  const Microseconds budget = std::min<Microseconds>(
      options.probe.budget, std::chrono::duration<double>(kStepsOfProbe * step));
  const bool long_enough = first_link && budget <= kLonger * first_look();
  const LinkCosts link =
      long_enough ? *first_link
                  : link_of_now(std::chrono::duration_cast<std::chrono::microseconds>(budget));
  first_link.reset();
  costs.alpha_s = link.alpha_s;
  costs.bytes_per_s = 1 / link.beta_s_per_byte;
  return agreed_costs(costs, transport, context);
}

// The trainer has yet to read this step's means: they move along.
void Autopilot::State::change_plan() {
  std::vector<std::vector<float>> means;
  for (ParamId p = 0; p < parameters.size(); ++p) {
    const auto mean = reducer->gradient(p).as<float>();
    means.emplace_back(mean.begin(), mean.end());
  }
  const PilotPlan& next = pilot.plan();
  if (next.streams != streams) {
    // Streams are a Reducer's for life: residuals and counters move as through a checkpoint.
    std::stringstream kept;
    reducer->save(kept);
    const Plan before = reducer->plan();
    left_behind = reducer->trace().last();
    reducer.reset();
    make_reducer(before, next.streams);
    reducer->load([&](int) { return std::make_unique<std::istringstream>(kept.str()); });
  }
  reducer->set_plan(make_plan(parameters, next.plan));
  ++epoch;
  read_specs();
  for (ParamId p = 0; p < parameters.size(); ++p) {
    std::ranges::copy(means[p], reducer->gradient(p).as<float>().begin());
  }
}

Autopilot::Autopilot(std::vector<ParamInfo> parameters, Transport& transport,
                     AutopilotOptions options)
    : state_(std::make_unique<State>(std::move(parameters), transport, std::move(options))) {}
Autopilot::~Autopilot() = default;

Gradient Autopilot::gradient(ParamId p) { return state_->reducer->gradient(p); }
Reducer& Autopilot::reducer() { return *state_->reducer; }
const Pilot& Autopilot::pilot() const { return state_->pilot; }
const Plan& Autopilot::plan() const { return state_->reducer->plan(); }
uint64_t Autopilot::epoch() const { return state_->epoch; }
void Autopilot::leave_out(Clock::duration time) { state_->step_begin += time; }

const StepTrace& Autopilot::last_step() const {
  const Trace& trace = state_->reducer->trace();
  const bool anew = trace.steps().empty() && !state_->left_behind.buckets.empty();
  return anew ? state_->left_behind : trace.last();
}

void Autopilot::keep(Plan plan, size_t steps, uint64_t age) {
  State& s = *state_;
  check(s.reducer->trace().steps().empty() && s.left_behind.buckets.empty(),
        "autopilot: a plan to keep is given behind a step, expected it before the first one");
  check(steps >= 1, "autopilot: keeps a plan for 0 steps, must be at least 1");
  s.reducer->set_plan(std::move(plan));
  s.kept_steps = steps;
  s.options.pilot.age += age + steps;
  s.pilot = Pilot(s.parameters, s.transport.world_size(), s.options.pilot);
  ++s.epoch;
  s.read_specs();
  s.step_begin = Clock::now();
}

void Autopilot::grad_ready(ParamId p) {
  State& s = *state_;
  if (p < s.parameters.size() && s.measures_norms()) {
    s.meter.before(p, s.reducer->gradient(p).as<float>(), s.reducer->residual(p), s.specs[p]);
  }
  s.reducer->grad_ready(p);
}

StepOutcome Autopilot::wait(double loss) {
  State& s = *state_;
  StepOutcome outcome = StepOutcome::kSkipped;
  try {
    outcome = s.reducer->wait();
  } catch (const NonFiniteGradient&) {  // of all ranks alike: a step, but one that was left out
    s.end_step(loss, true);
    throw;
  }
  if (outcome == StepOutcome::kCommitted && s.measures_norms()) {
    for (ParamId p = 0; p < s.parameters.size(); ++p) {
      s.meter.behind(p, s.reducer->gradient(p).as<float>(), s.reducer->residual(p), s.specs[p],
                     s.context);
    }
    ++s.norm_steps;
  }
  s.end_step(loss, outcome == StepOutcome::kSkipped);
  return outcome;
}

}  // namespace gradwire::planner
