// The outer step of local steps on a GPU: the bits of the CPU's.

#include <cmath>

#include "gradwire/kernels/compress/payload_sum.h"
#include "tests/simt/captured.h"
#include "tests/simt/optimizers/pair.h"
#include "tests/support/generators.h"

namespace gradwire::testing {
namespace {

const std::vector<size_t> kSizes{1, 7, 1025, 17001, 3};

class CudaOuter : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }

  /// Local steps, then what is sent of them.
  void move(Pair& pair, unsigned seed) {
    Model moved(kSizes);
    moved.fill_gradients(seed);
    pair.both([&](Side& side) {
      side.values.set(moved.gradients);
      Context c = side.context();
      side.optimizer->prepare(c);
      side.stream().wait();
    });
    EXPECT_TRUE(pair.cpu.gradients.bytes() == pair.gpu.gradients.bytes());
  }
};
INSTANTIATE_TEST_SUITE_P(Specs, CudaOuter,
                         ::testing::Values("diloco", "diloco:nesterov=0", "diloco:preset=local-sgd",
                                           "diloco:max_grad_norm=0.5"));

TEST_P(CudaOuter, HasTheBitsOfTheCpu) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  EXPECT_EQ(pair.gpu.optimizer->exchanges(), Exchanged::kMoves);
  pair.expect_same("the construction");
  for (unsigned t = 0; t < 3; ++t) {
    move(pair, t);
    pair.step({.learning_rate = 0.7, .known_finite = t == 1});
    pair.expect_same("an outer step");
  }
  pair.both([&](Side& side) {
    std::vector<Binding> places = side.places;
    places[2].gradient = {};
    side.optimizer->bind(places);
  });
  move(pair, 4);
  pair.step({.learning_rate = 0.7});
  pair.expect_same("a step without a parameter");
  pair.both([](Side& side) { side.optimizer->bind(side.places); });

  Model other(kSizes);
  other.fill_gradients(9);
  pair.both([&](Side& side) {
    side.values.set(other.gradients);
    Context c = side.context();
    side.optimizer->values_changed(c);
    side.stream().wait();
  });
  pair.expect_same("values that others wrote");
  std::vector<ParamGroup> later = model_groups();
  later[0].momentum = 0.5;
  later[1].momentum = 0.0;
  later[2].learning_rate_scale = 0.25;
  pair.both([&](Side& side) { side.optimizer->set_groups(later); });
  move(pair, 5);
  pair.step({.learning_rate = 0.7, .gradient_scale = 0.5});
  pair.expect_same("other settings");
}

TEST_P(CudaOuter, ChangesNothingWhereAMoveIsNotFinite) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  move(pair, 0);
  const Side::Bytes before = pair.gpu.everything();
  pair.both([](Side& side) {
    side.gradients.put(3, 16384, std::nanf(""));
    side.step({.learning_rate = 0.7, .on_non_finite = OnNonFinite::kSkip});
  });
  EXPECT_TRUE(pair.gpu.everything() == before);
  EXPECT_EQ(pair.gpu.skipped(), 1u);
  pair.gpu.step({.learning_rate = 0.7});
  EXPECT_EQ(message_of<NonFiniteGradient>([&] { pair.gpu.synchronize(); }),
            "gradient of parameter 'layer3' holds NaN or infinity, expected finite values");
  move(pair, 0);
  pair.step({.learning_rate = 0.7});
  pair.expect_same("the step behind it");
}

TEST_P(CudaOuter, IsCaptured) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  DeviceValue<double> rate(0.7);
  const double* const rate_there = rate.data();
  Context c = pair.gpu.context();
  Captured prepare(static_cast<TestStream&>(pair.gpu.stream()),
                   [&] { pair.gpu.optimizer->prepare(c); });
  Captured apply(static_cast<TestStream&>(pair.gpu.stream()), [&] {
    pair.gpu.optimizer->apply(
        StepOptions{.learning_rate = 9.0, .on_device = {.learning_rate = rate_there}}, c);
  });
  for (const double now : {0.7, 0.25}) {
    Model moved(kSizes);
    pair.both([&](Side& side) { side.values.set(moved.gradients); });
    Context on_cpu = pair.cpu.context();
    pair.cpu.optimizer->prepare(on_cpu);
    pair.cpu.step({.learning_rate = now});
    rate = now;
    prepare.replay();
    apply.replay();
    pair.gpu.stream().wait();
    pair.expect_same("a replay");
  }
}

TEST_P(CudaOuter, StepsFromPayloads) {
  const std::vector<float> g = normal(17001, 5), e(17001);
  const auto on_cpu = make_compressor(parse_spec("int8"), {.numel = 17001});
  const auto on_gpu = make_compressor(parse_spec("int8"), {.numel = 17001, .device = kEmulated});
  std::vector<float> e_next(17001), dense(17001);
  DeviceArray<std::byte> payload(on_cpu->capacity_bytes());
  std::vector<std::byte> host(payload.size());
  const std::vector<ConstPayload> of_cpu{host}, of_gpu{ConstPayload(payload)};
  on_stream(1, [&](Context& context) {
    on_cpu->compress(view_of(std::span(g)), e, e_next, host, context);
    context.stream.wait();
    on_cpu->decompress(of_cpu, 1.0f, view_of(std::span(dense)), context);
  });
  std::copy(host.begin(), host.end(), payload.begin());
  Pair pair(parse_optimizer(GetParam()), {17001});
  pair.cpu.gradients.set({dense});
  PayloadSum sum(*on_gpu);
  Context c = pair.gpu.context();
  sum.open(of_gpu, 1.0f, c);
  const Binding place{pair.gpu.values.view(0), {}, &sum};
  pair.gpu.optimizer->bind({&place, 1});
  pair.step({.learning_rate = 0.7});
  pair.expect_same("a step from a payload");
  EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.optimizer->prepare(c); }),
            "prepare: the gradient of parameter 'layer0' comes from a reader, expected memory to "
            "write what is to be exchanged to");
}

TEST(CudaOuterOfScaledMoves, IsRefused) {
  Side gpu(parse_optimizer("diloco"), {8}, {}, kEmulated);
  Context c = gpu.context();
  const float scale = 2.0f;
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              gpu.optimizer->prepare({.learning_rate = 0.7, .on_device = {.loss_scale = &scale}},
                                     c);
            }),
            "diloco: loss_scale is given, expected none: what values were moved by has none");
}

TEST(CudaOuterOfHalves, IsRefused) {
  EXPECT_EQ(
      message_of<InvalidArgument>([] {
        Side side(parse_optimizer("diloco"), {8}, {DType::kBFloat16, DType::kFloat32}, kEmulated);
      }),
      "parameter 'layer0': is bfloat16, expected float32 of value and gradient for local "
      "steps");
}

}  // namespace
}  // namespace gradwire::testing
