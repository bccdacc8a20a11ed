// Gradients that are read from elsewhere in pieces: the bits of a step from memory.

#include <atomic>
#include <cmath>

#include "gradwire/kernels/compress/payload_sum.h"
#include "tests/optimizers/laws.h"
#include "tests/support/generators.h"

namespace gradwire {
namespace {

constexpr size_t kAhead = 1000;  // elements of the reader before the first parameter's

/// All gradients one behind another, behind others that nobody reads.
class FlatReader final : public ElementReader {
 public:
  explicit FlatReader(const Model& model) : values_(kAhead, std::nanf("")) {
    for (const std::vector<float>& gradient : model.gradients) {
      values_.insert(values_.end(), gradient.begin(), gradient.end());
    }
  }
  size_t numel() const override { return values_.size(); }
  void read(size_t begin, std::span<float> out) const override {
    std::copy_n(values_.begin() + static_cast<ptrdiff_t>(begin), out.size(), out.begin());
  }

 private:
  std::vector<float> values_;
};

std::vector<Binding> places_of(Model& model, const ElementReader& reader, size_t ahead) {
  std::vector<Binding> places;
  for (const Parameter& parameter : model.parameters()) {
    places.push_back({parameter.value, {}, &reader, ahead});
    ahead += parameter.value.numel;
  }
  return places;
}

using OptimizerReaders = OptimizerLaws;
INSTANTIATE_TEST_SUITE_P(Registry, OptimizerReaders, ::testing::ValuesIn(all_specs()), name_of_spec);

TEST_P(OptimizerReaders, StepAsFromMemory) {
  for (const int threads : {1, 3}) {
    Model expected, model;
    const auto from_memory = make(expected), from_reader = make(model);
    for (unsigned t = 0; t < 3; ++t) {
      expected.fill_gradients(t);
      const FlatReader reader(expected);
      from_reader->bind(places_of(model, reader, kAhead));
      apply(*from_memory, 0.1);
      apply(*from_reader, 0.1, threads);
    }
    EXPECT_TRUE(same_bits(model.values, expected.values));
    EXPECT_TRUE(same_bits(read_state(*from_reader), read_state(*from_memory)));
  }
}

TEST_P(OptimizerReaders, ChangeNothingWhereAnElementIsNotFinite) {
  Model model;
  const auto optimizer = make(model);
  Model bad = model;
  bad.gradients[5][70000] = std::numeric_limits<float>::infinity();
  const FlatReader reader(bad);
  optimizer->bind(places_of(model, reader, kAhead));
  const Model before = model;
  const State state = read_state(*optimizer);
  EXPECT_NE(message_of<NonFiniteGradient>([&] {
              apply(*optimizer, 0.1);
            }).find("parameter 'layer5': element 70000 is inf"),
            std::string::npos);
  EXPECT_TRUE(same_bits(model.values, before.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), state));
}

/// Three ranks' payloads of the model's gradients, as one group.
std::vector<std::vector<std::byte>> payloads_of(Compressor& compressor, size_t numel) {
  std::vector<std::vector<std::byte>> payloads;
  on_stream(1, [&](Context& context) {
    for (uint64_t r = 0; r < 3; ++r) {
      const std::vector<float> g = testing::normal(numel, kModelSeed + r);
      const std::vector<float> e(numel);
      std::vector<float> e_next(numel);
      auto& out = payloads.emplace_back(compressor.capacity_bytes());
      compressor.compress(view_of(std::span<const float>(g)), e, e_next, out, context);
      context.stream.wait();
    }
  });
  return payloads;
}

TEST_P(OptimizerReaders, StepFromWhatWasReceived) {
  for (const char* spec : {"int8", "topk:1%", "blocktopk:1%", "1bit"}) {
    SCOPED_TRACE(spec);
    Model expected, model;
    size_t numel = 0;
    for (const std::vector<float>& value : model.values) {
      numel += value.size();
    }
    const auto compressor = make_compressor(parse_spec(spec), {.numel = numel});
    const auto payloads = payloads_of(*compressor, numel);
    const std::vector<ConstPayload> parts(payloads.begin(), payloads.end());
    std::vector<float> mean(numel);
    PayloadSum sum(*compressor);
    on_stream(1, [&](Context& context) {
      compressor->decompress(parts, 1.0f / 3, view_of(std::span(mean)), context);
      sum.open(parts, 1.0f / 3, context);
    });
    size_t at = 0;
    for (std::vector<float>& gradient : expected.gradients) {
      std::copy_n(mean.begin() + static_cast<ptrdiff_t>(at), gradient.size(), gradient.begin());
      at += gradient.size();
    }
    const auto dense = make(expected), fused = make(model);
    fused->bind(places_of(model, sum, 0));
    for (int t = 0; t < 2; ++t) {
      apply(*dense, 0.1);
      apply(*fused, 0.1, 2);
    }
    EXPECT_TRUE(same_bits(model.values, expected.values));
    EXPECT_TRUE(same_bits(read_state(*fused), read_state(*dense)));
  }
}

/// Zeros that say so, and count who looks all the same.
class Zeros final : public ElementReader {
 public:
  explicit Zeros(size_t numel) : numel_(numel) {}
  size_t numel() const override { return numel_; }
  void read(size_t, std::span<float> out) const override {
    ++reads;
    std::fill(out.begin(), out.end(), 0.0f);
  }
  bool known_zero(size_t, size_t) const override { return true; }
  mutable std::atomic<int> reads{0};

