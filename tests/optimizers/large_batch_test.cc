// large_batch(): the published rules, with numbers computed by hand.

#include "gradwire/optimizers/large_batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

SmallBatch small(const char* optimizer, double rate) {
  return {.optimizer = parse_optimizer(optimizer),
          .learning_rate = rate,
          .batch = 256,
          .examples = 60000,
          .epochs = 10,
          .warmup_epochs = 0.5};
}

TEST(LargeBatchRecipe, SgdBecomesLarcAtTheLinearRate) {
  const LargeBatch large =
      large_batch(small("sgd:momentum=0.8,nesterov=1,weight_decay=1e-4", 0.1), 4096);
  EXPECT_EQ(to_string(large.optimizer), "larc:momentum=0.8,nesterov=1,weight_decay=1e-04");
  EXPECT_DOUBLE_EQ(large.schedule.base, 1.6);
  // 60000 / 4096 = 14 steps an epoch; 0.5 epochs of 234 steps are 117 before, 140 * 2 / 9 the most.
  EXPECT_EQ(large.schedule.total_steps, 140u);
  EXPECT_EQ(large.schedule.warmup_steps, 31u);
  EXPECT_EQ(large.vectors.weight_decay, 0.0);
  EXPECT_FALSE(large.vectors.adapt);
  EXPECT_NE(large.why.find("16 times"), std::string::npos) << large.why;
  EXPECT_EQ(to_string(large_batch(small("larc:trust_coefficient=0.01", 0.1), 512).optimizer),
            "larc:trust_coefficient=0.01");
  const OptimizerSpec coded =
      large_batch(small("sgd:state=8bit,min_8bit_size=100", 0.1), 4096).optimizer;
  EXPECT_EQ(coded.state, StateBits::kEight);
  EXPECT_EQ(coded.min_8bit_size, 100u);
}

TEST(LargeBatchRecipe, LarsLambAndAdamwFollowTheRoot) {
  for (const char* name : {"lars", "adamw"}) {
    EXPECT_DOUBLE_EQ(large_batch(small(name, 0.1), 4096).schedule.base, 0.4) << name;
  }
  EXPECT_DOUBLE_EQ(large_batch(small("lamb", 0.005), 4096).schedule.base, 0.02);
  EXPECT_EQ(to_string(large_batch(small("lamb:weight_decay=0.01", 0.1), 4096).optimizer),
            "lamb:weight_decay=0.01");
  const OptimizerSpec adamw = large_batch(small("adamw", 1e-3), 1024).optimizer;
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_NEAR(adamw.beta2, 0.996, 1e-12);
  EXPECT_NEAR(adamw.epsilon.value(), 5e-9, 1e-20);
  EXPECT_EQ(large_batch(small("adamw:beta2=0.98", 1e-3), 16384).optimizer.beta2, 0.5);
  // What is farther from 1 already stays.
  EXPECT_NEAR(large_batch(small("adamw:beta2=0.2", 1e-3), 1024).optimizer.beta2, 0.2, 1e-12);
}

// 10 epochs are 2340 steps at 256, and 580, 140 and 10 at 1024, 4096 and 32768.
TEST(LargeBatchRecipe, LambGoesAsFarInFewerSteps) {
  const auto rate = [](double at_256, uint64_t batch) {
    return large_batch(small("lamb", at_256), batch).schedule.base;
  };
  // Steps at 1e-4 add up to 0.117: the root's, 2e-4 and 580, would to 0.058.
  EXPECT_DOUBLE_EQ(rate(1e-4, 1024), 1e-4 * 2340 / 580);
  EXPECT_DOUBLE_EQ(rate(1e-4, 4096), 1e-4 * 2340 / 140);
  EXPECT_DOUBLE_EQ(rate(1e-4, 32768), 1e-4 * 2340 / 10);
  // Steps at 1e-3 to 1.17: a layer's own size is enough.
  EXPECT_DOUBLE_EQ(rate(1e-3, 4096), 2.0 / 140);
  EXPECT_DOUBLE_EQ(rate(1e-3, 32768), 0.04);
  // Steps at 0.01 to 11.7, and the root's to 5.8 and 2.8.
  EXPECT_DOUBLE_EQ(rate(1e-2, 1024), 0.02);
  EXPECT_DOUBLE_EQ(rate(1e-2, 4096), 0.04);
  EXPECT_NE(large_batch(small("lamb", 1e-4), 1024).why.find("as far as the 2340 did"),
            std::string::npos);
  EXPECT_DOUBLE_EQ(large_batch(small("lars", 1e-4), 1024).schedule.base, 2e-4);
}

