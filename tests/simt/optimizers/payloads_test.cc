// Steps straight from payloads on a GPU: the bits of a step from the dense sum on the CPU.

#include <cmath>

#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/compress/payload_sum.h"
#include "tests/optimizers/laws.h"
#include "tests/simt/captured.h"
#include "tests/simt/optimizers/pair.h"
#include "tests/support/generators.h"

namespace gradwire::testing {
namespace {

/// Windows of 8192 and chunks of 4096 cut a parameter at different places.
const std::vector<size_t> kSizes{1, 7, 1025, 17001, 3};
constexpr size_t kAhead = 1003;  // elements of the group before the first parameter's
constexpr size_t kNumel = kAhead + 1 + 7 + 1025 + 17001 + 3 + 500;
constexpr size_t kRanks = 3;

/// What ranks have sent, in memory of both devices.
class Received {
 public:
  explicit Received(const std::string& spec, uint64_t seed = 1) {
    const CompressorSpec parsed = parse_spec(spec);
    // In the middle of a parameter blocks end anew.
    std::vector<Segment> segments{{.parameter = 0, .numel = 5000},
                                  {.parameter = 1, .numel = kNumel - 5000}};
    on_cpu = make_compressor(parsed, {.numel = kNumel, .segments = segments});
    on_gpu = make_compressor(parsed, {.numel = kNumel, .device = kEmulated, .segments = segments});
    on_stream(1, [&](Context& context) {
      for (uint64_t r = 0; r < kRanks; ++r) {
        const std::vector<float> g = normal(kNumel, seed * kRanks + r);
        const std::vector<float> e(kNumel);
        std::vector<float> e_next(kNumel);
        std::vector<std::byte>& out = host.emplace_back(on_cpu->capacity_bytes());
        on_cpu->compress(view_of(std::span<const float>(g)), e, e_next, out, context);
        context.stream.wait();
      }
    });
    for (size_t r = 0; r < kRanks; ++r) {
      // At no word's address.
      DeviceArray<std::byte>& out = device.emplace_back(1 + host[r].size());
      std::copy(host[r].begin(), host[r].end(), out.begin() + 1);
    }
    refresh();
  }
  void refresh() {
    parts.clear();
    for (size_t r = 0; r < kRanks; ++r) {
      parts.emplace_back(device[r].data() + 1, host[r].size());
    }
  }
  /// The dense sum, as decompress() has it.
  std::vector<float> sum(float scale) const {
    std::vector<float> out(kNumel);
    const std::vector<ConstPayload> all(host.begin(), host.end());
    on_stream(1, [&](Context& context) {
      on_cpu->decompress(all, scale, view_of(std::span(out)), context);
    });
    return out;
  }