 private:
  size_t numel_;
};

TEST(OptimizerOfReaders, PlainSgdDoesNotTouchWhatHasNoGradient) {
  for (const auto& [spec, touches] : {std::pair("sgd:momentum=0", false), std::pair("sgd", true),
                                      std::pair("sgd:momentum=0,weight_decay=0.1", true)}) {
    Model model({40000});
    const auto optimizer = make_optimizer(parse_optimizer(spec), model.parameters());
    const Zeros zeros(40000);
    optimizer->bind(places_of(model, zeros, 0));
    const Model before = model;
    on_stream(1, [&](Context& context) {
      optimizer->apply(StepOptions{.learning_rate = 0.5, .known_finite = true}, context);
    });
    EXPECT_EQ(zeros.reads > 0, touches) << spec;
    EXPECT_EQ(same_bits(model.values, before.values), parse_optimizer(spec).weight_decay == 0.0)
        << spec;
  }
}

TEST(OptimizerOfReaders, AreRefusedWhereTheyDoNotFit) {
  Model model({100});
  const Zeros zeros(150);
  const auto optimizer = make_optimizer(parse_optimizer("sgd"), model.parameters());
  const auto refused = [&](Binding place, Optimizer& by) {
    return message_of<InvalidArgument>([&] { by.bind({&place, 1}); });
  };
  const Parameter whole = model.parameters()[0];
  EXPECT_EQ(refused({whole.value, whole.gradient, &zeros, 0}, *optimizer),
            "parameter 'layer0': there are both a gradient and a reader, expected one of them");
  EXPECT_EQ(
      refused({whole.value, {}, &zeros, 51}, *optimizer),
      "parameter 'layer0': elements [51, 151) of its reader, which has 150, expected among them");
  const std::vector<float> before = model.values[0];
  apply(*optimizer, 0.0);  // still from memory

  const auto outer = make_optimizer(parse_optimizer("diloco"), model.parameters());
  const Binding place{whole.value, {}, &zeros, 0};
  outer->bind({&place, 1});
  EXPECT_NE(message_of<InvalidArgument>([&] {
              prepare(*outer);
            }).find("the gradient of parameter 'layer0' comes from a reader"),
            std::string::npos);
  EXPECT_TRUE(same_bits(model.values[0], before));
  apply(*outer, 0.5);  // of a mean that never was in memory
}

}  // namespace
}  // namespace gradwire
