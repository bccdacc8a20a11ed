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
  // 60000 / 4096 = 14 steps an epoch; 0.5 epochs of 234 steps are 117 before, 0.3 * 140 the most.
  EXPECT_EQ(large.schedule.total_steps, 140u);
  EXPECT_EQ(large.schedule.warmup_steps, 42u);
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
  for (const char* name : {"lars", "lamb:weight_decay=0.01", "adamw"}) {
    EXPECT_DOUBLE_EQ(large_batch(small(name, 0.1), 4096).schedule.base, 0.4) << name;
  }
  EXPECT_EQ(to_string(large_batch(small("lamb:weight_decay=0.01", 0.1), 4096).optimizer),
            "lamb:weight_decay=0.01");
  const OptimizerSpec adamw = large_batch(small("adamw", 1e-3), 1024).optimizer;
  EXPECT_NEAR(adamw.beta1, 0.6, 1e-12);
  EXPECT_NEAR(adamw.beta2, 0.996, 1e-12);
  EXPECT_NEAR(adamw.epsilon, 5e-9, 1e-20);
  EXPECT_EQ(large_batch(small("adamw", 1e-3), 16384).optimizer.beta1, 0.5);
  // What is farther from 1 already stays.
  EXPECT_NEAR(large_batch(small("adamw:beta1=0.2", 1e-3), 1024).optimizer.beta1, 0.2, 1e-12);
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
