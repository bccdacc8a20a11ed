// The network's kernels beside the CPU's loops, at sizes beyond one tile; network_test.cc has both
// beside a loop in double precision.

#include <gtest/gtest.h>

#include "gradwire/kernels/core/error.h"
#include "tests/bench/network_rig.h"
#include "tests/simt/device.h"

namespace {

using gradwire::ParamId;
using network_case::perceptron;
using network_case::Rig;

struct Found {
  trainer::BatchResult result;
  std::vector<std::vector<float>> gradients;
};

std::vector<float> uniform_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& x : values) {
    x = uniform(random);
  }
  return values;
}

std::vector<uint8_t> labels_of(size_t batch, size_t classes) {
  std::vector<uint8_t> labels;
  for (size_t i = 0; i < batch; ++i) {
    labels.push_back(static_cast<uint8_t>(i * 7 % classes));
  }
  return labels;
}

Found on_device(const trainer::NetworkShape& shape, size_t batch) {
  Rig rig(shape, batch + 1);
  std::mt19937 random(5);
  rig.initialise(random);
  rig.set_inputs(uniform_values(batch * shape.image.size(), 6));
  const auto labels = rig.labels(labels_of(batch, shape.classes));
  rig.model.forward(labels);
  rig.model.backward(labels, [](ParamId) {});
  Found found{rig.model.last_result(), {}};
  for (ParamId p = 0; p < rig.parameters(); ++p) {
    found.gradients.push_back(rig.gradient(p));
  }
  return found;
}

Found on_cpu(const trainer::NetworkShape& shape, size_t batch) {
  // The parameters come from the device's network: they have the CPU's bits.
  Rig rig(shape, 1);
  std::mt19937 random(5);
  rig.initialise(random);
  trainer::Network model(shape, batch + 1);
  Found found;
  for (ParamId p = 0; p < rig.parameters(); ++p) {
    model.set_value(p, rig.value(p));
    found.gradients.emplace_back(model.value(p).size());
  }
  for (ParamId p = 0; p < rig.parameters(); ++p) {
    model.bind_gradient(p, found.gradients[p]);
  }
  std::ranges::copy(uniform_values(batch * shape.image.size(), 6), model.inputs().begin());
  const std::vector<uint8_t> labels = labels_of(batch, shape.classes);
  model.forward(labels);
  model.backward(labels, [](ParamId) {});
  found.result = model.last_result();
  return found;
}

struct Case {
  trainer::NetworkShape shape;
  size_t batch;
};

// Several tiles and a part of one in every direction; more rows than threads; several channels.
const std::vector<Case> kCases = {{perceptron({70, 37, 33, 11}), 35},
                                  {perceptron({3, 4}), 300},
                                  {{{3, 10, 13}, {5, 34}, {40}, 10}, 9},
                                  {{{2, 6, 6}, {3}, {}, 4}, 33}};

class NetworkKernels : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { gradwire::testing::set_order(GetParam()); }
  void TearDown() override { gradwire::testing::set_order(0); }
};

INSTANTIATE_TEST_SUITE_P(Orders, NetworkKernels, gradwire::testing::kOrders);

TEST_P(NetworkKernels, ComputeWhatTheCpuDoes) {
  for (const Case& what : kCases) {
    SCOPED_TRACE(testing::PrintToString(what.shape.image.size()));
    const Found found = on_device(what.shape, what.batch);
    const Found expected = on_cpu(what.shape, what.batch);
    EXPECT_NEAR(found.result.loss, expected.result.loss, 1e-6 * expected.result.loss);
    EXPECT_EQ(found.result.correct, expected.result.correct);
    for (ParamId p = 0; p < expected.gradients.size(); ++p) {
      float largest = 0;
      for (const float g : expected.gradients[p]) {
        largest = std::max(largest, std::abs(g));
      }
      ASSERT_GT(largest, 0.0f) << "the comparison says nothing";
      for (size_t i = 0; i < expected.gradients[p].size(); ++i) {
        ASSERT_NEAR(found.gradients[p][i], expected.gradients[p][i], 4e-6f * largest)
            << "parameter " << p << ", element " << i;
      }
    }
  }
}

TEST(NetworkKernelsOrder, DoesNotChangeABit) {
  const Case& what = kCases[2];
  const Found first = on_device(what.shape, what.batch);
  gradwire::testing::set_order(7);
  const Found second = on_device(what.shape, what.batch);
  gradwire::testing::set_order(0);
  EXPECT_EQ(first.result.loss, second.result.loss);
  EXPECT_EQ(first.gradients, second.gradients);
}

trainer::LabelledImages images() {
  trainer::LabelledImages images{.count = 40, .channels = 2, .rows = 3, .columns = 5};
  for (size_t i = 0; i < images.count * images.features(); ++i) {
    images.pixels.push_back(static_cast<uint8_t>(i * 37 % 251));
  }
  images.labels = labels_of(images.count, 10);
  return images;
}

TEST(ExamplesOnAGpu, AreThoseOfTheCpu) {
  const trainer::LabelledImages all = images();
  const trainer::Standardiser standardise(all);
  const auto stream = network_case::make_device_stream();
  const auto math = trainer::make_math(*stream);
  const auto examples = math->examples(all, standardise, 6);
  EXPECT_EQ(examples->count(), all.count);
  trainer::Array<float> inputs(6 * all.features(), math->device());
  for (uint32_t call = 0; call < 2 * trainer::kExamplesAhead + 1; ++call) {
    const std::vector<uint32_t> indices = {call, 39, 0, 17 + call % 20, 3};
    const auto labels = examples->take(indices, inputs.span());
    std::vector<float> expected(5 * all.features()), found(5 * all.features());
    std::vector<uint8_t> expected_labels(5), found_labels(5);
    trainer::gather_examples(all, standardise, indices, expected, expected_labels);
    math->read(std::as_bytes(inputs.span().first(found.size())),
               std::as_writable_bytes(std::span(found)));
    math->read(std::as_bytes(labels), std::as_writable_bytes(std::span(found_labels)));
    EXPECT_EQ(found, expected) << "call " << call;
    EXPECT_EQ(found_labels, expected_labels) << "call " << call;
  }
  const std::vector<uint32_t> seven(7);
  EXPECT_THROW(examples->take(seven, inputs.span()), gradwire::InvalidArgument);
}

}  // namespace
