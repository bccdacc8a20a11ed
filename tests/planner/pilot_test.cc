// The pilot in made-up jobs whose step times are a table: what is fastest is known beforehand.

#include "gradwire/planner/pilot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "gradwire/planner/internal/candidates.h"
#include "tests/planner/message_of.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::at_any_age;
using test::count;
using test::slow_link;
using Job = test::PilotJob;

std::vector<ParamInfo> model() { return test::pilot_model(); }

TEST(Pilot, TakesTheFastestWhereTheLinkIsSlow) {
  Pilot pilot(model(), 4, at_any_age());
  Job job = slow_link();
  EXPECT_EQ(pilot.phase(), Phase::kMeasure);
  EXPECT_TRUE(pilot.plan().off());
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  EXPECT_EQ(job.ran.front(), "none");
  EXPECT_EQ(count(pilot, "choose"), 1u);
  job.run(pilot, 10);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
  EXPECT_EQ(job.costs_given, 1);
}

TEST(Pilot, TakesTheLeastLossyWithinTheTolerance) {
  for (const auto& [int4_s, expected] : {std::pair{0.154, "int4"}, {0.156, "topk:1%,int4"}}) {
    Pilot pilot(model(), 4, at_any_age());
    Job job = slow_link();
    job.step_s["int4"] = int4_s;
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().spec, expected) << pilot.log_json_lines();
  }
}

TEST(Pilot, IsOffWhereCompressionIsNotClearlyFaster) {
  for (const double dense_s : {0.15, 0.1544}) {
    Pilot pilot(model(), 4, at_any_age());
    Job job = slow_link();
    job.step_s = {
        {"none", dense_s}, {"bf16", 0.16}, {"int8", 0.16}, {"int4", 0.15}, {"topk:1%,int4", 0.15}};
    job.run_to_cruise(pilot);
    EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  }
}

TEST(Pilot, IsOffWithoutAnyTrialWhereTheExchangeIsNothing) {
  Pilot pilot(model(), 4, at_any_age());
  Job job = slow_link();
  job.step_s["none"] = 0.1029;
  job.run(pilot, 1);
  EXPECT_EQ(pilot.phase(), Phase::kCruise);
  EXPECT_TRUE(pilot.plan().off());
  EXPECT_EQ(job.costs_given, 0);
  Pilot one(model(), 1, at_any_age());
  EXPECT_EQ(one.phase(), Phase::kCruise);
  EXPECT_TRUE(one.plan().off());
}

TEST(Pilot, HasOffAndBf16AmongItsCandidatesAndAlternatesThem) {
  Pilot pilot(model(), 4, at_any_age({.candidates = 3, .hopeless = 10, .tuning_turns = 0}));
  Job job = slow_link();
  job.bytes_per_s = 25e6;  // nothing is predicted to be hopeless
  // Nor is anything slower than what sends more.
  job.step_s = {
      {"none", 1.0}, {"bf16", 0.99}, {"int8", 0.98}, {"int4", 0.98}, {"topk:1%,int4", 0.97}};
  job.run_to_cruise(pilot);
  // A dense window, then three rounds of three.
  ASSERT_EQ(job.ran.size(), 10u);
  const std::vector<std::string> first(job.ran.begin() + 1, job.ran.begin() + 4);
  EXPECT_EQ(std::ranges::count(first, "none"), 1);
  EXPECT_EQ(std::ranges::count(first, "bf16"), 1);
  for (size_t i = 4; i < 10; ++i) {
    EXPECT_EQ(job.ran[i], first[(i - 1) % 3]);
  }
}

TEST(Pilot, GivesNoSecondTurnToTheHopeless) {
  Pilot pilot(model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  EXPECT_LE(std::ranges::count(job.ran, "none"), 2);
  EXPECT_LE(std::ranges::count(job.ran, "bf16"), 1);
}

TEST(Pilot, TriesStreamsAndKeepsThemWhereTheyGain) {
  for (const double gain_s : {0.02, 0.001}) {
    Pilot pilot(model(), 4, at_any_age({.streams = {1, 2}}));
    Job job = slow_link();
    job.bytes_per_s = 50e6;
    job.streams_s = gain_s;
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().streams, gain_s > 0.0015 ? 2 : 1) << pilot.log_json_lines();
    EXPECT_EQ(count(pilot, "tune"), 1u) << pilot.log_json_lines();
  }
}

