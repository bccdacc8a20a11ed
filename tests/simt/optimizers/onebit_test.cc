// 1-bit Adam and 1-bit LAMB on a GPU: the bits of the CPU's, before the freeze, at it and behind
// it.

#include <cmath>

#include "gradwire/kernels/compress/payload_sum.h"
#include "tests/simt/captured.h"
#include "tests/simt/optimizers/pair.h"
#include "tests/support/generators.h"

namespace gradwire::testing {
namespace {

const std::vector<size_t> kSizes{1, 7, 1025, 17001, 3};

class CudaOneBit : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }

  static void prepare(Side& side, const StepOptions& options = {.learning_rate = 0.1}) {
    Context c = side.context();
    side.optimizer->prepare(options, c);
    side.stream().wait();
  }

  /// A step of both: gradients, prepare(), what an exchange makes of them, apply().
  static void step(Pair& pair, unsigned seed, StepOptions options = {.learning_rate = 0.1}) {
    pair.fill_gradients(seed);
    pair.both([&](Side& side) {
      for (size_t i = 0; i < 1000; ++i) {  // no gradient is seen there
        side.gradients.put(3, i, 0.0f);
      }
      prepare(side, options);
    });
    ASSERT_TRUE(pair.cpu.gradients.bytes() == pair.gpu.gradients.bytes()) << "prepared " << seed;
    if (pair.cpu.optimizer->exchanges() == Exchanged::kMomentum) {
      pair.both([](Side& side) { side.gradients.put(3, 5, 0.25f); });
    }
    pair.step(options);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Specs, CudaOneBit,
    ::testing::Values("onebit-adam:freeze_step=2", "onebit-lamb:freeze_step=2",
                      "onebit-adam:freeze_step=2,max_grad_norm=0.5,variance_floor=0.5",
                      "onebit-lamb:freeze_step=2,max_grad_norm=0.5,weight_decay=0.01",
                      "onebit-lamb:preset=deepspeed,freeze_step=1",
                      "onebit-adam:preset=paper,freeze_step=3",
                      "onebit-lamb:freeze_step=2,factor_threshold=0.9,variance_floor=0.9",
                      "onebit-adam:freeze_step=2,variance_floor=0.5,state=8bit,min_8bit_size=1000",
                      "onebit-lamb:freeze_step=2,max_grad_norm=0.5,state=8bit,min_8bit_size=2000",
                      "onebit-lamb:freeze_step=2,variance_floor=0.9,state=8bit,min_8bit_size=1"));

TEST_P(CudaOneBit, HasTheBitsOfTheCpu) {
  for (const Precision& precision : {Precision{}, Precision{DType::kBFloat16, DType::kBFloat16},
                                     Precision{DType::kFloat16, DType::kFloat32}}) {
    Pair pair(parse_optimizer(GetParam()), kSizes, precision);
    pair.expect_same("the construction");
    for (unsigned t = 0; t < 5; ++t) {
      EXPECT_EQ(pair.cpu.optimizer->exchanges(), pair.gpu.optimizer->exchanges()) << t;
      step(pair, t,
           {.learning_rate = 0.1,
            .gradient_scale = t % 2 == 0 ? 1.0 : 0.25,
            .known_finite = t == 3});
      pair.expect_same(concat("step ", t).c_str());
    }
    pair.gpu.synchronize();
    EXPECT_EQ(pair.gpu.optimizer->exchanges(), Exchanged::kMomentum);
  }
}

/// Counts how often it is waited for.
class CountingStream final : public Stream {
 public:
  explicit CountingStream(Stream& of) : of_(of) {}
  Device device() const override { return of_.device(); }
  void enqueue(Task task) override { of_.enqueue(std::move(task)); }
  void wait() override {
    ++waits;
    of_.wait();
  }
  ThreadPool& pool() override { return of_.pool(); }
  void* native_handle() const override { return of_.native_handle(); }
  int waits = 0;

