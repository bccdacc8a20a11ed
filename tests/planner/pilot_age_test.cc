// What waits weighs in a young job: the lossiest plans come when a job is old enough for them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/planner/internal/candidates.h"
#include "gradwire/planner/pilot.h"
#include "tests/planner/message_of.h"
#include "tests/planner/pilot_job.h"

namespace gradwire::planner {
namespace {

using test::count;
using test::link_of;
using test::pilot_model;
using test::slow_link;
using Job = test::PilotJob;

constexpr const char* kSparse = "topk:1%,int4";
/// In elements of the model: 1000 of the bias travel as bf16, of the others a hundredth in a step.
constexpr double kWaits = 99.0 * 1'200'000 / 1'201'000;

const Decision* find(const Pilot& pilot, const std::string& what, const std::string& to) {
  const auto found = std::ranges::find_if(pilot.log(), [&](const Decision& each) {
    return each.what == what && each.to.starts_with(to);
  });
  return found == pilot.log().end() ? nullptr : &*found;
}

TEST(PilotAge, WaitsAreThoseOfTheSharesThatAreSent) {
  const std::vector<ParamInfo> model = pilot_model();
  const auto waits = [&](const std::string& spec) {
    return waits_of({.spec = parse_spec(spec)}, model);
  };
  for (const std::string all : {"none", "bf16", "int8", "int4", "qsgd:1"}) {
    EXPECT_EQ(waits(all), 0) << all;
  }
  EXPECT_NEAR(waits(kSparse), kWaits, 1e-9);
  EXPECT_NEAR(waits("topk:25%"), 3.0 * 1200 / 1201, 1e-9);
  EXPECT_NEAR(waits("chunktopk:64/4096"), 63.0 * 1200 / 1201, 1e-9);
  // Of (1000, 400) 2 * 1400 of 400,000, of (500, 1000) 2 * 1500, of (300, 1000) 2 * 1300.
  const double factors =
      400e3 * (400e3 / 2800 - 1) + 500e3 * (500e3 / 3000 - 1) + 300e3 * (300e3 / 2600 - 1);
  EXPECT_NEAR(waits("powersgd:2"), factors / 1'201'000, 1e-6);
}

TEST(PilotAge, AYoungJobTakesWhatSendsEverythingAndAnOlderOneWhatIsFastest) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
  Job job = link_of(10e6);  // int4 0.19 s, top-k 0.1075
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
  ASSERT_NE(find(pilot, "choose", "int4"), nullptr);
  EXPECT_EQ(std::ranges::count(job.ran, kSparse), 0);
  job.run(pilot, 20);
  EXPECT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  const Decision* loosened = find(pilot, "loosen", kSparse);
  ASSERT_NE(loosened, nullptr) << pilot.log_json_lines();
  const double expected = loosened->numbers.at("expected_s of " + loosened->to);
  EXPECT_NEAR(expected, 0.1075, 0.003) << pilot.log_json_lines();  // by the link
  // From the step on at which 0.19 is more than 1.2 * expected * (1 + waits / steps), and behind
  // three quiet windows of 20.
  const double least = kWaits / (0.19 / (1.2 * expected) - 1);
  EXPECT_GE(static_cast<double>(loosened->step), least);
  EXPECT_LT(static_cast<double>(loosened->step), least + 60);
  EXPECT_NEAR(loosened->numbers.at("waits_steps of " + loosened->to), kWaits, 1e-9);
  EXPECT_EQ(loosened->numbers.at("age_steps"), static_cast<double>(loosened->step));
  EXPECT_EQ(count(pilot, "loosen"), 1u);
  EXPECT_EQ(job.costs_given, 1);  // without another trial
  const size_t decisions = pilot.log().size();
  job.run(pilot, 20);
  EXPECT_EQ(pilot.log().size(), decisions) << pilot.log_json_lines();
}

TEST(PilotAge, AnOldJobAsksForStepTimesAlone) {
  for (const PilotOptions& options :
       {PilotOptions{.age = 10'000, .tuning_turns = 0}, {.waiting = 0, .tuning_turns = 0}}) {
    Pilot pilot(pilot_model(), 4, options);
    Job job = link_of(10e6);
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  }
}

TEST(PilotAge, NothingIsLoosenedBeforeThreeQuietWindowsNorToWhatDidHarm) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
  Job job = link_of(2e6);
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "int4");
  job.run(pilot, 2);
  job.gain = 0.01;  // a complaint: one step down the ladder, and the count begins anew
  job.run(pilot, 1);
  ASSERT_EQ(pilot.plan().spec, "int8") << pilot.log_json_lines();
  job.gain = 0.5;
  job.run(pilot, 3);
  ASSERT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
  job.run(pilot, 3);
  ASSERT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  for (int complaint = 0; complaint < 2; ++complaint) {
    job.gain = 0.01;
    job.run(pilot, 1);
    job.gain = 0.5;
    EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
    job.run(pilot, 3);
  }
  job.run(pilot, 30);
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
}

TEST(PilotAge, ACollapseOfWhatCameLaterTurnsItOffForGood) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
  Job job = link_of(2e6);
  job.run_to_cruise(pilot);
  job.run(pilot, 9);
  ASSERT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  job.loss = std::numeric_limits<double>::infinity();
  job.run(pilot, 1);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.loss = 1;
  job.run(pilot, 40);
  EXPECT_NE(pilot.plan().spec, kSparse) << pilot.log_json_lines();
}

