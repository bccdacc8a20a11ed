// The pilot with a compressor whose bytes depend on the shapes of parameters.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "gradwire/planner/pilot.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;

constexpr double kBytesPerSecond = 10e6;

/// Predicted seconds by plan, without start-ups and coding.
std::map<std::string, double> predicted(const std::vector<ParamInfo>& model,
                                        const std::vector<std::string>& specs) {
  Pilot pilot(model, 4, at_any_age({.specs = specs}));
  PilotWindow window;
  window.step_s.assign(pilot.window_steps(), 1.0);
  window.exchange_s.assign(pilot.window_steps(), 0.9);
  pilot.end_window(window);
  PilotCosts costs{.ready_s = std::vector<double>(model.size(), 0.01),
                   .alpha_s = 0,
                   .bytes_per_s = kBytesPerSecond,
                   .codecs = {}};
  for (const std::string& spec : pilot.specs()) {
    costs.codecs[spec] = {};
  }
  pilot.set_costs(costs);
  std::map<std::string, double> found;
  const std::string before = "predicted_s of ";
  for (const auto& [name, value] : pilot.log().back().numbers) {
    if (name.starts_with(before)) {
      found[name.substr(before.size(), name.find(", 1 bucket") - before.size())] = value;
    }
  }
  return found;
}

TEST(ShapedPilot, PricesFactorsByTheirRowsAndColumns) {
  // Of a rows x cols matrix the factors of a step have 4 R rows bytes and those of the next 4 R
  // cols. Four ranks: what adds up in flight passes 2 * 3 / 4 of it over a line; two shots
  // likewise. Headers: some hundred bytes.
  struct Case {
    size_t rows, cols;
  };
  for (const auto& [rows, cols] : {Case{1000, 1000}, {4000, 250}, {250, 4000}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    const auto at = predicted({{"matrix", {rows, cols}}}, {"powersgd:4", "powersgd:8"});
    ASSERT_EQ(at.count("powersgd:4") + at.count("powersgd:8"), 2u);
    const double more = 4.0 * 4.0 * static_cast<double>(rows + cols) / 2;
    const double expected_s = 1.5 * more / kBytesPerSecond;
    EXPECT_NEAR(at.at("powersgd:8") - at.at("powersgd:4"), expected_s, 0.02 * expected_s);
    // Dense: 4 MB, of which 6 MB pass.
    const double dense_s = 1.5 * (4e6 - more) / kBytesPerSecond;
    EXPECT_NEAR(at.at("none") - at.at("powersgd:4"), dense_s, 0.02 * dense_s);
  }
}

TEST(ShapedPilot, ChargesTwoRoundsForBothFactors) {
  const auto at = predicted({{"matrix", {4000, 250}}}, {"powersgd:4", "powersgd:4,rounds=2"});
  const double one_s = 1.5 * 4.0 * 4.0 * (4000 + 250) / 2 / kBytesPerSecond;
  EXPECT_NEAR(at.at("powersgd:4,rounds=2") - at.at("powersgd:4"), one_s, 0.05 * one_s);
}

TEST(ShapedPilot, LeavesItOutWhereNoFactorIsSmallerThanItsMatrix) {
  const auto at = predicted({{"bias", {4000}}, {"narrow", {1000, 2}}}, {"powersgd:4"});
  EXPECT_EQ(at.count("powersgd:4"), 0u);
  EXPECT_EQ(at.count("none"), 1u);
}

TEST(ShapedPilot, JudgesItByTheMeanOfBothSides) {
  // A step with the small side takes 0.11 s, one with the large side 0.61: together more than int8.
  for (const size_t trial_steps : {1, 2, 3}) {
    SCOPED_TRACE(trial_steps);
    Pilot pilot(test::pilot_model(), 4,
                at_any_age({.specs = {"int8", "powersgd:2"}, .trial_steps = trial_steps, .hopeless = 10}));
    test::PilotJob job = test::slow_link();
    job.bytes_per_s = 40e6;  // nothing is predicted to be hopeless
    job.step_s["int8"] = 0.2;
    job.step_s["powersgd:2"] = 0.11;
    job.pause = [&](uint64_t step) {
      return pilot.plan().spec == "powersgd:2" && step % 2 == 0 ? 0.5 : 0.0;
    };
    job.run_to_cruise(pilot);
    EXPECT_GT(std::ranges::count(job.ran, "powersgd:2"), 0);
    EXPECT_EQ(pilot.plan().spec, "int8") << pilot.log_json_lines();
  }
}

TEST(ShapedPilot, TakesItForAllGradientsAndTheGuardWatchesIt) {
  Pilot pilot(test::pilot_model(), 4, at_any_age({.specs = {"int8", "powersgd:2"}}));
  test::PilotJob job = test::slow_link();
  job.step_s["powersgd:2"] = 0.12;
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "powersgd:2") << pilot.log_json_lines();
  EXPECT_GT(pilot.plan().loss, 0.9);
  // It sends the bias as it is, in the same group.
  for (const PlanBucket& bucket : make_plan(test::pilot_model(), pilot.plan().plan).buckets) {
    for (const PlanGroup& group : bucket.groups) {
      EXPECT_EQ(to_string(group.spec), "powersgd:2");
    }
  }
  // The guard goes down from it as from any other.
  job.gain = 0.01;
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_NE(pilot.plan().spec, "powersgd:2") << pilot.log_json_lines();
}

}  // namespace
}  // namespace gradwire::planner