 private:
  Stream& of_;
};

// Steps on another stream than the optimizer's own may still be under way.
TEST_P(CudaOneBit, SaysWhatIsExchangedBehindTheStepsThatAreEnqueued) {
  Side gpu(parse_optimizer(GetParam()), {1025}, {}, kEmulated);
  CountingStream stream(gpu.stream());
  Workspace workspace(kEmulated);
  Context context{stream, workspace};
  for (unsigned t = 0; t < 3; ++t) {
    gpu.optimizer->prepare({.learning_rate = 0.1}, context);
    gpu.optimizer->apply({.learning_rate = 0.1}, context);
  }
  EXPECT_EQ(stream.waits, 0);
  EXPECT_EQ(gpu.optimizer->exchanges(context), Exchanged::kMomentum);
  EXPECT_EQ(stream.waits, 1);
}

TEST_P(CudaOneBit, GoesBackWhereAParameterBeginsLate) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  const auto without = [](Side& side) {
    std::vector<Binding> places = side.places;
    places[2].gradient = {};
    side.optimizer->bind(places);
  };
  pair.both(without);
  for (unsigned t = 0; t < 4; ++t) {
    step(pair, t);
    pair.expect_same("a step without it");
  }
  pair.both([](Side& side) { side.optimizer->bind(side.places); });
  for (unsigned t = 4; t < 8; ++t) {
    EXPECT_EQ(pair.cpu.optimizer->exchanges(), pair.gpu.optimizer->exchanges()) << t;
    step(pair, t);
    pair.expect_same("a step with it");
  }
}

TEST_P(CudaOneBit, ChangesNothingWhereSomethingIsNotFinite) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  for (unsigned t = 0; t < 5; ++t) {
    pair.fill_gradients(t);
    pair.both([](Side& side) { prepare(side); });
    const Side::Bytes before = pair.gpu.everything();
    pair.both([](Side& side) {
      side.gradients.put(3, 16384, std::nanf(""));
      side.step({.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip});
    });
    EXPECT_TRUE(pair.gpu.everything() == before);
    step(pair, t + 10);
    pair.expect_same("the step behind it");
  }
  EXPECT_EQ(pair.gpu.skipped(), 5u);
  EXPECT_EQ(pair.cpu.skipped(), 5u);
}

TEST_P(CudaOneBit, KeepsWhatIsMissingAsAFault) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  for (unsigned t = 0; t < 3; ++t) {
    step(pair, t);
  }
  const std::string name = pair.gpu.optimizer->spec().name;
  const Side::Bytes before = pair.gpu.everything();
  const auto fault = [&](const StepOptions& options) {
    pair.gpu.step(options);
    EXPECT_TRUE(pair.gpu.everything() == before);
    return message_of<InvalidArgument>([&] { pair.gpu.synchronize(); });
  };
  const std::string unprepared = concat(
      name,
      ": apply() without prepare(), expected before the exchange of every step once exchanges() "
      "says momentum");
  EXPECT_EQ(fault({.learning_rate = 0.1}), unprepared);
  // What is refused may be asked for again: the gradients' memory holds momenta.
  pair.fill_gradients(4);
  pair.both([](Side& side) { prepare(side, {.learning_rate = 0.1, .gradient_scale = 0.25}); });
  EXPECT_EQ(fault({.learning_rate = 0.1, .gradient_scale = 0.5}),
            concat(name,
                   ": gradient_scale, over the loss scale, is 0.5, must be 0.25, as prepare() was "
                   "given, which has read the gradients"));
  pair.step({.learning_rate = 0.1, .gradient_scale = 0.25});
  pair.expect_same("the step with the scale of prepare()");
  // A step that was left out is none to ask for again, and neither is one of other state.
  const float found = 1.0f;
  DeviceValue<float> found_inf(found);
  prepare(pair.gpu);
  pair.gpu.step({.learning_rate = 0.1, .on_device = {.found_inf = found_inf.data()}});
  EXPECT_EQ(pair.gpu.skipped(), 1u);
  pair.gpu.step({.learning_rate = 0.1});
  EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }), unprepared);
  prepare(pair.gpu);
  pair.gpu.optimizer->state_loaded();
  pair.gpu.step({.learning_rate = 0.1});
  EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }), unprepared);
  step(pair, 5);
  pair.expect_same("the step behind them");
}

