// Optimizers on a GPU: the bits of the CPU's whatever memory holds, and what only a GPU has.

#include <cmath>

#include "tests/optimizers/laws.h"
#include "tests/simt/captured.h"
#include "tests/simt/optimizers/pair.h"

namespace gradwire::testing {
namespace {

/// One element, less than a thread's eight, a ragged chunk, several blocks with a ragged end.
const std::vector<size_t> kSizes{1, 7, 1025, 33001, 1024, 3};

struct Row {
  OptimizerSpec spec;
  Precision precision;
};

std::vector<Row> all_rows() {
  constexpr DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  std::vector<Row> rows;
  for (OptimizerSpec spec : all_specs()) {
    for (const Precision& precision :
         {Precision{f32, f32}, Precision{f32, f16}, Precision{f16, f16}, Precision{f16, bf16},
          Precision{bf16, bf16}, Precision{bf16, f32},
          Precision{bf16, f16, MasterWeights::kFloat32}}) {
      rows.push_back({spec, precision});
    }
  }
  return rows;
}

std::string name_of_row(const ::testing::TestParamInfo<Row>& row) {
  std::string name = concat(to_string(row.param.spec), " ", to_string(row.param.precision.value),
                            " ", to_string(row.param.precision.gradient));
  std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

// Else a test's name shows bytes of pointers, which differ from run to run.
void PrintTo(const Row& row, std::ostream* out) {
  *out << to_string(row.spec) << ", values " << to_string(row.precision.value) << ", gradients "
       << to_string(row.precision.gradient);
}

class CudaOptimizerRow : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Rows, CudaOptimizerRow, ::testing::ValuesIn(all_rows()), name_of_row);

TEST_P(CudaOptimizerRow, HasTheBitsOfTheCpu) {
  const float nan = std::nanf("");
  Pair pair(GetParam().spec, kSizes, GetParam().precision);
  pair.expect_same("the construction");
  pair.step({.learning_rate = 0.1});
  pair.expect_same("the first step");
  pair.fill_gradients(1);
  pair.step({.learning_rate = 0.05, .gradient_scale = 0.125});
  pair.expect_same("scaled gradients");

  pair.both([&](Side& side) {
    side.gradients.put(2, 5, nan);  // reading it would be noticed
    std::vector<Binding> places = side.places;
    places[2].gradient = {};
    side.optimizer->bind(places);
  });
  pair.step({.learning_rate = 0.1});
  pair.expect_same("a step without a parameter");
  pair.both([&](Side& side) { side.optimizer->bind(side.places); });

  pair.fill_gradients(2);
  const Side::Bytes before = pair.gpu.everything();
  for (const auto& [place, element, bad] :
       {std::tuple{size_t{0}, size_t{0}, nan}, {3, 16384, -HUGE_VALF}, {3, 33000, nan}}) {
    pair.both([&, place = place, element = element, bad = bad](Side& side) {
      side.gradients.put(place, element, bad);
      side.step({.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip});
      side.gradients.put(place, element, 0.5f);
    });
    ASSERT_TRUE(pair.gpu.everything() == before);
  }
  EXPECT_EQ(pair.cpu.skipped(), 3u);
  EXPECT_EQ(pair.gpu.skipped(), 3u);

  std::vector<ParamGroup> later = model_groups();
  later[0].weight_decay = 0.125;
  later[0].momentum = GetParam().spec.momentum == 0.0 ? 0.0 : 0.5;
  later[1].adapt = true;
  later[2].learning_rate_scale = 0.25;
  later[2].beta1 = 0.5;
  later[2].beta2 = 0.75;
  later[2].epsilon = 0.01;
  pair.both([&](Side& side) { side.optimizer->set_groups(later); });
  pair.step({.learning_rate = 0.1, .known_finite = true});
  pair.expect_same("other settings");

  Model other(kSizes);
  other.fill_gradients(9);
  pair.both([&](Side& side) {
    side.values.set(other.gradients);
    Context c = side.context();
    side.optimizer->values_changed(c);
    side.stream().wait();
  });
  pair.expect_same("values that others wrote");
  pair.fill_gradients(3);
  pair.step({.learning_rate = 0.1});
  pair.expect_same("the last step");

  // Whose masters follow without a word, as precision_test.cc shows of the CPU's.
  pair.both([&](Side& side) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      for (size_t k = 0; k < kSizes[i]; k += 3) {
        side.values.put(i, k, k % 2 == 0 ? 0.0f : 1.25f + static_cast<float>(k % 64));
      }
    }
  });
  for (unsigned t = 4; t < 6; ++t) {
    pair.fill_gradients(t);
    pair.step({.learning_rate = 0.1});
    pair.expect_same("values that others wrote and did not tell");
  }
}

