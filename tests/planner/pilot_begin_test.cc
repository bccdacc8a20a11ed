// The pilot's first window where costs are known before it: on a slow link it is not a dense one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/planner/pilot.h"
#include "tests/planner/message_of.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;
using test::count;
using test::slow_link;
using Job = test::PilotJob;

Pilot begun(const Job& job, PilotOptions options = {}) {
  Pilot pilot(test::pilot_model(), 4, at_any_age(std::move(options)));
  PilotCosts costs = job.costs(pilot);
  costs.ready_s.clear();  // it is not known yet
  pilot.begin(costs);
  return pilot;
}

double number(const Pilot& pilot, size_t decision, const std::string& name) {
  const auto& numbers = pilot.log()[decision].numbers;
  const auto found = numbers.find(name);
  return found == numbers.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

TEST(PilotBegin, OnASlowLinkNoStepIsDense) {
  Job job = slow_link();
  Pilot pilot = begun(job);
  EXPECT_EQ(pilot.phase(), Phase::kMeasure);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  ASSERT_EQ(count(pilot, "begin"), 1u);
  EXPECT_EQ(pilot.log()[0].step, 0u);
  EXPECT_EQ(pilot.log()[0].from, "none");
  EXPECT_EQ(pilot.log()[0].to, pilot.plan().name);
  // 1.201 million gradients, of which every rank sends and receives 3/2, 4 bytes each, and six
  // messages with 128 bytes of headers.
  const double dense_s = 1.5 * 4 * 1'201'000 / 10e6;
  EXPECT_NEAR(number(pilot, 0, "exchange_s of none, 1 bucket"), dense_s, 0.01 * dense_s)
      << pilot.log_json_lines();
  job.run_to_cruise(pilot);
  EXPECT_EQ(std::ranges::count(job.ran, "none"), 0);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  EXPECT_EQ(job.costs_given, 1);  // behind the first window, with gradients' times
  job.run(pilot, 10);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "off"), 0u);
}

TEST(PilotBegin, TakesTheLeastLossyOfWhatIsNearlyAsFast) {
  // A link that takes 11 ms to begin a message: beside that it hardly matters what one sends, but
  // gathering takes half as many messages as a dense exchange.
  Pilot pilot(test::pilot_model(), 4, at_any_age());
  Job job = slow_link();
  PilotCosts costs = job.costs(pilot);
  costs.alpha_s = 11e-3;
  costs.bytes_per_s = 125e6;
  EXPECT_TRUE(pilot.begin(costs));
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
}

TEST(PilotBegin, OnAFastLinkTheFirstWindowIsDense) {
  // Dense: 7.2 MB a rank in less than 50 ms; and one that is slow only by its messages.
  for (const auto& [alpha_s, bytes_per_s] : {std::pair{1e-5, 1e9}, {10e-3, 1e10}}) {
    Pilot pilot(test::pilot_model(), 4, at_any_age());
    EXPECT_EQ(pilot.begins_slowly(alpha_s, bytes_per_s), alpha_s > 1e-3);
    PilotCosts costs = slow_link().costs(pilot);
    costs.alpha_s = alpha_s;
    costs.bytes_per_s = bytes_per_s;
    EXPECT_FALSE(pilot.begin(costs));
    EXPECT_TRUE(pilot.plan().off());
    EXPECT_TRUE(pilot.log().empty());
  }
}

TEST(PilotBegin, IsSlowFromFiftyMillisecondsOn) {
  const Pilot pilot(test::pilot_model(), 4, at_any_age());
  const double bytes = 1.5 * 4 * 1'201'000 + 3 * 128;
  EXPECT_FALSE(pilot.begins_slowly(0, bytes / 49.99e-3));
  EXPECT_TRUE(pilot.begins_slowly(0, bytes / 50.01e-3));
  EXPECT_FALSE(pilot.begins_slowly(8.3e-3, 1e13));
  EXPECT_TRUE(pilot.begins_slowly(8.4e-3, 1e13));  // six messages
}