TEST_P(CudaOneBit, ACapturedStepFreezesByItselfAndFollowsALossScale) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  DeviceValue<double> rate(0.1);
  DeviceValue<float> loss_scale(1.0f), found_inf(0.0f);
  const StepOptions options{
      .learning_rate = 9.0,
      .on_device = {rate.data(), loss_scale.data(), found_inf.data()},
  };
  Context c = pair.gpu.context();
  Captured prepared(static_cast<TestStream&>(pair.gpu.stream()),
                    [&] { pair.gpu.optimizer->prepare(options, c); });
  Captured applied(static_cast<TestStream&>(pair.gpu.stream()),
                   [&] { pair.gpu.optimizer->apply(options, c); });
  const auto replay = [&] {
    prepared.replay();
    applied.replay();
    pair.gpu.stream().wait();
  };
  for (unsigned t = 0; t < 5; ++t) {
    const float scale = t % 2 == 0 ? 4.0f : 64.0f;
    pair.fill_gradients(t, scale);
    rate = 0.1 / (t + 1);
    loss_scale = scale;
    const StepOptions on_cpu{.learning_rate = 0.1 / (t + 1),
                             .gradient_scale = 1.0 / static_cast<double>(scale)};
    prepare(pair.cpu, on_cpu);
    pair.cpu.step(on_cpu);
    replay();
    pair.expect_same("a replay");
    found_inf = 1.0f;
    replay();
    pair.expect_same("an overflow that others found");
    found_inf = 0.0f;
  }
  EXPECT_EQ(pair.gpu.skipped(), 5u);
  // No loss scale at all: what is exchanged is a step of no rank.
  const Side::Bytes before = pair.gpu.everything();
  const std::string name = pair.gpu.optimizer->spec().name;
  for (const float bad : {0.0f, -1.0f, HUGE_VALF, std::nanf("")}) {
    pair.fill_gradients(7);
    loss_scale = bad;
    prepared.replay();
    pair.gpu.stream().wait();
    for (size_t i = 0; i < kSizes.size(); ++i) {
      for (const float x : pair.gpu.gradients.floats(i)) {
        ASSERT_TRUE(std::isnan(x)) << bad;
      }
    }
    applied.replay();
    pair.gpu.stream().wait();
    EXPECT_TRUE(pair.gpu.everything() == before);
    EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }),
              concat(name, ": loss_scale in GPU memory is ", bad, ", must be finite and > 0"));
  }
}

TEST_P(CudaOneBit, CopiedStateContinuesWithTheSameBits) {
  Pair pair(parse_optimizer(GetParam()), kSizes);
  for (unsigned t = 0; t < 4; ++t) {
    step(pair, t);
  }
  Pair copy(parse_optimizer(GetParam()), kSizes);
  copy.both([&](Side& side) {
    side.values.copy(pair.cpu.values);
    side.restore(pair.cpu.state());
  });
  step(copy, 4);
  copy.expect_same("the step behind it");
  step(pair, 4);
  EXPECT_TRUE(copy.gpu.everything() == pair.cpu.everything());
}

#if !defined(GRADWIRE_ON_GPU)
TEST_P(CudaOneBit, AStepIsAsManyLaunchesForAnyNumberOfParameters) {
  const auto launches = [&](size_t count) {
    Side side(parse_optimizer(GetParam()), std::vector<size_t>(count, 40), {}, kEmulated);
    const uint64_t before = simt::launches();
    Context c = side.context();
    side.optimizer->prepare(c);
    const uint64_t prepared = simt::launches() - before;
    EXPECT_EQ(prepared, side.optimizer->spec().max_grad_norm == 0.0 ? 2u : 3u);
    side.optimizer->apply(0.1, c);
    const uint64_t launched = simt::launches() - before - prepared;
    side.stream().wait();
    return launched;
  };
  const uint64_t of_one = launches(1);
  EXPECT_EQ(launches(300), of_one);
  EXPECT_LE(of_one, 11u);
}
#endif

