// gradwire-trainer with 1-bit Adam and 1-bit LAMB: what is exchanged before the freeze and after it.

#include "tests/bench/trainer_runs.h"

namespace trainer_runs {
namespace {

TEST_F(Trainer, ExchangesMomentaByItsMethodBehindTheFreeze) {
  for (const std::string name : {"onebit-adam", "onebit-lamb"}) {
    SCOPED_TRACE(name);
    const auto run = start(
        "run", {"--world-size", "2", "--epochs", "5", "--method", "1bit", "--exchange", "two_shot",
                "--optimizer", name + ":freeze_step=20", "--learning-rate", "0.01"});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    const std::string output = run->output();
    const auto steps = events_named(output, "step");
    ASSERT_EQ(steps.size(), 50u);  // 320 examples / (2 ranks * 16) = 10 steps
    const double dense = std::stod(field(steps[0], "bytes_sent"));
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(field(steps[i], "bytes_sent"), field(steps[i], "predicted_bytes_sent"));
      const double sent = std::stod(field(steps[i], "bytes_sent"));
      EXPECT_TRUE(i < 20 ? sent == dense : sent < dense / 5) << steps[i];
    }
    const auto plans = events_named(output, "plan");
    ASSERT_EQ(plans.size(), 1u);
    EXPECT_EQ(field(plans[0], "step"), "20");
    EXPECT_EQ(field(plans[0], "exchange"), "two_shot");
    EXPECT_EQ(field(plans[0], "plan_fingerprint"),
              field(events_named(output, "start")[0], "plan_fingerprint"));
    for (const std::string& epoch : events_named(output, "epoch")) {
      EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
    }
    EXPECT_GT(std::stod(field(events_named(output, "done")[0], "final_accuracy")), 0.9);
  }
}

TEST_F(Trainer, OneBitAdamWithoutCompressionBeforeItsFreezeIsAdamW) {
  std::string hashes[2];
  for (size_t i = 0; i < 2; ++i) {
    const auto run =
        start("run", {"--world-size", "2", "--epochs", "2", "--method", i == 0 ? "none" : "1bit",
                      "--optimizer", i == 0 ? "adamw" : "onebit-adam:freeze_step=1000"});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    EXPECT_TRUE(events_named(run->output(), "plan").empty());
    hashes[i] = field(events_named(run->output(), "epoch").back(), "parameter_hash");
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace trainer_runs
