// Slices of parameters on a GPU: what other ranks add to the norms, and what they keep a step from.

#include <cmath>
#include <limits>

#include "gradwire/kernels/ops/norms_cuda.h"
#include "tests/optimizers/laws.h"
#include "tests/simt/captured.h"
#include "tests/simt/optimizers/pair.h"

namespace gradwire::testing {
namespace {

const std::vector<size_t> kSizes{1, 7, 1025, 17001, 3};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What ranks that are not there would add to sums, in memory of the CPU and of the GPU.
class OtherRanks {
 public:
  explicit OtherRanks(const OptimizerSpec& spec) : clips_(spec.max_grad_norm != 0.0) {
    for (size_t i = 0; i < 2 * kSizes.size(); ++i) {
      sums_.push_back(0.25 + static_cast<double>(i) / 3.0);
    }
    sums_.push_back(0.0);
  }
  void become_bad() { std::fill(sums_.begin(), sums_.end(), kInfinity); }

  const std::function<void(std::span<double>)> on_cpu = [this](std::span<double> values) {
    const std::vector<double> others = others_of(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += others[i];
    }
  };
  const std::function<void(std::span<double>, Stream&)> on_gpu = [this](std::span<double> values,
                                                                        Stream& stream) {
    ASSERT_LE(counts.size(), 20u);
    counts.push_back(values.size());
    const std::vector<double> others = others_of(values.size());
    DeviceArray<double>& parts = parts_.emplace_back(2 * values.size());
    std::copy(others.begin(), others.end(), parts.begin() + static_cast<ptrdiff_t>(values.size()));
    copy_bytes(std::as_writable_bytes(std::span(parts).first(values.size())), kEmulated,
               std::as_bytes(values), kEmulated, stream);
    cuda::add_parts(parts, values, stream);
  };
  std::vector<size_t> counts;  // of values that the GPU's ranks were to add up

 private:
  /// A single value is the norm of all gradients or, without one, whether any is not finite.
  std::vector<double> others_of(size_t count) const {
    if (count == 1) {
      return {clips_ ? sums_[0] : sums_.back()};
    }
    return {sums_.begin(), sums_.begin() + static_cast<ptrdiff_t>(count)};
  }
  const bool clips_;
  std::vector<double> sums_;
  std::vector<DeviceArray<double>> parts_;  // as long as the stream may read them
};

class CudaSlices : public ::testing::TestWithParam<OptimizerSpec> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }
  void step(Pair& pair, StepOptions options) {
    options.add_up = &others_.on_cpu;
    pair.cpu.step(options);
    options.add_up = nullptr;
    options.on_device.add_up = &others_.on_gpu;
    pair.gpu.step(options);
  }
  OtherRanks others_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Registry, CudaSlices, ::testing::ValuesIn(all_specs()), name_of_spec);

TEST_P(CudaSlices, HaveTheBitsOfTheCpus) {
  Pair pair(GetParam(), kSizes);
  step(pair, {.learning_rate = 0.1});
  pair.expect_same("the first step");
  pair.both([](Side& side) {  // this rank has nothing of it
    std::vector<Binding> places = side.places;
    places[1].gradient = {};
    side.optimizer->bind(places);
  });
  pair.fill_gradients(1);
  step(pair, {.learning_rate = 0.05, .gradient_scale = 0.5});
  pair.expect_same("a step without a parameter");
  others_.counts.clear();
  step(pair, {.learning_rate = 0.05, .known_finite = true});
  pair.expect_same("a step of known gradients");
  const bool adapts = GetParam().name.starts_with("la");
  std::vector<size_t> counts(GetParam().max_grad_norm == 0.0 ? 0 : 1, 1);
  counts.insert(counts.end(), adapts ? 1 : 0, 2 * kSizes.size() + 1);
  EXPECT_EQ(others_.counts, counts);
}

TEST_P(CudaSlices, HaveTheBitsOfTheCpusWhereAnotherRankCountsThem) {
  Pair pair(GetParam(), kSizes, {.replicas = true});
  for (unsigned t = 0; t < 3; ++t) {
    pair.fill_gradients(t);
    step(pair, {.learning_rate = 0.1});
    pair.expect_same("a step with replicas");
  }
  const Side::Bytes before = pair.gpu.everything();
  pair.both([](Side& side) { side.gradients.put(3, 16999, std::nanf("")); });
  step(pair, {.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip});
  EXPECT_TRUE(pair.gpu.everything() == before);
  pair.expect_same("a step that a replica has left out");
}

