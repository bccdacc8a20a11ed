#include "bench/trainer/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "gradwire/kernels/core/error.h"

namespace {

using trainer::BatchSampler;
using trainer::Sharding;

TEST(Sharding, RanksTogetherCoverTheEpochsPermutationOnce) {
  // 103 examples, 3 ranks of 8: 4 steps, and 7 examples are dropped.
  const Sharding sharding{.examples = 103, .batch_size = 8, .world_size = 3, .seed = 5};
  ASSERT_EQ(sharding.steps_per_epoch(), 4u);
  std::vector<BatchSampler> samplers;
  for (size_t r = 0; r < 3; ++r) {
    samplers.emplace_back(sharding, r);
  }
  std::set<uint32_t> all_dropped;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<uint32_t> seen;
    for (uint64_t step = 0; step < 4; ++step) {
      for (auto& sampler : samplers) {
        const auto batch = sampler.batch(epoch * 4 + step);
        ASSERT_EQ(batch.size(), 8u);
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
    }
    EXPECT_EQ(seen.size(), 96u);
    const std::set<uint32_t> distinct(seen.begin(), seen.end());
    EXPECT_EQ(distinct.size(), 96u) << "an example twice in an epoch";
    EXPECT_LT(*distinct.rbegin(), 103u);
    for (uint32_t i = 0; i < 103; ++i) {
      if (distinct.count(i) == 0) {
        all_dropped.insert(i);
      }
    }
  }
  EXPECT_GT(all_dropped.size(), 7u) << "every epoch drops the same examples";
}

TEST(Sharding, PermutationsDifferByEpochAndSeedAndRepeatOtherwise) {
  const Sharding one{.examples = 50, .batch_size = 1, .world_size = 1, .seed = 1};
  const Sharding two{.examples = 50, .batch_size = 1, .world_size = 1, .seed = 2};
  const auto first = trainer::epoch_permutation(one, 0);
  EXPECT_EQ(first, trainer::epoch_permutation(one, 0));
  EXPECT_NE(first, trainer::epoch_permutation(one, 1));
  EXPECT_NE(first, trainer::epoch_permutation(two, 0));
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(sorted[i], i);
  }
}

TEST(Sharding, SaysTheNumbersWhenAnEpochHasNoStep) {
  try {
    BatchSampler({.examples = 100, .batch_size = 32, .world_size = 4, .seed = 0}, 0);
    FAIL() << "nothing was thrown";
  } catch (const gradwire::InvalidArgument& error) {
    const std::string message = error.what();
    for (const char* part : {"100 training examples", "4 ranks", "32", "at least 128"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

// Images of `channels` planes of two pixels.
trainer::LabelledImages images_of(size_t channels, const std::vector<uint8_t>& pixels) {
  return {.count = pixels.size() / (2 * channels),
          .channels = channels,
          .rows = 1,
          .columns = 2,
          .pixels = pixels,
          .labels = {}};
}

TEST(Standardiser, GivesTheTrainingPixelsMeanZeroAndDeviationOne) {
  const std::vector<uint8_t> pixels = {2, 4, 4, 4, 5, 5, 7, 9};  // mean 5, deviation 2
  const trainer::Standardiser standardise(images_of(1, pixels));
  EXPECT_DOUBLE_EQ(standardise.mean(), 5.0);
  EXPECT_DOUBLE_EQ(standardise.deviation(), 2.0);
  EXPECT_EQ(standardise(9), 2.0f);
  EXPECT_EQ(standardise(0), -2.5f);
  EXPECT_EQ(standardise(255), 125.0f);
}

TEST(Standardiser, RejectsPixelsThatAreAllEqual) {
  EXPECT_THROW(trainer::Standardiser(images_of(1, std::vector<uint8_t>(10, 7))),
               gradwire::InvalidArgument);
  EXPECT_THROW(trainer::Standardiser(images_of(2, {7, 7, 9, 9, 7, 7, 9, 9})),
               gradwire::InvalidArgument);
}

TEST(Standardiser, TakesEachChannelByItsOwnPixels) {
  // Two images: the first channel has 2, 4, 6, 8, the second 5 alone, the third 0, 0, 100, 100.
  const trainer::Standardiser standardise(images_of(3, {2, 4, 5, 5, 0, 100, 6, 8, 5, 5, 100, 0}));
  EXPECT_DOUBLE_EQ(standardise.mean(0), 5.0);
  EXPECT_DOUBLE_EQ(standardise.deviation(0), std::sqrt(5.0));
  EXPECT_EQ(standardise(5, 0), 0.0f);
  EXPECT_EQ(standardise(5, 1), 0.0f);
  EXPECT_EQ(standardise(7, 1), 2.0f);  // deviation 1: there was none
  EXPECT_EQ(standardise(100, 2), 1.0f);
  EXPECT_EQ(standardise(0, 2), -1.0f);
}

TEST(GatherExamples, CopiesPixelsAndLabelsOfTheIndices) {
  const trainer::LabelledImages images{
      .count = 3, .rows = 1, .columns = 2, .pixels = {0, 2, 4, 6, 8, 10}, .labels = {5, 6, 7}};
  const trainer::Standardiser standardise(images_of(1, {0, 2}));  // mean 1, deviation 1
  std::vector<float> inputs(4);
  std::vector<uint8_t> labels(2);
  const std::vector<uint32_t> indices = {2, 0};
  trainer::gather_examples(images, standardise, indices, inputs, labels);
  EXPECT_EQ(inputs, (std::vector<float>{7, 9, -1, 1}));
  EXPECT_EQ(labels, (std::vector<uint8_t>{7, 5}));
}

TEST(GatherExamples, TakesEachPlaneByItsChannel) {
  // Means 1 and 15, deviations 1 and 5.
  const trainer::Standardiser standardise(images_of(2, {0, 2, 10, 20}));
  trainer::LabelledImages images = images_of(2, {1, 3, 15, 5, 0, 2, 20, 30});
  images.labels = {4, 9};
  std::vector<float> inputs(4);
  std::vector<uint8_t> labels(1);
  const std::vector<uint32_t> second = {1};
  trainer::gather_examples(images, standardise, second, inputs, labels);
  EXPECT_EQ(inputs, (std::vector<float>{-1, 1, 1, 3}));
  EXPECT_EQ(labels, std::vector<uint8_t>{9});
}

}  // namespace