TEST(PilotBegin, NoCompressionHasATurnWhereItMayWin) {
  // By the link dense steps take 8 times as long as what is chosen; by the clock they are faster.
  Job job = slow_link();
  job.step_s = {{"none", 0.9}, {"bf16", 1.2}, {"int8", 1.2}, {"int4", 1.2}, {"topk:1%,int4", 1.2}};
  Pilot pilot = begun(job, {.tuning_turns = 0});
  ASSERT_FALSE(pilot.plan().off());
  job.run_to_cruise(pilot);
  EXPECT_EQ(std::ranges::count(job.ran, "none"), 1) << pilot.log_json_lines();
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  EXPECT_EQ(number(pilot, pilot.log().size() - 1, "dense_step_s"), 0.9) << pilot.log_json_lines();
}

TEST(PilotBegin, TimesNoCompressionBeforeAPredictionOfItTurnsOff) {
  // Dense is predicted at some 0.8 s and never timed, since what is chosen takes 0.15.
  Job job = slow_link();
  Pilot pilot = begun(job, {.tuning_turns = 0});
  job.run_to_cruise(pilot);
  ASSERT_FALSE(pilot.plan().off());
  const size_t choice = pilot.log().size() - 1;
  const double predicted = number(pilot, choice, "dense_step_s, predicted");
  EXPECT_GT(predicted, 0.5) << pilot.log_json_lines();
  EXPECT_TRUE(std::isnan(number(pilot, choice, "dense_step_s")));
  job.run(pilot, 10);
  EXPECT_EQ(pilot.log().size(), choice + 1);
  // The machine becomes busy: steps are longer than the prediction, and longer still without.
  job.more_s = 2;
  job.run(pilot, 8);
  EXPECT_EQ(count(pilot, "retry"), 1u) << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "off"), 0u) << pilot.log_json_lines();
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
}

TEST(PilotBegin, APredictionAloneTurnsNothingOff) {
  Job job = slow_link();
  Pilot pilot = begun(job, {.specs = {"topk:1%,int4"}, .tuning_turns = 0, .most_probing = 0});
  job.run_to_cruise(pilot);
  for (int change = 0; change < 10; ++change) {  // of the link, until no steps are left for trials
    job.step_s["topk:1%,int4"] = change % 2 == 0 ? 0.5 : 0.15;
    job.run(pilot, 3);
  }
  ASSERT_EQ(std::ranges::count(job.ran, "none"), 0) << pilot.log_json_lines();
  const size_t known = pilot.log().size();
  job.more_s = 5;
  job.run(pilot, 5);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  EXPECT_EQ(count(pilot, "off") + count(pilot, "retry"), 0u) << pilot.log_json_lines();
  EXPECT_GE(pilot.log().size(), known);
}

TEST(PilotBegin, MeasuresWithoutCompressionWhereTheFirstWindowCollapses) {
  Job job = slow_link();
  Pilot pilot = begun(job);
  const double lossy = pilot.plan().loss;
  job.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_EQ(count(pilot, "drop"), 1u) << pilot.log_json_lines();
  EXPECT_TRUE(pilot.plan().off());
  EXPECT_EQ(pilot.phase(), Phase::kMeasure);
  job.loss = 1;
  job.run_to_cruise(pilot);
  EXPECT_LT(pilot.plan().loss, lossy) << pilot.log_json_lines();
  EXPECT_EQ(std::ranges::count(job.ran, "topk:1%,int4"), 1);
}