TEST(CudaOneBitOf, PayloadsStepUntilTheFreeze) {
  constexpr size_t kNumel = 17001;
  const std::vector<float> g = normal(kNumel, 5), e(kNumel);
  const auto on_cpu = make_compressor(parse_spec("int8"), {.numel = kNumel});
  const auto on_gpu = make_compressor(parse_spec("int8"), {.numel = kNumel, .device = kEmulated});
  std::vector<float> e_next(kNumel), dense(kNumel);
  std::vector<std::byte> host(on_cpu->capacity_bytes());
  const std::vector<ConstPayload> of_cpu{host};
  on_stream(1, [&](Context& context) {
    on_cpu->compress(view_of(std::span(g)), e, e_next, host, context);
    context.stream.wait();
    on_cpu->decompress(of_cpu, 1.0f, view_of(std::span(dense)), context);
  });
  const DeviceArray<std::byte> payload(host.begin(), host.end());
  const std::vector<ConstPayload> of_gpu{ConstPayload(payload)};
  for (const char* text :
       {"onebit-adam:freeze_step=1,max_grad_norm=0.5", "onebit-lamb:freeze_step=1,state=8bit"}) {
    SCOPED_TRACE(text);
    Pair pair(parse_optimizer(text), {kNumel});
    pair.cpu.gradients.set({dense});
    PayloadSum sum(*on_gpu);
    Context c = pair.gpu.context();
    sum.open(of_gpu, 1.0f, c);
    const Binding place{pair.gpu.values.view(0), {}, &sum};
    pair.gpu.optimizer->bind({&place, 1});
    pair.gpu.optimizer->prepare(c);
    pair.step({.learning_rate = 0.1});
    pair.expect_same("a step from a payload");
    pair.gpu.synchronize();
    const Side::Bytes before = pair.gpu.everything();
    for (const bool prepares : {true, false}) {
      if (prepares) {
        pair.gpu.optimizer->prepare(c);
      }
      pair.gpu.step({.learning_rate = 0.1});
      EXPECT_TRUE(pair.gpu.everything() == before);
      const std::string message = message_of<InvalidArgument>([&] { pair.gpu.synchronize(); });
      EXPECT_EQ(message.find("prepare: the gradient of parameter 'layer0' comes from payloads, "
                             "expected memory to write what is to be exchanged to"),
                prepares ? 0 : std::string::npos)
          << message;
    }
    pair.gpu.optimizer->bind(pair.gpu.places);
    pair.both([&](Side& side) {
      side.gradients.set({dense});
      Context context = side.context();
      side.optimizer->prepare(context);
      side.stream().wait();
    });
    pair.step({.learning_rate = 0.1});
    pair.expect_same("a step on momenta");
  }
}

TEST(CudaOneBitOf, BoundsAndSlicesThatDoNotFitAreRefused) {
  EXPECT_EQ(message_of<InvalidArgument>(
                [] { Side side(parse_optimizer("onebit-lamb:factor_min=5"), {8}, {}, kEmulated); }),
            "onebit-lamb: factor_min is 5, must be at most factor_max, 4");
  Side gpu(parse_optimizer("onebit-adam"), {8}, {}, kEmulated);
  const std::function<void(std::span<double>, Stream&)> add_up = [](std::span<double>, Stream&) {};
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { gpu.step({.learning_rate = 0.1, .on_device = {.add_up = &add_up}}); }),
            "onebit-adam: add_up is given, expected whole parameters on every rank");
  Context c = gpu.context();
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.optimizer->prepare(2.0, c); }),
            "onebit-adam: gradient_scale is 2, must be in (0, 1]");
}

}  // namespace
}  // namespace gradwire::testing