/// All rows and specs, in float32.
class CudaOptimizer : public ::testing::TestWithParam<OptimizerSpec> {};
INSTANTIATE_TEST_SUITE_P(Registry, CudaOptimizer, ::testing::ValuesIn(all_specs()), name_of_spec);

// Squares beyond float's range are added in double; what is 0 has the ratio 1.
TEST_P(CudaOptimizer, HasTheBitsOfTheCpuForAnySize) {
  for (const float factor : {1e-25f, 1e-12f, 1e12f, 1e25f, 0.0f}) {
    SCOPED_TRACE(factor);
    Pair pair(GetParam(), {5, 2049, 20000});
    for (unsigned t = 0; t < 2; ++t) {
      pair.fill_gradients(t, factor);
      pair.step({.learning_rate = 0.1});
      pair.expect_same("a step");
    }
    pair.both(
        [](Side& side) { side.values.set({std::vector<float>(5), std::vector<float>(2049)}); });
    pair.step({.learning_rate = 0.1});
    pair.expect_same("values of zero");
  }
}

TEST_P(CudaOptimizer, KeepsAFaultUntilTheHostHasHeardOfIt) {
  Pair pair(GetParam(), kSizes);
  pair.step({.learning_rate = 0.1});
  const Side::Bytes before = pair.gpu.everything();
  pair.gpu.gradients.put(4, 1000, -HUGE_VALF);
  pair.gpu.gradients.put(5, 0, std::nanf(""));
  pair.gpu.step({.learning_rate = 0.1});
  pair.fill_gradients(1);
  for (int i = 0; i < 2; ++i) {
    pair.gpu.step({.learning_rate = 0.1});
    ASSERT_TRUE(pair.gpu.everything() == before);
  }
  EXPECT_EQ(message_of<NonFiniteGradient>([&] { pair.gpu.synchronize(); }),
            "gradient of parameter 'layer4' holds NaN or infinity, expected finite values");
  pair.gpu.synchronize();  // it is forgotten
  EXPECT_EQ(pair.gpu.skipped(), 0u);
  pair.step({.learning_rate = 0.1});
  pair.expect_same("the step behind a fault");
}

TEST_P(CudaOptimizer, ACapturedStepFollowsWhatChangesOnTheDevice) {
  Pair pair(GetParam(), kSizes);
  DeviceValue<double> rate(0.1);
  DeviceValue<float> loss_scale(4.0f), found_inf(0.0f);
  const StepOptions from_device{.learning_rate = 77.0,
                                .on_non_finite = OnNonFinite::kSkip,
                                .on_device = {rate.data(), loss_scale.data(), found_inf.data()}};
  Context c = pair.gpu.context();
  Captured captured(static_cast<TestStream&>(pair.gpu.stream()),
                    [&] { pair.gpu.optimizer->apply(from_device, c); });
  const auto replay = [&] {
    captured.replay();
    pair.gpu.stream().wait();
  };
  replay();
  pair.cpu.step({.learning_rate = 0.1, .gradient_scale = 0.25});
  pair.expect_same("the first replay");

  rate = 0.025;
  loss_scale = 2.0f;
  pair.fill_gradients(1);
  std::vector<ParamGroup> groups = model_groups();
  groups[0].weight_decay = 0.5;
  pair.both([&](Side& side) {
    side.places[1].gradient = {};
    side.optimizer->bind(side.places);
    side.optimizer->set_groups(groups);
  });
  replay();
  pair.cpu.step({.learning_rate = 0.025, .gradient_scale = 0.5});
  pair.expect_same("another rate, scale, place and decay");

  found_inf = 1.0f;
  replay();
  pair.expect_same("an overflow that others found");
  EXPECT_EQ(pair.gpu.skipped(), 1u);
  found_inf = 0.0f;

  rate = -1.0;
  replay();
  rate = 0.1;
  replay();
  pair.expect_same("a rate out of range");
  EXPECT_EQ(
      message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }),
      concat(GetParam().name, ": learning_rate in GPU memory is -1, must be finite and >= 0"));
  loss_scale = HUGE_VALF;
  replay();
  pair.expect_same("a loss scale out of range");
  EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }),
            concat(GetParam().name, ": loss_scale in GPU memory is inf, must be finite and > 0"));
}