  std::unique_ptr<Compressor> on_cpu, on_gpu;
  std::vector<std::vector<std::byte>> host;
  std::vector<DeviceArray<std::byte>> device;
  std::vector<ConstPayload> parts;  // on the GPU
};

std::vector<Binding> places_of(Side& side, const ElementReader& reader) {
  std::vector<Binding> places = side.places;
  size_t at = kAhead;
  for (Binding& place : places) {
    place.gradient = {};
    place.reader = &reader;
    place.reader_begin = at;
    at += place.value.numel;
  }
  return places;
}

void set_gradients(Side& side, const std::vector<float>& sum) {
  std::vector<std::vector<float>> gradients;
  size_t at = kAhead;
  for (const size_t size : kSizes) {
    gradients.emplace_back(sum.begin() + static_cast<ptrdiff_t>(at),
                           sum.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
  }
  side.gradients.set(gradients);
}

class CudaPayloads : public ::testing::TestWithParam<OptimizerSpec> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Registry, CudaPayloads, ::testing::ValuesIn(all_specs()), name_of_spec);

TEST_P(CudaPayloads, StepWithTheBitsOfTheDenseSum) {
  for (const char* spec : {"int8", "topk:1%"}) {
    SCOPED_TRACE(spec);
    const Received received(spec);
    PayloadSum sum(*received.on_gpu);
    Pair pair(GetParam(), kSizes);
    set_gradients(pair.cpu, received.sum(0.25f));
    Context c = pair.gpu.context();
    sum.open(received.parts, 0.25f, c);
    std::vector<Binding> places = places_of(pair.gpu, sum);
    pair.gpu.optimizer->bind(places);
    pair.step({.learning_rate = 0.1});
    pair.expect_same("a step from payloads");
    places[1].reader = nullptr;  // left out
    places[2] = pair.gpu.places[2];
    pair.gpu.optimizer->bind(places);
    std::vector<Binding> of_cpu = pair.cpu.places;
    of_cpu[1].gradient = {};
    pair.cpu.optimizer->bind(of_cpu);
    set_gradients(pair.gpu, received.sum(0.25f));
    pair.both([&](Side& side) { side.gradients.put(2, 1024, 0.75f); });
    pair.step({.learning_rate = 0.05, .gradient_scale = 0.5, .known_finite = true});
    pair.expect_same("a step of which one parameter's gradient is in memory");
    EXPECT_EQ(pair.gpu.skipped(), 0u);
  }
}

/// Every way of writing elements down, in float16 and bfloat16 parameters.
class CudaPayloadsOf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { set_order(1); }
  void TearDown() override { set_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Specs, CudaPayloadsOf,
                         ::testing::Values("none", "fp16", "bf16", "int8", "int8,block=8",
                                           "int4,block=4096", "2bit", "1bit", "e4m3", "e5m2",
                                           "ternary", "natural", "qsgd:7", "topk:1%", "topk:20%",
                                           "topk:2%,fp16", "topk:2%,int4", "topk:2%,1bit",
                                           "topk:2%,e5m2", "chunktopk:1%", "tensortopk:1%",
                                           "blocktopk:2%", "blocktopk:5%,width=7,2bit",
                                           "threshold:1%,bf16", "dgc:1%,warmup=2"));

TEST_P(CudaPayloadsOf, HaveTheBitsOfTheCpu) {
  const Received received(GetParam());
  PayloadSum sum(*received.on_gpu);
  for (const float scale : {1.0f, 1.0f / 3}) {
    Pair pair(parse_optimizer("adamw"), kSizes, {DType::kBFloat16, DType::kFloat32});
    set_gradients(pair.cpu, received.sum(scale));
    Context c = pair.gpu.context();
    sum.open(received.parts, scale, c);
    pair.gpu.optimizer->bind(places_of(pair.gpu, sum));
    pair.step({.learning_rate = 0.1});
    pair.expect_same("a step");
  }
}

TEST_P(CudaPayloadsOf, ChangeNothingWhereOneIsMalformed) {
  Received received(GetParam());
  Side gpu(parse_optimizer("adamw"), kSizes, {}, kEmulated);
  PayloadSum sum(*received.on_gpu);
  gpu.optimizer->bind(places_of(gpu, sum));
  const Side::Bytes before = gpu.everything();
  gpu.step({.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip});  // nothing is held
  EXPECT_TRUE(gpu.everything() == before);
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.synchronize(); }),
            "adamw: the gradient of parameter 'layer0' comes from payloads that failed a check or "
            "were never opened");
  received.device[1][1 + 4] = std::byte{77};  // its version
  Context c = gpu.context();
  sum.open(received.parts, 1.0f, c);
  gpu.step({.learning_rate = 0.1, .known_finite = true});
  EXPECT_TRUE(gpu.everything() == before);
  EXPECT_THROW(gpu.synchronize(), InvalidArgument);
  EXPECT_NE(message_of<InvalidArgument>([&] {
              received.on_gpu->shape().state->check(gpu.stream());
            }).find("payload part 1: its version is not 1"),
            std::string::npos);
  received.device[1][1 + 4] = std::byte{1};
  sum.open(received.parts, 1.0f, c);
  gpu.step({.learning_rate = 0.1});
  gpu.synchronize();
  EXPECT_FALSE(gpu.everything() == before);
  EXPECT_EQ(gpu.skipped(), 0u);
}