TEST_P(CudaSlices, TellOthersNothingOfReplicas) {
  Side replica(GetParam(), {7, 300}, {.replicas = true}, kEmulated);
  std::vector<double> told;
  const std::function<void(std::span<double>, Stream&)> listen = [&](std::span<double> values,
                                                                     Stream& stream) {
    std::vector<double> here(values.size());
    copy_bytes(std::as_writable_bytes(std::span(here)), {}, std::as_bytes(values), kEmulated,
               stream);
    stream.wait();
    told.insert(told.end(), here.begin(), here.end());
  };
  replica.gradients.put(1, 5, 1e6f);
  replica.step({.learning_rate = 0.1, .on_device = {.add_up = &listen}});
  for (const double value : told) {
    EXPECT_LT(value, 1e4);
  }
}

TEST_P(CudaSlices, LeaveTheStepOutWhereAnotherRankIsNotFinite) {
  Pair pair(GetParam(), kSizes);
  step(pair, {.learning_rate = 0.1});
  const Side::Bytes before = pair.gpu.everything();
  others_.become_bad();
  step(pair, {.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip});
  EXPECT_TRUE(pair.gpu.everything() == before);
  EXPECT_EQ(pair.cpu.skipped(), 1u);
  EXPECT_EQ(pair.gpu.skipped(), 1u);
  pair.gpu.step({.learning_rate = 0.1, .on_device = {.add_up = &others_.on_gpu}});
  EXPECT_EQ(message_of<NonFiniteGradient>([&] { pair.gpu.synchronize(); }),
            "gradients: another rank's slice has an element that is not finite, or that rank left "
            "the step out, expected finite values");
  EXPECT_TRUE(pair.gpu.everything() == before);
  pair.step({.learning_rate = 0.1});
  pair.expect_same("the step behind it, of whole parameters");
}

TEST_P(CudaSlices, TellOthersOfAStepThatIsNotMade) {
  Side gpu(GetParam(), kSizes, {}, kEmulated);
  std::vector<double> told;
  const std::function<void(std::span<double>, Stream&)> listen = [&](std::span<double> values,
                                                                     Stream& stream) {
    told.resize(values.size());
    copy_bytes(std::as_writable_bytes(std::span(told)), {}, std::as_bytes(values), kEmulated,
               stream);
    stream.wait();
  };
  const StepOptions options{.learning_rate = 0.1, .on_device = {.add_up = &listen}};
  gpu.step(options);
  EXPECT_LT(told.back(), GetParam().max_grad_norm == 0.0 ? 0.5 : 1e6);
  gpu.gradients.put(3, 16999, std::nanf(""));
  gpu.step(options);
  EXPECT_FALSE(told.back() < 0.5);
  gpu.gradients.put(3, 16999, 0.5f);
  gpu.step(options);  // the fault is kept
  if (told.size() > 1 || GetParam().max_grad_norm == 0.0) {
    EXPECT_EQ(told.back(), 1.0);
  }
  EXPECT_EQ(message_of<NonFiniteGradient>([&] { gpu.synchronize(); }),
            "gradient of parameter 'layer3' holds NaN or infinity, expected finite values");
}

TEST_P(CudaSlices, ChangeNothingWhereTheExchangeFails) {
  Pair pair(GetParam(), kSizes);
  const Side::Bytes before = pair.gpu.everything();
  const std::function<void(std::span<double>, Stream&)> fails = [](std::span<double>, Stream&) {
    throw TransportError("the line is cut", 1);
  };
  pair.gpu.gradients.put(2, 0, std::nanf(""));  // what is found before the exchange is forgotten
  EXPECT_EQ(message_of<TransportError>(
                [&] { pair.gpu.step({.learning_rate = 0.1, .on_device = {.add_up = &fails}}); }),
            "the line is cut");
  pair.gpu.stream().wait();
  EXPECT_TRUE(pair.gpu.everything() == before);
  pair.fill_gradients(1);
  pair.step({.learning_rate = 0.1});
  pair.expect_same("the step behind it");
}

TEST(CudaSlicesOf, EitherDeviceAreRefusedByTheOther) {
  Side gpu(parse_optimizer("lamb"), {8}, {}, kEmulated);
  Side cpu(parse_optimizer("lamb"), {8}, {}, {});
  const std::function<void(std::span<double>)> on_cpu = [](std::span<double>) {};
  const std::function<void(std::span<double>, Stream&)> on_gpu = [](std::span<double>, Stream&) {};
  EXPECT_EQ(
      message_of<InvalidArgument>([&] { gpu.step({.learning_rate = 0.1, .add_up = &on_cpu}); }),
      "lamb: add_up is given, expected on_device.add_up: the parameters are in memory of a "
      "GPU");
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { cpu.step({.learning_rate = 0.1, .on_device = {.add_up = &on_gpu}}); }),
            "lamb: on_device has a pointer, expected none: the parameters are in CPU memory");
}

}  // namespace
}  // namespace gradwire::testing
