#pragma once
// Made-up jobs for pilots: step times are a table, so what is fastest is known beforehand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gradwire/planner/pilot.h"

namespace gradwire::test {

inline std::vector<ParamInfo> pilot_model() {
  return {
      {"embedding", {1000, 400}}, {"body", {500, 1000}}, {"bias", {1000}}, {"head", {300, 1000}}};
}

/// A job: seconds of a step by spec, of which the exchange takes what is beyond compute.
struct PilotJob {
  std::map<std::string, double> step_s;
  double more_s = 0;          ///< that each step takes besides: heavier batches, a busy machine
  double bytes_per_s = 10e6;  ///< that probe_link() would find
  double compute_s = 0.1;
  double hidden_s = 0;  ///< of an exchange, behind backward
  double gain = 0.5;    ///< |C(a)| / |a|
  double loss = 1;
  size_t skipped = 0;              ///< steps of each window, for gradients that are not finite
  bool knows_exchange = true;      ///< seconds of exchanges are told: not of a GPU's
  double codec_bytes_per_s = 4e9;  ///< of each compressor, either way
  double streams_s = 0;            ///< a step's gain by more than one stream
  double message_s = 0;            ///< that each bucket but the first takes besides
  std::vector<double> ready_s = {0.04, 0.03, 0.02, 0.01};  ///< of each parameter
  int costs_given = 0;
  std::vector<std::string> ran = {};  ///< the spec of each window
  /// What comes between a step and the next, by its count: an evaluation, say.
  std::function<double(uint64_t step)> pause = [](uint64_t) { return 0.0; };

  planner::PilotCosts costs(const planner::Pilot& pilot) const {
    planner::PilotCosts of{
        .ready_s = ready_s, .alpha_s = 1e-4, .bytes_per_s = bytes_per_s, .codecs = {}};
    for (const std::string& spec : pilot.specs()) {
      of.codecs[spec] = {1e-5, codec_bytes_per_s, 1e-5, codec_bytes_per_s};
    }
    return of;
  }

  double seconds(const planner::PilotPlan& plan) const {
    const size_t others = std::max<size_t>(plan.plan.buckets.size(), 1) - 1;
    return step_s.at(plan.spec) + more_s - (plan.streams > 1 ? streams_s : 0) +
           message_s * static_cast<double>(others);
  }

  /// One window, as a caller would run it. Returns whether the plan changed.
  bool run_window(planner::Pilot& pilot) {
    const planner::PilotPlan& plan = pilot.plan();
    ran.push_back(plan.spec);
    planner::PilotWindow window;
    window.step_s.assign(pilot.window_steps(), seconds(plan));
    window.step_s[0] *= 3;  // buffers grow
    for (size_t i = 0; i < window.step_s.size(); ++i) {
      window.step_s[i] += pause(pilot.steps() + i);
    }
    if (knows_exchange) {
      const double exchange = seconds(plan) - more_s - compute_s;
      window.exchange_s.assign(pilot.window_steps(), exchange);
      window.exposed_s.assign(pilot.window_steps(), std::max(0.0, exchange - hidden_s));
    }
    window.loss = loss;
    window.skipped = skipped;
    if (pilot.wants_norms()) {
      window.norms.assign(
          4, {.to_send = 1, .sent = gain * gain, .residual = 0.5, .gradient = 1, .mean = 1});
    }
    bool changed = pilot.end_window(window);
    if (pilot.wants_costs()) {
      ++costs_given;
      changed |= pilot.set_costs(costs(pilot));
    }
    return changed;
  }

  /// Steps take so many times as long, whatever they consist of.
  void slow_down(double times) {
    for (auto& [spec, seconds] : step_s) {
      seconds *= times;
    }
  }
  /// Only exchanges do.
  void slow_the_link(double times) {
    for (auto& [spec, seconds] : step_s) {
      seconds = compute_s + times * (seconds - compute_s);
    }
  }
  void run(planner::Pilot& pilot, int windows) {
    for (int i = 0; i < windows; ++i) {
      run_window(pilot);
    }
  }
  void run_to_cruise(planner::Pilot& pilot) {
    for (int i = 0; pilot.phase() != planner::Phase::kCruise; ++i) {
      ASSERT_LT(i, 100) << to_string(pilot.phase());
      run_window(pilot);
    }
  }
};

/// Step times alone decide: what waits weighs nothing (pilot_age_test.cc is about that).
inline planner::PilotOptions at_any_age(planner::PilotOptions options = {}) {
  options.waiting = 0;
  return options;
}

/// Of slow_link().
inline constexpr const char* kFastest = "topk:1%,int4";

inline PilotJob slow_link() {
  return {.step_s = {
              {"none", 1.0}, {"bf16", 0.6}, {"int8", 0.4}, {"int4", 0.3}, {"topk:1%,int4", 0.15}}};
}

/// What exchanges of the model take on such a link, of four ranks, behind 0.1 s of compute: 3/2 of
/// the 4.8 MB of all gradients, and of top-k 3 of the 25 kB that a rank keeps.
inline PilotJob link_of(double bytes_per_s) {
  const double all_s = 1.5 * 4.8e6 / bytes_per_s;
  return {.step_s = {{"none", 0.1 + all_s},
                     {"bf16", 0.1 + all_s / 2},
                     {"int8", 0.1 + all_s / 4},
                     {"int4", 0.1 + all_s / 8},
                     {"topk:1%,int4", 0.1 + 3 * 25e3 / bytes_per_s}},
          .bytes_per_s = bytes_per_s,
          .ready_s = {0, 0, 0, 0}};
}

inline size_t count(const planner::Pilot& pilot, const std::string& what) {
  return static_cast<size_t>(std::ranges::count(pilot.log(), what, &planner::Decision::what));
}

}  // namespace gradwire::test