TEST_P(CudaOptimizer, CopiedStateContinuesWithTheSameBits) {
  Pair pair(GetParam(), kSizes, {DType::kBFloat16, DType::kFloat32});
  pair.step({.learning_rate = 0.1});
  pair.step({.learning_rate = 0.1});
  Pair copy(GetParam(), kSizes, {DType::kBFloat16, DType::kFloat32});
  copy.gpu.values.copy(pair.cpu.values);
  copy.gpu.restore(pair.cpu.state());
  copy.fill_gradients(2);
  pair.fill_gradients(2);
  copy.gpu.step({.learning_rate = 0.1});
  pair.cpu.step({.learning_rate = 0.1});
  EXPECT_TRUE(copy.gpu.everything() == pair.cpu.everything());
}

#if !defined(GRADWIRE_ON_GPU)
TEST_P(CudaOptimizer, AStepIsAsManyLaunchesForAnyNumberOfParameters) {
  const auto launches = [&](size_t count) {
    Side side(GetParam(), std::vector<size_t>(count, 40), {}, kEmulated);
    const uint64_t before = simt::launches();
    Context c = side.context();
    side.optimizer->apply(0.1, c);
    const uint64_t launched = simt::launches() - before;
    side.stream().wait();
    return launched;
  };
  const uint64_t of_one = launches(1);
  EXPECT_EQ(launches(300), of_one);
  const uint64_t of_floats = GetParam().max_grad_norm == 0.0                          ? 4u
                             : GetParam().name == "sgd" || GetParam().name == "adamw" ? 4u
                                                                                      : 5u;
  EXPECT_EQ(of_one, of_floats + (GetParam().state == StateBits::kEight ? 1 : 0));
}
#endif

TEST(CudaOptimizer, FollowsPlacesAndSettingsInTheOrderOfTheStream) {
  Pair pair(parse_optimizer("adamw"), kSizes, {});
  pair.both([](Side& side) {
    Context c = side.context();
    for (size_t left_out = 0; left_out < 5; ++left_out) {  // more changes than are staged at a time
      std::vector<Binding> places = side.places;
      places[left_out].gradient = {};
      std::vector<ParamGroup> groups = model_groups();
      groups[0].learning_rate_scale = 1.0 / static_cast<double>(1 + left_out);
      side.optimizer->bind_in_order(places, c);
      side.optimizer->set_groups_in_order(groups, c);
      side.optimizer->apply({.learning_rate = 0.1}, c);
    }
    side.stream().wait();
  });
  pair.expect_same("five steps, each with a parameter less");
}

TEST(CudaOptimizers, RefuseWhatIsOnAnotherDevice) {
  Side gpu(parse_optimizer("adamw"), {8}, {}, kEmulated);
  Side cpu(parse_optimizer("adamw"), {8}, {}, {});
  Context of_cpu = cpu.context();
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.optimizer->apply(0.1, of_cpu); }),
            "adamw: the stream is of the CPU, must be of GPU 0, where the parameters are");
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.optimizer->bind(cpu.places); }),
            "parameter 'layer0': value is in memory of the CPU, expected GPU 0's, where the first "
            "value is");
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              make_optimizer({}, {{"a", cpu.values.view(0), cpu.gradients.view(0)},
                                  {"b", gpu.values.view(0), gpu.gradients.view(0)}});
            }),
            "parameter 'b': value is in memory of GPU 0, expected the CPU's, where the first value "
            "is");
  const float zero = 0.0f;
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { cpu.step({.learning_rate = 0.1, .on_device = {.found_inf = &zero}}); }),
            "adamw: on_device has a pointer, expected none: the parameters are in CPU memory");
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.step({.learning_rate = -1.0}); }),
            "adamw: learning_rate is -1, must be finite and >= 0");
}

}  // namespace
}  // namespace gradwire::testing