TEST(PilotAge, WithNoCompressionAsFastAsInAYoungJobItComesLater) {
  // 16 bits are as fast as all, whatever the link says; top-k may not be tried yet.
  Pilot pilot(pilot_model(), 4, {.specs = {kSparse}, .tuning_turns = 0});
  Job job = link_of(10e6);
  job.step_s["bf16"] = job.step_s["none"];
  job.run_to_cruise(pilot);
  EXPECT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.run(pilot, 30);
  EXPECT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  const Decision* loosened = find(pilot, "loosen", kSparse);
  ASSERT_NE(loosened, nullptr) << pilot.log_json_lines();
  EXPECT_TRUE(loosened->from.starts_with("none")) << loosened->from;
  EXPECT_EQ(count(pilot, "loosen"), 1u) << pilot.log_json_lines();
  // It is far ahead from step 20 on, but gradients wait for 99.
  EXPECT_GE(loosened->step, 99u);
  EXPECT_LT(loosened->step, 99u + 2 * 60);  // 16 bits are timed again meanwhile
}

TEST(PilotAge, HeavierStepsMakeLessOfWhatWouldBeSaved) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
  Job job = link_of(10e6);
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "int4");
  job.more_s = 0.1;  // of all plans alike: 0.29 beside 0.2075
  job.run(pilot, 100);
  const Decision* loosened = find(pilot, "loosen", kSparse);
  ASSERT_NE(loosened, nullptr) << pilot.log_json_lines();
  const double expected = loosened->numbers.at("expected_s of " + loosened->to);
  EXPECT_NEAR(expected, 0.2075, 0.003) << pilot.log_json_lines();
  const double least = kWaits / (0.29 / (1.2 * expected) - 1);
  EXPECT_GE(static_cast<double>(loosened->step), least);
  EXPECT_LT(static_cast<double>(loosened->step), least + 60);
}

TEST(PilotAge, LighterStepsDoNotMakeItsTimeNegative) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0, .link_band = 50});
  Job job = link_of(10e6);
  job.knows_exchange = false;
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "int4");
  job.step_s["int4"] = 0.08;  // less than top-k was predicted to take
  job.step_s[kSparse] = 0.05;
  job.run(pilot, 30);
  const Decision* loosened = find(pilot, "loosen", kSparse);
  ASSERT_NE(loosened, nullptr) << pilot.log_json_lines();
  EXPECT_NEAR(loosened->numbers.at("expected_s of " + loosened->to), 0.1075 * 0.08 / 0.19, 0.003);
}

