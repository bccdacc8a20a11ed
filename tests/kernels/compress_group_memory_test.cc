// What a group remembers: a step writes the other buffers, and only what concludes the step makes them
// the committed ones.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "gradwire/kernels/compress/feedback.h"
#include "tests/support/generators.h"

namespace gradwire::testing {
namespace {

using Floats = std::vector<float>;

constexpr uint64_t kSeed = 20261127;

/// A Feedback of the CPU with its state, stream and workspace.
struct Group {
  Group(const std::string& spec, size_t numel, uint32_t committed_steps = 0)
      : feedback(parse_spec(spec), numel,
                 {.state = state, .stream = nullptr, .committed_steps = committed_steps}),
        whole{0, numel} {}

  /// One step whose next residual is `values`.
  void step(const Floats& values) {
    Workspace::Frame frame(workspace);
    Context context{*stream, workspace};
    const Feedback::Lent lent =
        feedback.lend(whole, Feedback::Holding::kCommitted, frame, context);
    std::ranges::copy(values, lent.e_next.begin());
    feedback.take_back(whole, lent, context);
  }
  void conclude() { cuda::conclude(*state->words(), false); }

  std::shared_ptr<DeviceState> state = std::make_shared<DeviceState>(Device{});
  std::unique_ptr<Stream> stream = make_inline_stream();
  Workspace workspace;
  Feedback feedback;
  Region whole;
};

/// The nearest of bfloat16, ties to even, by trying both neighbours in double precision.
float nearest_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float below = std::bit_cast<float>(bits & 0xFFFF0000u);
  const float above = std::bit_cast<float>((bits & 0xFFFF0000u) + 0x10000u);
  const double to_below = std::abs(double{value} - below), to_above = std::abs(above - double{value});
  const bool even = (bits >> 16 & 1) == 0;
  return to_below < to_above || (to_below == to_above && even) ? below : above;
}

TEST(GroupMemory, AResidualChangesWhenItsStepIsConcluded) {
  for (const char* spec : {"int8", "int8,residual=bf16"}) {
    SCOPED_TRACE(spec);
    const bool narrow = parse_spec(spec).feedback.residual == DType::kBFloat16;
    Group group(spec, 1000);
    Floats expected(1000, 0.0f);
    for (uint64_t step = 0; step < 4; ++step) {
      const Floats values = normal(1000, kSeed + step);
      group.step(values);
      EXPECT_EQ(group.feedback.residual(group.whole), expected) << "before, step " << step;
      if (step == 2) {
        continue;  // a step that nothing concludes leaves no trace
      }
      group.conclude();
      for (size_t i = 0; i < values.size(); ++i) {
        expected[i] = narrow ? nearest_bfloat16(values[i]) : values[i];
      }
      EXPECT_EQ(group.feedback.residual(group.whole), expected) << "behind, step " << step;
    }
    EXPECT_EQ(group.feedback.residual({10, 13}), Floats(expected.begin() + 10, expected.begin() + 13));
  }
}

TEST(GroupMemory, KeepsNothingWithoutFeedback) {
  Group group("fp16", 10);
  Workspace::Frame frame(group.workspace);
  Context context{*group.stream, group.workspace};
  EXPECT_TRUE(group.feedback.lend(group.whole, Feedback::Holding::kBoth, frame, context).e.empty());
  EXPECT_TRUE(group.feedback.residual(group.whole).empty());
  EXPECT_TRUE(group.feedback.estimate(group.whole).empty());
  EXPECT_FALSE(group.feedback.waits_in_residual());
}

TEST(GroupMemory, AnEstimateGrowsByTheMeansOfConcludedSteps) {
  Group group("int8,ef21", 3);
  Floats mean = {1.0f, 2.0f, 3.0f};
  group.feedback.add_estimate(mean, *group.stream);
  EXPECT_EQ(mean, (Floats{1.0f, 2.0f, 3.0f}));
  EXPECT_EQ(group.feedback.estimate(group.whole), Floats(3, 0.0f));
  group.conclude();
  EXPECT_EQ(group.feedback.estimate(group.whole), (Floats{1.0f, 2.0f, 3.0f}));
  mean = {0.5f, -2.0f, std::numeric_limits<float>::max()};
  group.feedback.add_estimate(mean, *group.stream);
  EXPECT_FALSE(group.feedback.estimate_overflows());
  group.conclude();
  EXPECT_EQ(group.feedback.estimate({0, 2}), (Floats{1.5f, 0.0f}));
  mean = {0.0f, 0.0f, std::numeric_limits<float>::max()};
  group.feedback.add_estimate(mean, *group.stream);
  EXPECT_TRUE(group.feedback.estimate_overflows());
}

TEST(GroupMemory, WhatWaitsGoesIntoGradientsUntilAStepIsCommitted) {
  Group group("none", 4, 7);
  group.state->words()->step = 7;
  const Floats some = {1.0f, 2.0f};
  group.feedback.wait_with(1, some, Feedback::Waiting::kMore);
  group.feedback.wait_with(2, some, Feedback::Waiting::kMore);
  EXPECT_EQ(Floats(group.feedback.waiting(group.whole).begin(), group.feedback.waiting(group.whole).end()),
            (Floats{0.0f, 1.0f, 3.0f, 2.0f}));
  group.feedback.wait_with(0, some, Feedback::Waiting::kInstead);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OwnedTensor gradient = tensor_of({10.0f, 10.0f, 10.0f, 10.0f}, dtype);
    group.feedback.add_waiting(gradient.view(), *group.stream);
    EXPECT_EQ(gradient.floats(), (Floats{11.0f, 12.0f, 13.0f, 12.0f}));
    group.feedback.forget_waiting(7);  // no step since
  }
  group.feedback.forget_waiting(8);
  EXPECT_TRUE(group.feedback.waiting(group.whole).empty());
  OwnedTensor gradient = tensor_of({10.0f, 10.0f, 10.0f, 10.0f}, DType::kFloat32);
  group.feedback.add_waiting(gradient.view(), *group.stream);
  EXPECT_EQ(gradient.floats(), Floats(4, 10.0f));
}

}  // namespace
}  // namespace gradwire::testing