/// A byte of the body that makes it malformed, of each way to be.
TEST(CudaPayloadsThatAreWrong, AreRefusedBeforeAnythingIsRead) {
  const auto fault_of = [](const char* spec, size_t at, uint8_t byte) {
    Received received(spec);
    received.device[2][1 + at] = std::byte{byte};
    Side gpu(parse_optimizer("sgd"), kSizes, {}, kEmulated);
    PayloadSum sum(*received.on_gpu);
    gpu.optimizer->bind(places_of(gpu, sum));
    const Side::Bytes before = gpu.everything();
    Context c = gpu.context();
    sum.open(received.parts, 1.0f, c);
    gpu.step({.learning_rate = 0.1, .known_finite = true});
    EXPECT_TRUE(gpu.everything() == before);
    EXPECT_THROW(gpu.synchronize(), InvalidArgument);
    return message_of<InvalidArgument>(
        [&] { received.on_gpu->shape().state->check(gpu.stream()); });
  };
  const auto says = [&](const char* spec, size_t at, uint8_t byte, const char* words) {
    const std::string said = fault_of(spec, at, byte);
    EXPECT_NE(said.find("payload part 2"), std::string::npos) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  says("int8", 32 + 3, 0xFF, "scale");  // the first scale: NaN
  says("topk:1%", 32, 0xFE, "body");    // a count
  says("topk:1%,int8", 32 + 12 + 1, 0xFF, "scale");
  says("topk:20%", 32 + 12 + 5, 0xFF, "ind");  // a bitmap with other bits than entries
}

TEST(CudaPayloadsOfASlice, AreAddedWhereTheyLie) {
  const Received received("topk:5%,int8");
  const Region region{4096, 16384};
  DeviceArray<std::byte> slice(received.on_gpu->slice_capacity_bytes(region));
  Pair pair(parse_optimizer("sgd"), kSizes);
  Context c = pair.gpu.context();
  received.on_gpu->slice(received.parts[1], region, slice, c);
  PayloadSum sum(*received.on_gpu);
  const std::vector<ConstPayload> parts{received.parts[0], ConstPayload(slice)};
  sum.open(parts, 1.0f, c);
  std::vector<float> expected(kNumel);
  std::vector<std::byte> cut(received.on_cpu->slice_capacity_bytes(region));
  on_stream(1, [&](Context& context) {
    received.on_cpu->slice(received.host[1], region, cut, context);
    context.stream.wait();
    const std::vector<ConstPayload> both{received.host[0], cut};
    received.on_cpu->decompress(both, 1.0f, view_of(std::span(expected)), context);
    context.stream.wait();
  });
  set_gradients(pair.cpu, expected);
  pair.gpu.optimizer->bind(places_of(pair.gpu, sum));
  pair.step({.learning_rate = 0.1});
  pair.expect_same("a step from a payload and a slice");
}

TEST(CudaPayloadsCaptured, FollowWhatArrives) {
  Received received("int4");
  Pair pair(parse_optimizer("lamb"), kSizes);
  Context c = pair.gpu.context();
  PayloadSum sum(*received.on_gpu);
  sum.open(received.parts, 0.5f, c);
#if defined(GRADWIRE_ON_GPU)
  Captured without(static_cast<TestStream&>(pair.gpu.stream()),
                   [&] { pair.gpu.optimizer->apply(0.1, c); });
#endif
  pair.gpu.optimizer->bind(places_of(pair.gpu, sum));
  Captured captured(static_cast<TestStream&>(pair.gpu.stream()), [&] {
    sum.open(received.parts, 0.5f, c);
    pair.gpu.optimizer->apply(0.1, c);
  });
  for (const uint64_t seed : {1, 2}) {
    const Received next("int4", seed);
    for (size_t r = 0; r < kRanks; ++r) {
      std::copy(next.host[r].begin(), next.host[r].end(), received.device[r].begin() + 1);
    }
    set_gradients(pair.cpu, next.sum(0.5f));
    captured.replay();
    pair.cpu.step({.learning_rate = 0.1});
    pair.gpu.stream().wait();
    pair.expect_same("a replay");
  }
#if defined(GRADWIRE_ON_GPU)  // the emulator's replay asks the host again
  without.replay();
  pair.gpu.stream().wait();
  pair.expect_same("a replay that cannot read");
  EXPECT_EQ(message_of<InvalidArgument>([&] { pair.gpu.synchronize(); }),
            "lamb: the gradient of parameter 'layer0' comes from payloads, expected memory as when "
            "the step was captured");
#endif
}

TEST(CudaPayloadsElsewhere, AreRefused) {
  Received received("int8");
  const PayloadSum of_gpu(*received.on_gpu), of_cpu(*received.on_cpu);
  Side gpu(parse_optimizer("sgd"), kSizes, {}, kEmulated),
      cpu(parse_optimizer("sgd"), kSizes, {}, {});
  EXPECT_EQ(message_of<InvalidArgument>([&] { gpu.optimizer->bind(places_of(gpu, of_cpu)); }),
            "parameter 'layer0': its gradient comes from a reader of the CPU, expected one of GPU "
            "0, where the first value is");
  EXPECT_EQ(message_of<InvalidArgument>([&] { cpu.optimizer->bind(places_of(cpu, of_gpu)); }),
            "parameter 'layer0': its gradient comes from a reader of GPU 0, expected one of the "
            "CPU, where the first value is");
  std::vector<float> out(8);
  EXPECT_EQ(message_of<InvalidArgument>([&] { of_gpu.read(0, out); }),
            "payload_sum: the payloads are in GPU memory, expected kernels to read");
  for (const char* spec : {"randomk:1%", "powersgd:2"}) {
    const auto compressor = make_compressor(parse_spec(spec), {.numel = 4096, .device = kEmulated});
    EXPECT_NE(message_of<InvalidArgument>([&] {
                PayloadSum sum(*compressor);
              }).find("in GPU memory, expected one whose payloads decode chunk by chunk"),
              std::string::npos)
        << spec;
  }
}

}  // namespace
}  // namespace gradwire::testing
