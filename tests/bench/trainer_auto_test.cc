// gradwire-trainer with the method auto: it finds out what the link is, and ranks stay the same.

#include <algorithm>
#include <filesystem>

#include "tests/bench/trainer_runs.h"

namespace trainer_runs {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

// 64 * 128 + 128 * 128 + 128 * 4 weights and 260 biases: 200 ms a step without compression.
constexpr size_t kParameters = 64 * 128 + 128 * 128 + 128 * 4 + 260;
const Arguments kSlowLink = {"--world-size", "2",     "--hidden",     "128,128",
                             "--pace",       "4mbit", "--batch-size", "16"};

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// What a run on a slow link must show: it begins with what is fast there, decides, and compresses.
void expect_compressed(const std::string& output) {
  const std::string start = events_named(output, "start").at(0);
  const auto plans = events_named(output, "plan");
  const auto steps = events_named(output, "step"), decisions = events_named(output, "decision");
  // Of 2 ranks each sends half of the gradient to the other, then the mean of its half.
  const double dense = 4.0 * kParameters;
  for (const std::string& step : steps) {
    EXPECT_LT(std::stod(field(step, "bytes_sent")), 0.6 * dense) << step;
  }
  EXPECT_LT(std::stod(field(steps.back(), "bytes_sent")), 0.3 * dense) << steps.back();
  ASSERT_GE(decisions.size(), 3u) << output;
  EXPECT_EQ(field(decisions[0], "what"), "begin") << decisions[0];
  EXPECT_EQ(field(decisions[0], "step"), "0") << decisions[0];
  EXPECT_EQ(field(decisions[0], "from"), "none") << decisions[0];
  EXPECT_GT(std::stod(field(decisions[0], "bytes_per_s")), 0) << decisions[0];
  EXPECT_EQ(field(decisions[1], "what"), "predict") << decisions[1];
  EXPECT_EQ(field(decisions[1], "step"), "5") << decisions[1];
  const auto chosen = std::find_if(decisions.begin(), decisions.end(), [](const std::string& d) {
    return field(d, "what") == "choose";
  });
  ASSERT_NE(chosen, decisions.end()) << output;
  EXPECT_NE(field(*chosen, "to").find(" bucket"), std::string::npos) << *chosen;
  EXPECT_FALSE(field(*chosen, "reason").empty()) << *chosen;
  size_t before = 0;
  for (const std::string& decision : decisions) {
    EXPECT_GE(std::stoul(field(decision, "step")), before) << decision;
    before = std::stoul(field(decision, "step"));
  }
  EXPECT_EQ(field(start, "method").substr(0, 4), "auto");
  EXPECT_FALSE(plans.empty());  // trials; what is chosen may be what it began with
}

TEST_F(Trainer, AutoCompressesOnASlowLinkAndRanksAreTheSame) {
  const auto run = start("run", with(kSlowLink, {"--method", "auto:window=10", "--epochs", "9"}));
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  expect_trained(run->output(), 90);  // 320 examples / (2 ranks * 16) = 10 steps
  expect_compressed(run->output());
}

TEST_F(Trainer, AutoKnowsWhatTheOptimizerMakesOfGradientsThatComeLate) {
  // Of sgd the root of topk:1%'s 99 steps counts, a little less for biases that travel whole.
  for (const auto& [optimizer, steps] :
       {std::pair{"sgd:momentum=0.9", 9.95}, {"adamw", 99.0}, {"lars", 99.0}, {"lamb", 99.0}}) {
    const auto run = start("run", with(kSlowLink, {"--method", "auto:specs=int4|topk:1%",
                                                   "--max-steps", "6", "--optimizer", optimizer}));
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    const auto decisions = events_named(run->output(), "decision");
    ASSERT_GE(decisions.size(), 1u) << run->output();
    const std::string words = "\"waits_steps of topk:1%";
    const size_t at = decisions[0].find(words);
    ASSERT_NE(at, std::string::npos) << decisions[0];
    const double counted = std::stod(decisions[0].substr(decisions[0].find("\":", at + 1) + 2));
    EXPECT_LE(counted, steps) << optimizer;
    EXPECT_GT(counted, 0.9 * steps) << optimizer;
  }
}

TEST_F(Trainer, AutoHasNothingToChooseForOneRank) {
  const auto run = start("run", {"--world-size", "1", "--max-steps", "3", "--method", "auto"});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  const auto decisions = events_named(run->output(), "decision");
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(field(decisions[0], "step"), "0");
  EXPECT_EQ(field(decisions[0], "to"), "none");
  EXPECT_EQ(field(decisions[0], "reason"), "one rank: nothing is exchanged");
  EXPECT_TRUE(events_named(run->output(), "plan").empty());
}

TEST_F(Trainer, AutoGoesOnWithTheCheckpointsPlanBitForBit) {
  const std::string saved = folder_.path() + "/saved";
  // The guard does not look before 1000 steps: behind the last turn nothing changes.
  const Arguments job = with(kSlowLink, {"--method", "auto:window=1000", "--checkpoint", saved,
                                         "--checkpoint-every", "80"});
  const auto trained = [&](const Arguments& more) {
    const auto run = start("run", with(job, more));
    EXPECT_EQ(run->wait(kLong), 0) << run->errors();
    return run->output();
  };
  const std::string whole = trained({"--max-steps", "100"});
  const std::string last_plan = events_named(whole, "plan").back();
  ASSERT_LT(std::stoi(field(last_plan, "step")), 80) << last_plan;
  fs::remove_all(saved + "/step-100");

  const std::string rest = trained({"--max-steps", "100", "--resume", "1"});
  const std::string again = events_named(rest, "start").at(0);
  EXPECT_EQ(field(again, "resumed_at"), "80");
  EXPECT_EQ(field(again, "plan_fingerprint"), field(last_plan, "plan_fingerprint"));
  EXPECT_EQ(field(events_named(rest, "epoch").back(), "parameter_hash"),
            field(events_named(whole, "epoch").back(), "parameter_hash"));
  EXPECT_TRUE(events_named(rest, "decision").empty());

  // 200 steps on it begins anew, and measures.
  fs::remove_all(saved + "/step-100");
  const std::string anew = trained({"--max-steps", "290", "--resume", "1", "--epochs", "29"});
  ASSERT_FALSE(events_named(anew, "plan").empty());
  EXPECT_EQ(field(events_named(anew, "plan").at(0), "step"), "280");
  const auto decisions = events_named(anew, "decision");
  ASSERT_GE(decisions.size(), 2u) << anew;
  EXPECT_EQ(field(decisions[0], "what"), "begin");
  EXPECT_EQ(field(decisions[0], "step"), "280");
  EXPECT_EQ(field(decisions[1], "step"), "285");
  for (const std::string& epoch : events_named(anew, "epoch")) {
    EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
  }
}

TEST_F(Trainer, AutoTakesOverTheCheckpointOfAnotherMethodAndTheReverse) {
  const std::string saved = folder_.path() + "/saved";
  const Arguments common = {"--world-size", "2", "--checkpoint", saved};
  for (const auto& [first, then] : {std::pair("topk:5%", "auto"), std::pair("auto", "topk:5%")}) {
    SCOPED_TRACE(first);
    fs::remove_all(saved);
    const auto begun = start("run", with(common, {"--method", first, "--epochs", "1"}));
    ASSERT_EQ(begun->wait(kLong), 0) << begun->errors();
    const auto rest =
        start("run", with(common, {"--method", then, "--epochs", "8", "--resume", "1"}));
    ASSERT_EQ(rest->wait(kLong), 0) << rest->errors();
    EXPECT_EQ(field(events_named(rest->output(), "start").at(0), "resumed_at"), "10");
    EXPECT_GT(std::stod(field(events_named(rest->output(), "done").at(0), "final_accuracy")), 0.9);
    for (const std::string& epoch : events_named(rest->output(), "epoch")) {
      EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
    }
  }
}

TEST_F(Trainer, AutoRefusesWhatIsNoSpecBeforeAnyStep) {
  const auto run = start("run", {"--world-size", "2", "--method", "auto:specs=powersgd:0"});
  EXPECT_EQ(run->wait(kLong), 2);
  EXPECT_NE(run->errors().find("powersgd: rank is 0"), std::string::npos) << run->errors();
  EXPECT_TRUE(events_named(run->output(), "step").empty());
}

#if GRADWIRE_WITH_GLOO

TEST_F(Trainer, AutoCompressesWithRanksAsProcesses) {
  const auto ranks = start_ranks(2, {"--hidden", "128,128", "--pace", "10mbit", "--method",
                                     "auto:window=10", "--epochs", "9"});
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->wait(kLong), 0) << rank->errors();
  }
  expect_trained(ranks[0]->output(), 90);
  expect_compressed(ranks[0]->output());
  EXPECT_TRUE(events_named(ranks[1]->output(), "decision").empty());
}

#endif

}  // namespace
}  // namespace trainer_runs