TEST(PilotAge, WhatWaitsForItsTimeDoesNotWaitForARetry) {
  // 16 bits are hardly faster than none, and off where the machine is busy; top-k would still pay.
  Pilot pilot(pilot_model(), 4, {.specs = {kSparse}, .tuning_turns = 0});
  Job job = link_of(10e6);  // none 0.82 s
  job.step_s["bf16"] = 0.79;
  job.run_to_cruise(pilot);
  ASSERT_EQ(pilot.plan().spec, "bf16") << pilot.log_json_lines();
  job.more_s = 0.6;
  job.run(pilot, 1);
  ASSERT_TRUE(pilot.plan().off()) << pilot.log_json_lines();
  job.run(pilot, 60);
  EXPECT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
  const Decision* loosened = find(pilot, "loosen", kSparse);
  ASSERT_NE(loosened, nullptr) << pilot.log_json_lines();
  EXPECT_TRUE(loosened->from.starts_with("none")) << loosened->from;
  // What 16 bits wait more than the link says top-k is taken to wait, too: 0.33 s.
  const double expected = loosened->numbers.at("expected_s of " + loosened->to);
  EXPECT_NEAR(expected, 0.1075 + 0.33 + 0.6, 0.01) << pilot.log_json_lines();
  const double least = kWaits / (1.42 / (1.2 * expected) - 1);
  EXPECT_GE(static_cast<double>(loosened->step), least);
  EXPECT_LT(static_cast<double>(loosened->step), least + 200);  // retries of 16 bits are between
}

TEST(PilotAge, ManyThatMakeGradientsWaitLeaveATurnToOneThatDoesNot) {
  Pilot pilot(pilot_model(), 4,
              {.specs = {"int4", kSparse, "chunktopk:64/4096", "powersgd:1"}, .tuning_turns = 0});
  Job job = slow_link();
  job.bytes_per_s = 4e7;
  job.step_s = {{"none", 0.4},
                {"bf16", 0.24},
                {"int4", 0.17},
                {kSparse, 0.15},
                {to_string(parse_spec("chunktopk:64/4096")), 0.15},
                {"powersgd:1", 0.15}};
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
}