TEST(PilotBegin, MeasuresWithoutCompressionWhereNormsOfTheFirstWindowSayHarm) {
  // What is left out is larger than what was to be sent, and more is sent than that. That little is
  // sent is no reason yet, nor that squares of what waits grow where less is sent.
  for (const auto& [sent, residual, dropped] :
       {std::tuple{1.5, 1.3, true}, {0.5, 1.3, false}, {0.005, 0.9, false}}) {
    SCOPED_TRACE(residual);
    Job job = slow_link();
    Pilot pilot = begun(job, {.tuning_turns = 0});
    ASSERT_TRUE(pilot.wants_norms());
    PilotWindow window;
    window.step_s.assign(pilot.window_steps(), 0.15);
    window.exchange_s.assign(pilot.window_steps(), 0.05);
    window.norms.assign(
        4, {.to_send = 1, .sent = sent, .residual = residual, .gradient = 1, .mean = 1});
    EXPECT_EQ(pilot.end_window(window), dropped);
    EXPECT_EQ(count(pilot, "drop"), dropped ? 1u : 0u) << pilot.log_json_lines();
    EXPECT_EQ(pilot.phase(), Phase::kMeasure);
    EXPECT_EQ(pilot.plan().off(), dropped);
    EXPECT_EQ(pilot.wants_costs(), !dropped);
    EXPECT_EQ(pilot.wants_norms(), !dropped);
    if (!dropped) {
      pilot.set_costs(job.costs(pilot));
    }
    job.run_to_cruise(pilot);
    EXPECT_EQ(std::ranges::count(job.ran, "topk:1%,int4") > 0, !dropped) << pilot.log_json_lines();
  }
}

TEST(PilotBegin, WhatIsDroppedHasNoLossWhereNoneIsKnown) {
  for (const bool known : {false, true}) {
    Job job = slow_link();
    Pilot pilot = begun(job);
    PilotWindow window;
    window.step_s.assign(pilot.window_steps(), 0.15);
    window.exchange_s.assign(pilot.window_steps(), 0.05);
    window.loss = known ? 2.5 : GuardWindow::kUnknown;
    window.norms.assign(4, {.to_send = 1, .sent = 1, .residual = 2, .gradient = 1, .mean = 1});
    EXPECT_TRUE(pilot.end_window(window));
    ASSERT_EQ(pilot.log().back().what, "drop");
    EXPECT_EQ(pilot.log().back().numbers.contains("loss"), known) << pilot.log_json_lines();
  }
}

TEST(PilotBegin, FactorsOfMatricesMayBeTheFirstToo) {
  Job job = slow_link();
  job.step_s["powersgd:2"] = 0.12;
  Pilot pilot = begun(job, {.specs = {"int8", "powersgd:2"}, .tuning_turns = 0});
  EXPECT_EQ(pilot.plan().spec, "powersgd:2") << pilot.log_json_lines();
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "powersgd:2") << pilot.log_json_lines();
}

TEST(PilotBegin, WhatCannotBeIsRefusedAndChangesNothing) {
  Job job = slow_link();
  Pilot pilot(test::pilot_model(), 4, at_any_age());
  PilotCosts costs = job.costs(pilot);
  PilotCosts unpriced = costs, negative = costs;
  unpriced.codecs.erase("int8");
  negative.bytes_per_s = -1;
  EXPECT_NE(message_of([&] { pilot.begin(unpriced); }).find("do not price 'int8'"),
            std::string::npos);
  EXPECT_NE(message_of([&] { pilot.begin(negative); }).find("carries -1 bytes per second"),
            std::string::npos);
  EXPECT_NE(message_of([&] { pilot.begins_slowly(-1, 1e9); }).find("start-up is -1"),
            std::string::npos);
  EXPECT_TRUE(pilot.plan().off() && pilot.log().empty());
  EXPECT_TRUE(pilot.begin(costs));
  const std::string twice = message_of([&] { pilot.begin(costs); });
  EXPECT_NE(twice.find("expected before the first window"), std::string::npos) << twice;
  Pilot late(test::pilot_model(), 4, at_any_age());
  job.run_window(late);
  EXPECT_NE(message_of([&] { late.begin(costs); }).find("begins behind 5 steps"),
            std::string::npos);
  Pilot alone(test::pilot_model(), 1, at_any_age());
  EXPECT_THROW(alone.begin(costs), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