// A step of lars moves a layer by rate * coefficient / (1 - momentum) of its size.
TEST(LargeBatchRecipe, LayersMoveNoFartherThanIsKnownToWork) {
  const auto rate = [](const char* spec, double at_256, uint64_t batch) {
    return large_batch(small(spec, at_256), batch).schedule.base;
  };
  EXPECT_DOUBLE_EQ(rate("lars", 10, 512), 10 * std::sqrt(2.0));
  EXPECT_NEAR(rate("lars", 10, 4096), 20, 1e-9);  // 20 * 0.001 / 0.1 is a fifth; 40 by the root
  EXPECT_NEAR(rate("lars:trust_coefficient=0.01", 1, 4096), 2, 1e-9);
  EXPECT_NEAR(rate("lars:momentum=0.8", 15, 4096), 40, 1e-9);
  EXPECT_DOUBLE_EQ(rate("lars", 25, 4096), 25);  // which has worked
  EXPECT_DOUBLE_EQ(rate("lamb", 1e-2, 32768), 0.04);
  EXPECT_DOUBLE_EQ(rate("lamb", 0.05, 32768), 0.05);
  EXPECT_TRUE(large_batch(small("lars", 10), 4096)
                  .why.starts_with("The rate is at its largest, 20: 4 times as large, the root "
                                   "(arXiv 1904.00962) of the batch's "
                                   "16, would move layers farther than LARC's coefficient of 0.02 "
                                   "lets them. It warms up"))
      << large_batch(small("lars", 10), 4096).why;
}

// (1 + 768 / 256) / (1 + 768 / 3072) = 4 / 1.25.
TEST(LargeBatchRecipe, ANoiseScaleSaysWhereRatesStopGrowing) {
  SmallBatch run = small("sgd", 0.1);
  run.noise_scale = 768;
  EXPECT_DOUBLE_EQ(large_batch(run, 3072).schedule.base, 0.32);
  // Not the rule of the batch, which was not used.
  EXPECT_TRUE(large_batch(run, 3072).why.starts_with(
      "The rate is 3.2 times as large, what a noise scale of 768 "
      "leaves of the batch's 12 (arXiv 1812.06162); LARC"))
      << large_batch(run, 3072).why;
  EXPECT_EQ(large_batch(run, 3072).why.find("1706.02677"), std::string::npos);
  run.optimizer = parse_optimizer("adamw");
  EXPECT_DOUBLE_EQ(large_batch(run, 3072).schedule.base, 0.1 * std::sqrt(3.2));
  EXPECT_NEAR(large_batch(run, 3072).optimizer.beta2, 1 - 0.012, 1e-12);  // of the batch's 12
  EXPECT_NEAR(large_batch(run, 3072).optimizer.epsilon.value(), 1e-8 / std::sqrt(3.2), 1e-20);
  run.noise_scale = 1e12;
  EXPECT_NEAR(large_batch(run, 3072).schedule.base, 0.1 * std::sqrt(12.0), 1e-9);
  run.noise_scale = 0;
  EXPECT_EQ(message_of<InvalidArgument>([&] { large_batch(run, 512); }),
            "large_batch: noise_scale is 0, must be finite and > 0");
}