TEST(Pilot, CompressesLessAtOnceAndMoreAgainAfterThreeQuietWindows) {
  Pilot pilot(model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  job.gain = 0.01;
  EXPECT_TRUE(job.run_window(pilot));
  const std::string tighter = pilot.plan().spec;
  EXPECT_NE(tighter, "topk:1%,int4");
  job.gain = 0.5;
  EXPECT_FALSE(job.run_window(pilot));
  EXPECT_FALSE(job.run_window(pilot));
  EXPECT_EQ(pilot.plan().spec, tighter);
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4");
  job.gain = 0.01;  // the second complaint is the last
  EXPECT_TRUE(job.run_window(pilot));
  job.gain = 0.5;
  job.run(pilot, 10);
  EXPECT_EQ(pilot.plan().spec, tighter) << pilot.log_json_lines();
}

TEST(Pilot, IsOffInTheWindowInWhichTheLossCollapses) {
  Pilot pilot(model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  job.loss = 5;
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.loss = 1;
  job.run(pilot, 20);
  EXPECT_NE(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
}

TEST(Pilot, IsOffWhereStepsAreNotFasterThanDenseOnesWere) {
  Pilot pilot(model(), 4, at_any_age({.link_band = 50}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  const std::string spec = pilot.plan().spec;
  job.step_s[spec] = 1.21;  // by a fifth more: not even worth a trial
  EXPECT_TRUE(job.run_window(pilot));
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
}

TEST(Pilot, MeasuresAnewWhenTheLinkChangesEitherWay) {
  Pilot pilot(model(), 4, at_any_age({.tuning_turns = 0}));
  Job job = slow_link();
  job.run_to_cruise(pilot);
  job.run(pilot, 3);
  ASSERT_EQ(pilot.plan().spec, "topk:1%,int4");
  job.step_s = {
      {"none", 0.103}, {"bf16", 0.102}, {"int8", 0.11}, {"int4", 0.11}, {"topk:1%,int4", 0.112}};
  job.bytes_per_s = 1e9;
  job.run_window(pilot);
  EXPECT_EQ(count(pilot, "link"), 1u);
  EXPECT_EQ(job.costs_given, 2);
  job.run_to_cruise(pilot);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.run(pilot, 1);  // the first window says what is usual
  const Job slow = slow_link();
  job.step_s = slow.step_s;
  job.bytes_per_s = slow.bytes_per_s;
  job.run_window(pilot);
  EXPECT_EQ(count(pilot, "link"), 2u);
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "topk:1%,int4") << pilot.log_json_lines();
}

TEST(Pilot, MeasuresAnewNoMoreOftenThanItMay) {
  Pilot pilot(model(), 4, at_any_age({.tuning_turns = 0, .most_probing = 0.05}));
  Job slow = slow_link();
  slow.run_to_cruise(pilot);
  const uint64_t first = pilot.probing_steps();
  for (int i = 0; i < 200; ++i) {  // a link that changes in every window
    slow.step_s = i % 2 == 0 ? std::map<std::string, double>{{"none", 0.3},
                                                             {"bf16", 0.2},
                                                             {"int8", 0.11},
                                                             {"int4", 0.11},
                                                             {"topk:1%,int4", 0.105}}
                             : slow_link().step_s;
    slow.run_window(pilot);
  }
  // Two repetitions of 4 candidates x 2 rounds x 3 steps are free.
  const double cost = 4 * 2 * 3;
  EXPECT_LE(static_cast<double>(pilot.probing_steps() - first),
            0.05 * static_cast<double>(pilot.steps()) + 2 * cost);
  EXPECT_GT(pilot.probing_steps(), first);
}

TEST(Pilot, WritesDownWhatItDecidesAndWhy) {
  Pilot pilot(model(), 4, at_any_age());
  Job job = slow_link();
  job.run_to_cruise(pilot);
  const std::string lines = pilot.log_json_lines();
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(lines, '\n')), pilot.log().size());
  EXPECT_EQ(pilot.log()[0].what, "predict");
  EXPECT_EQ(pilot.log()[0].step, 5u);
  const Decision made{.step = 3,
                      .what = "off",
                      .from = "a \"b\"",
                      .to = "c",
                      .reason = "d",
                      .numbers = {{"x", 0.5}, {"y", std::nan("")}}};
  EXPECT_EQ(to_json_line(made), R"({"step":3,"what":"off","from":"a \"b\"","to":"c","reason":"d",)"
                                R"("numbers":{"x":0.5,"y":null}})");
}

TEST(Pilot, NamesAMixedPlanByTheSharesOfItsSpecs) {
  // Of 1201 thousand elements the embedding has 400, the body 500, the bias 1 and the head 300.
  PilotPlan plan;
  plan.spec = "int4";
  plan.plan.spec = parse_spec("int4");
  plan.plan.buckets = {{3, 2}, {1, 0}};
  EXPECT_EQ(name_of(plan, model()), "int4, 2 buckets");
  plan.plan.rules = {{.spec = parse_spec("none"), .name = "body"},
                     {.spec = parse_spec("none"), .name = "embedding"}};
  EXPECT_EQ(name_of(plan, model()), "int4 for 25% of the gradient, none for 75%, 2 buckets");
  plan.plan.rules[0].spec = parse_spec("bf16");
  plan.streams = 2;
  EXPECT_EQ(name_of(plan, model()),
            "int4 for 25% of the gradient, bf16 for 42%, none for 33%, 2 buckets, 2 streams");
  plan.plan.rules = {{.spec = parse_spec("none"), .name = "bias"}};
  EXPECT_EQ(name_of(plan, model()),
            "int4 for more than 99% of the gradient, none for less than 1%, 2 buckets, 2 streams");
  // By rules of the caller's own nothing may be left for the plan's spec, which still tells plans
  // apart.
  plan.plan.rules = {{.spec = parse_spec("topk:1%,int4")}};
  EXPECT_EQ(name_of(plan, model()),
            "int4 for 0% of the gradient, topk:1%,int4 for 100%, 2 buckets, 2 streams");
}

TEST(Pilot, NamesSayTheSharesThatPlansHave) {
  size_t mixed = 0;
  for (const double bytes_per_s : {20e6, 50e6, 100e6, 200e6, 500e6}) {
    // Compressors cost so much that some pay for a part of the gradient alone.
    Pilot pilot(model(), 4, at_any_age({.least_gain = 0, .candidates = 5, .hopeless = 100, .tuning_turns = 0}));
    Job job = slow_link();
    job.bytes_per_s = bytes_per_s;
    job.codec_bytes_per_s = 4 * bytes_per_s;
    for (int i = 0; i < 12 && pilot.phase() != Phase::kCruise; ++i) {
      job.run_window(pilot);
      std::map<std::string, double> percent;
      for (const PlanBucket& bucket : make_plan(model(), pilot.plan().plan).buckets) {
        for (const PlanGroup& group : bucket.groups) {
          percent[to_string(group.spec)] += 100 * static_cast<double>(group.numel) / 1'201'000;
        }
      }
      for (const auto& [spec, share] : percent) {
        if (share > 1 && share < 99) {  // the rest is the bias, which is exempt
          const std::string text = concat(spec, " for ", std::lround(share), "%");
          EXPECT_NE(pilot.plan().name.find(text), std::string::npos) << pilot.plan().name;
          ++mixed;
        }
      }
    }
  }
  EXPECT_GT(mixed, 0u);
}

TEST(Pilot, MakesPlansOfEveryParameterOnce) {
  Pilot pilot(model(), 4, at_any_age());
  Job job = slow_link();
  for (int i = 0; i < 30; ++i) {
    const Plan plan = make_plan(model(), pilot.plan().plan);
    size_t numel = 0;
    for (const PlanBucket& bucket : plan.buckets) {
      numel += bucket.numel;
    }
    EXPECT_EQ(numel, 1'201'000u);
    job.run_window(pilot);
  }
}

TEST(Pilot, RefusesWhatCannotBeAndStaysAsItWas) {
  Pilot pilot(model(), 4, at_any_age());
  Job job = slow_link();
  const auto refused = [&](const PilotWindow& window) {
    return message_of([&] { pilot.end_window(window); });
  };
  EXPECT_EQ(refused({.step_s = {1, 1}}), "pilot: a window of 2 steps, expected 5");
  EXPECT_EQ(refused({.step_s = {1, 1, 1, 0, 1}}),
            "pilot: step of step 3 of the window took 0 s, must be finite and above 0");
  EXPECT_EQ(refused({.step_s = {1, 1, 1, 1, 1}, .exposed_s = {1}}),
            "pilot: 1 exposed times of 5 steps, expected none or as many");
  EXPECT_THROW(pilot.end_window({.step_s = {1, 1, 1, 1, 1}, .norms = {{}}}), InvalidArgument);
  EXPECT_THROW(pilot.set_costs(job.costs(pilot)), InvalidArgument);
  EXPECT_EQ(pilot.steps(), 0u);
  pilot.end_window({.step_s = {1, 1, 1, 1, 1}});
  ASSERT_TRUE(pilot.wants_costs());
  EXPECT_EQ(refused({.step_s = {1, 1, 1, 1, 1}}),
            "pilot: a window has ended, expected set_costs() first");
  PilotCosts costs = job.costs(pilot);
  costs.codecs.erase("int4");
  EXPECT_EQ(message_of([&] { pilot.set_costs(costs); }),
            "pilot: costs do not price 'int4', expected a codec for each of specs()");
  costs = job.costs(pilot);
  costs.bytes_per_s = 0;
  EXPECT_THROW(pilot.set_costs(costs), InvalidArgument);
  costs = job.costs(pilot);
  costs.ready_s.pop_back();
  EXPECT_THROW(pilot.set_costs(costs), InvalidArgument);
  EXPECT_TRUE(pilot.wants_costs());
  EXPECT_TRUE(pilot.set_costs(job.costs(pilot)));

  EXPECT_THROW(Pilot({}, 4), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 0), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.specs = {"telepathy"}}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.specs = {"powersgd:0"}}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.streams = {0}}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.candidates = 1}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.tolerance = std::nan("")}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.least_gain = 1.1}), InvalidArgument);
  EXPECT_THROW(Pilot(model(), 4, {.guard = {.least_gain = 2}}), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
