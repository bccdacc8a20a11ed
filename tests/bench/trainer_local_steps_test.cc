// gradwire-trainer with local steps: who exchanges when, and that ranks are the same behind it.

#include "tests/bench/trainer_runs.h"

namespace trainer_runs {
namespace {

TEST_F(Trainer, ExchangesOnceInSoManyLocalStepsAndAtTheEnd) {
  for (const std::string outer : {"diloco", "diloco:preset=sparseloco"}) {
    SCOPED_TRACE(outer);
    const auto run =
        start("run", {"--world-size", "2", "--epochs", "11", "--local-steps", "4", "--outer", outer,
                      "--learning-rate", "0.1", "--eval-every", "6"});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    const std::string output = run->output();
    const auto steps = events_named(output, "step");
    ASSERT_EQ(steps.size(), 110u);  // 320 examples / (2 ranks * 16) = 10 steps
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool exchanges = (i + 1) % 4 == 0 || i + 1 == steps.size();
      EXPECT_EQ(field(steps[i], "bytes_sent") != "0", exchanges) << steps[i];
      EXPECT_EQ(field(steps[i], "bytes_sent"), field(steps[i], "predicted_bytes_sent"));
    }
    // Where the 6 steps of an evaluation and the 4 of an exchange meet, and at the end.
    EXPECT_EQ(events_named(output, "evaluate").size(), 10u);
    const auto epochs = events_named(output, "epoch");  // 20, 40, .., 100 and 110
    ASSERT_EQ(epochs.size(), 6u);
    for (const std::string& epoch : epochs) {
      EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
    }
    const auto done = events_named(output, "done");
    ASSERT_EQ(done.size(), 2u);
    EXPECT_GT(std::stod(field(done[0], "final_accuracy")), 0.9);
    EXPECT_EQ(field(events_named(output, "start")[0], "local_steps"), "4");
  }
}

TEST_F(Trainer, OptimizersOfGradientsAndOfLocalStepsAreToldApart) {
  const auto refusal = [&](const std::vector<std::string>& options) {
    const auto run = start("run", options);
    EXPECT_EQ(run->wait(kPrompt), 2);
    return run->errors();
  };
  EXPECT_NE(refusal({"--optimizer", "diloco"})
                .find("an optimizer of gradients: sgd, adamw, lars, larc, lamb"),
            std::string::npos);
  EXPECT_NE(refusal({"--outer", "sgd"}).find("an optimizer of local steps: diloco"),
            std::string::npos);
}

}  // namespace
}  // namespace trainer_runs