// LAMB's last rule has the last word, and says what it is above.
TEST(LargeBatchRecipe, WhyNamesTheRootOfWhatTheNoiseScaleLeaves) {
  SmallBatch run = small("lamb", 1e-4);
  run.noise_scale = 768;
  EXPECT_TRUE(large_batch(run, 3072).why.find("1.78885 times as large, the root (arXiv 1904.00962) "
                                              "of 3.2, what a noise scale of 768 leaves of the "
                                              "batch's 12 (arXiv 1812.06162), does not.") !=
              std::string::npos)
      << large_batch(run, 3072).why;
  run.optimizer = parse_optimizer("adamw");
  EXPECT_TRUE(large_batch(run, 3072).why.starts_with(
      "The rate is 1.78885 times as large, the root (arXiv 2205.10287) of 3.2, what a noise scale "
      "of 768 leaves of the batch's 12 (arXiv 1812.06162). 1 - beta2 grows as the batch"))
      << large_batch(run, 3072).why;
  run.noise_scale.reset();
  EXPECT_TRUE(large_batch(run, 1024).why.starts_with(
      "The rate is 2 times as large, the root (arXiv 2205.10287) of the batch's 4. "))
      << large_batch(run, 1024).why;
}

// 60000 / 4096 is 14.6, of 10 epochs.
TEST(LargeBatchRecipe, CountsBatchesThatAreNotFullWhereTheyAreSteps) {
  SmallBatch run = small("sgd", 0.1);
  EXPECT_EQ(large_batch(run, 4096).schedule.total_steps, 140u);
  run.drop_last = false;
  EXPECT_EQ(large_batch(run, 4096).schedule.total_steps, 150u);
  EXPECT_EQ(large_batch(run, 6000).schedule.total_steps, 100u);  // none is left over
  // 235 steps an epoch before, of which 0.5 epochs are 117.5.
  EXPECT_EQ(large_batch(run, 256).schedule.warmup_steps, 118u);
}

TEST(LargeBatchRecipe, WarmsUpForAtLeastAnEighteenth) {
  SmallBatch without = small("sgd", 0.1);
  without.warmup_epochs = 0;
  EXPECT_EQ(large_batch(without, 1024).schedule.total_steps, 580u);
  EXPECT_EQ(large_batch(without, 1024).schedule.warmup_steps, 32u);  // 580 * 5 / 90 = 32.2
}

TEST(LargeBatchRecipe, ABatchThatIsNoLargerKeepsWhatWorked) {
  for (uint64_t batch : {256u, 64u}) {
    const LargeBatch same = large_batch(small("sgd:momentum=0.8", 0.1), batch);
    EXPECT_EQ(same.optimizer, parse_optimizer("sgd:momentum=0.8"));
    EXPECT_DOUBLE_EQ(same.schedule.base, 0.1);
  }
  EXPECT_EQ(large_batch(small("sgd", 0.1), 256).schedule.warmup_steps, 117u);
}

TEST(LargeBatchRecipe, RefusesWhatCannotBeARun) {
  const auto refusal = [](SmallBatch run, uint64_t batch) {
    return message_of<InvalidArgument>([&] { large_batch(run, batch); });
  };
  SmallBatch run = small("sgd", 0.1);
  EXPECT_EQ(
      refusal(run, 70000),
      "large_batch: batches are 256 and 70000, must be at most 60000, the number of examples");
  EXPECT_EQ(refusal(run, 0), "large_batch: batches are 256 and 0, must be at least 1");
  run.learning_rate = std::nan("");
  EXPECT_EQ(refusal(run, 512), "large_batch: learning_rate is nan, must be finite and > 0");
  run = small("sgd", 0.1);
  run.epochs = 0;
  EXPECT_EQ(refusal(run, 512), "large_batch: epochs is 0, must be finite and > 0");
  run = small("sgd", 0.1);
  run.warmup_epochs = 11;
  EXPECT_EQ(refusal(run, 512), "large_batch: warmup_epochs is 11, must be in [0, 10], the epochs");
  EXPECT_EQ(refusal(small("diloco", 0.7), 512),
            "large_batch: the optimizer is diloco, expected one that steps on gradients");
}

}  // namespace
}  // namespace gradwire