TEST(PilotAge, AYoungJobTriesFirstWhatSendsEverything) {
  // It may end while candidates are timed: behind a change of the link, say.
  for (const auto& [age, waits] : {std::pair{uint64_t{0}, false}, {100'000, true}}) {
    Pilot pilot(pilot_model(), 4, {.age = age});
    Job job = slow_link();
    while (pilot.phase() != Phase::kTime) {
      job.run_window(pilot);
    }
    EXPECT_EQ(pilot.plan().waits > 0, waits) << pilot.plan().name;
  }
}

TEST(PilotAge, AJobBeginsWithWhatSendsEverything) {
  // By the link alone top-k is the fastest, but not twenty times as fast as int4, as it would
  // have to be in a job of five steps.
  // Where updates are linear three times as fast would do, and it is seven times.
  for (const auto& [age, updates, spec] : {std::tuple{uint64_t{0}, Updates::kScaled, "int4"},
                                           {1000, Updates::kScaled, kSparse},
                                           {0, Updates::kLinear, kSparse}}) {
    Pilot pilot(pilot_model(), 4, {.updates = updates, .age = age});
    PilotCosts costs = slow_link().costs(pilot);
    costs.alpha_s = 1e-5;
    ASSERT_TRUE(pilot.begin(costs));
    EXPECT_EQ(pilot.plan().spec, spec) << pilot.log_json_lines();
  }
}

TEST(PilotAge, WhereUpdatesAreLinearTheRootOfWhatWaitsCounts) {
  // Top-k takes 0.1375 s and int4 0.55, more than 1.2 * 0.1375 * (1 + root / 5).
  for (const Updates updates : {Updates::kScaled, Updates::kLinear}) {
    const bool linear = updates == Updates::kLinear;
    Pilot pilot(pilot_model(), 4, {.updates = updates, .tuning_turns = 0});
    Job job = link_of(2e6);
    job.run_to_cruise(pilot);
    EXPECT_EQ(pilot.plan().spec, linear ? kSparse : "int4") << pilot.log_json_lines();
    const Decision* timed = find(pilot, "predict", "");
    ASSERT_NE(timed, nullptr) << pilot.log_json_lines();
    double most = 0;
    for (const auto& [name, value] : timed->numbers) {
      most = name.starts_with("waits_steps of ") ? std::max(most, value) : most;
    }
    EXPECT_NEAR(most, linear ? std::sqrt(kWaits) : kWaits, 1e-9) << pilot.log_json_lines();
  }
}

TEST(PilotAge, WhatIsNotChosenBySizeWaitsInFull) {
  // Factors, and what is drawn at random: whole parts of the gradient wait, not the smallest.
  for (const std::string spec : {"powersgd:1", "randomk:1%"}) {
    Pilot pilot(pilot_model(), 4,
                {.specs = {spec}, .updates = Updates::kLinear, .tuning_turns = 0});
    Job job = slow_link();
    const std::string canonical = to_string(parse_spec(spec));
    job.step_s[canonical] = 0.15;
    for (int window = 0; window < 2 && find(pilot, "predict", "") == nullptr; ++window) {
      job.run_window(pilot);
    }
    const Decision* timed = find(pilot, "predict", "");
    ASSERT_NE(timed, nullptr) << pilot.log_json_lines();
    const auto waits = std::ranges::find_if(timed->numbers, [&](const auto& number) {
      return number.first.starts_with("waits_steps of " + canonical);
    });
    ASSERT_NE(waits, timed->numbers.end()) << pilot.log_json_lines();
    EXPECT_NEAR(waits->second, waits_of({.spec = parse_spec(spec)}, pilot_model()), 1e-9);
    EXPECT_GT(waits->second, 90);
  }
}

TEST(PilotAge, WhatSendsMostOfItHasNoRootThatIsMore) {
  // Of 60% an element waits for 2/3 of a step, whose root is 0.8.
  Pilot pilot(pilot_model(), 4, {.specs = {"topk:60%,int4"}, .updates = Updates::kLinear});
  Job job = slow_link();
  job.step_s["topk:60%,int4"] = 0.2;
  job.run_window(pilot);
  const Decision* timed = find(pilot, "predict", "");
  ASSERT_NE(timed, nullptr) << pilot.log_json_lines();
  for (const auto& [name, value] : timed->numbers) {
    if (name.starts_with("waits_steps of ")) {
      EXPECT_NEAR(value, 2.0 / 3 * 1200 / 1201, 1e-9) << name;
      return;
    }
  }
  FAIL() << pilot.log_json_lines();
}

TEST(PilotAge, TheOptimizerMayBecomeKnownLater) {
  Pilot pilot(pilot_model(), 4, {.tuning_turns = 0});
  EXPECT_EQ(pilot.updates(), Updates::kScaled);
  Job job = link_of(2e6);
  PilotCosts costs = job.costs(pilot);
  ASSERT_TRUE(pilot.begin(costs));
  EXPECT_EQ(pilot.plan().spec, "int4") << pilot.log_json_lines();
  pilot.set_updates(Updates::kLinear);
  job.run_to_cruise(pilot);
  EXPECT_EQ(pilot.plan().spec, kSparse) << pilot.log_json_lines();
}

TEST(PilotAge, WordsOfUpdates) {
  for (const Updates updates : {Updates::kScaled, Updates::kLinear}) {
    EXPECT_EQ(parse_updates(to_string(updates)), updates);
  }
  EXPECT_EQ(message_of([] { parse_updates("adam"); }),
            "updates: are 'adam', must be linear or scaled");
}

TEST(PilotAge, RefusesAWeightThatCannotBe) {
  EXPECT_EQ(message_of([] { Pilot(pilot_model(), 4, {.waiting = -1}); }),
            "pilot: waiting is -1, must be in [0, 1000]");
}

}  // namespace
}  // namespace gradwire::planner
