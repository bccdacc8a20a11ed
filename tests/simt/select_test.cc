// The selection kernels against a full sort.

#include "gradwire/kernels/ops/select_cuda.h"

#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "tests/simt/chosen.h"
#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class SelectKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SelectKernels, kOrders);

std::vector<bool> chosen_in_chunks(const std::vector<float>& x, uint32_t k) {
  std::vector<bool> chosen;
  for (size_t begin = 0; begin < x.size(); begin += kChunk) {
    const size_t end = std::min(x.size(), begin + kChunk);
    const std::vector<float> chunk(x.begin() + static_cast<ptrdiff_t>(begin),
                                   x.begin() + static_cast<ptrdiff_t>(end));
    const auto mine =
        chosen_by_sorting(chunk, kept_in_chunk(k, static_cast<uint32_t>(end - begin)));
    chosen.insert(chosen.end(), mine.begin(), mine.end());
  }
  return chosen;
}

/// What a selection writes, for `numel` elements.
struct Choice {
  explicit Choice(size_t elements, size_t offset = 0)
      : numel(elements),
        chunks(cuda::select_chunks(elements)),
        x(elements, offset / 4 * 4),
        mask(chunks * cuda::kMaskBytes, offset % 4),
        counts(chunks),
        before(chunks),
        workspace(cuda::select_workspace_bytes(elements)) {}

  cuda::SelectOutput output() {
    // The array that is not meant has no memory: it must not be touched.
    const std::span<float> nowhere(reinterpret_cast<float*>(16), numel);
    return {.x = {nowhere, x.span(), parity.data()},
            .mask = mask.span(),
            .counts = counts.span(),
            .before = before.span(),
            .call = call.data(),
            .workspace = workspace.span()};
  }

  void expect(const std::vector<float>& sum, const std::vector<bool>& chosen) const {
    ASSERT_EQ(bits_of(x.values()), bits_of(sum));
    const bool finite = std::ranges::all_of(sum, [](float v) { return std::isfinite(v); });
    EXPECT_EQ((*call).flags, 4u | (finite ? 0u : cuda::kStatusNonFinite));
    EXPECT_EQ((*call).arrived, 0u);
    const std::vector<std::byte> marks = mask.values();
    const std::vector<uint32_t> count = counts.values();
    const std::vector<cuda::EntriesBefore> places = before.values();
    uint32_t entries = 0;
    uint32_t odd = 0;
    uint32_t fours = 0;
    uint32_t eights = 0;
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      ASSERT_EQ(places[chunk].entries, entries) << "chunk " << chunk;
      ASSERT_EQ(places[chunk].odd_counts, odd) << "chunk " << chunk;
      ASSERT_EQ(places[chunk].two_bits, fours) << "chunk " << chunk;
      ASSERT_EQ(places[chunk].one_bit, eights) << "chunk " << chunk;
      uint32_t expected = 0;
      for (size_t i = chunk * kChunk; i < (chunk + 1) * kChunk; ++i) {
        const bool marked = (static_cast<unsigned>(marks[i / 8]) >> (i % 8) & 1u) != 0;
        const bool wanted = finite && i < numel && chosen[i];
        ASSERT_EQ(marked, wanted) << "element " << i;
        expected += wanted ? 1 : 0;
      }
      ASSERT_EQ(count[chunk], expected) << "chunk " << chunk;
      entries += expected;
      odd += expected % 2;
      fours += expected / 4 + (expected % 4 != 0 ? 1 : 0);
      eights += expected / 8 + (expected % 8 != 0 ? 1 : 0);
    }
    EXPECT_TRUE(x.guards_hold() && mask.guards_hold() && counts.guards_hold() &&
                before.guards_hold() && workspace.guards_hold());
  }

  size_t numel;
  size_t chunks;
  Guarded<float> x;
  Guarded<std::byte> mask;
  Guarded<uint32_t> counts;
  Guarded<cuda::EntriesBefore> before;
  Guarded<std::byte> workspace;
  DeviceValue<cuda::CallWords> call{{.arrived = 0, .flags = 4}};
  DeviceValue<uint32_t> parity{1};
};

/// g and e, and their sum.
struct Summed {
  Summed(const Pattern& pattern, DType dtype, size_t offset)
      : tensor(tensor_of(pattern.values, dtype)),
        sum(tensor.floats()),
        g(tensor.bytes, offset / size_of(dtype) * size_of(dtype)),
        // Elsewhere ties stay ties.
        e(pattern.name == "normal" ? normal(sum.size(), 6, 0.1f)
                                   : std::vector<float>(offset != 4 ? sum.size() : 0),
          offset / 4 * 4) {
    const std::vector<float> residual = e.values();
    for (size_t i = 0; i < residual.size(); ++i) {
      sum[i] += residual[i];
    }
  }
  cuda::SelectInput input(size_t k) {
    return {{g.bytes(), tensor.numel(), tensor.dtype, kEmulated}, {e.span()}, k};
  }

  OwnedTensor tensor;
  std::vector<float> sum;
  Guarded<std::byte> g;
  Guarded<float> e;
};

void expect_selected(const Pattern& pattern, size_t k, DType dtype, size_t offset,
                     Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", k, " of ", numel, " x ", to_string(dtype), ", offset ",
                      offset));
  stream.wait();
  Summed x(pattern, dtype, offset);
  Choice choice(numel, offset);
  cuda::select_largest(x.input(k), choice.output(), stream);
  stream.wait();
  choice.expect(x.sum, chosen_by_sorting(x.sum, k));
}

TEST_P(SelectKernels, ChooseWhatASortChooses) {
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 21)) {
      for (const size_t k : {size_t{1}, numel / 50, numel}) {
        if (numel == 0 || k > 0) {
          expect_selected(pattern, k, DType::kFloat32, 0, stream_);
        }
      }
    }
  }
}

TEST_P(SelectKernels, TakeEveryTypeAndAlignment) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const size_t offset : {2, 4, 8}) {
      expect_selected({"normal", normal(8699, 2)}, 100, dtype, offset, stream_);
    }
  }
}

TEST_P(SelectKernels, SampleLongGradients) {
  for (const Pattern& pattern : patterns(70000, 31)) {
    expect_selected(pattern, 700, DType::kFloat32, 0, stream_);
  }
}

TEST_P(SelectKernels, MendAGuessThatWasTooHigh) {
  // Each line that is sampled is large, nothing else is: the guess finds far fewer than k.
  const size_t numel = 70000;
  Pattern pattern{"adversary", normal(numel, 8, 1e-6f)};
  const size_t lines = numel / 64;
  const size_t stride = numel / lines;
  for (size_t line = 0; line < lines; ++line) {
    const uint64_t hash = static_cast<uint32_t>(line) * 2654435761u;
    const size_t begin = (line * stride + ((hash * (stride - 8)) >> 32)) / 8 * 8;
    std::fill_n(pattern.values.begin() + static_cast<ptrdiff_t>(begin), 8, 3.0f);
  }
  expect_selected(pattern, 20000, DType::kFloat32, 0, stream_);
}

TEST_P(SelectKernels, SearchEverythingWhereTooManyAreEqual) {
  Pattern pattern{"ties", std::vector<float>(135000, 1.0f)};
  for (size_t i = 0; i < pattern.values.size(); i += 777) {
    pattern.values[i] = static_cast<float>(i % 5) - 2.0f;
  }
  expect_selected(pattern, 60000, DType::kFloat32, 0, stream_);
  expect_selected(pattern, 134990, DType::kBFloat16, 0, stream_);
}

TEST_P(SelectKernels, LeaveTheGradientWhereItIsTheSum) {
  const std::vector<float> g = normal(9001, 12);
  for (const bool in_chunks : {false, true}) {
    Choice choice(g.size());
    choice.x = Guarded<float>(g);
    const cuda::SelectInput input{{choice.x.bytes(), g.size(), DType::kFloat32, kEmulated}, {}, 90};
    cuda::SelectOutput output = choice.output();
    output.x = choice.x.span();
    if (in_chunks) {
      cuda::select_in_chunks(input, output, stream_);
    } else {
      cuda::select_largest(input, output, stream_);
    }
    stream_.wait();
    choice.expect(g, in_chunks ? chosen_in_chunks(g, 90) : chosen_by_sorting(g, 90));
  }
}

TEST_P(SelectKernels, ChooseTheLargestOfEveryChunk) {
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 25)) {
      for (const uint32_t k : {1u, 41u, 1000u, 4096u}) {
        SCOPED_TRACE(concat(pattern.name, ", ", k, " of each chunk of ", numel));
        stream_.wait();
        Summed x(pattern, k == 41 ? DType::kBFloat16 : DType::kFloat32, k % 8);
        Choice choice(numel, k % 8);
        cuda::select_in_chunks(x.input(k), choice.output(), stream_);
        stream_.wait();
        choice.expect(x.sum, chosen_in_chunks(x.sum, k));
      }
    }
  }
}

/// The rules of threshold_state.h, element by element.
std::vector<bool> chosen_by_threshold(const std::vector<float>& x, size_t k, uint32_t step,
                                      ThresholdState& state) {
  if (!std::ranges::all_of(x, [](float v) { return std::isfinite(v); })) {
    return std::vector<bool>(x.size());
  }
  if (searches_exactly(state)) {
    const std::vector<bool> chosen = chosen_by_sorting(x, k);
    float smallest = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < x.size(); ++i) {
      smallest = chosen[i] ? std::min(smallest, std::abs(x[i])) : smallest;
    }
    state = after_exact_search(smallest, static_cast<size_t>(std::ranges::count(chosen, true)), k);
    return chosen;
  }
  const size_t chunks = cuda::select_chunks(x.size());
  size_t room = threshold_capacity(x.size(), k);
  size_t reached = 0;
  std::vector<bool> chosen(x.size());
  for (size_t c = 0; c < chunks; ++c) {
    const size_t begin = (first_chunk_taken(step, chunks) + c) % chunks * kChunk;
    for (size_t i = begin; i < std::min(x.size(), begin + kChunk); ++i) {
      if (std::abs(x[i]) >= state.tau && x[i] != 0) {
        chosen[i] = reached++ < room;
      }
    }
  }
  state = after_reuse(state, reached, k);
  return chosen;
}

TEST_P(SelectKernels, CarryAThreshold) {
  struct Start {
    ThresholdState state;
    float growth;  // of the gradient from step to step
  };
  const size_t numel = 20001;
  const size_t k = 300;
  for (const Start& start : {Start{{0, 0}, 1.0f}, Start{{0, 0}, 1.1f}, Start{{0, 0}, 0.9f},
                             Start{{2.5f, 31}, 1.0f}, Start{{2.5f, 32}, 1.0f},
                             Start{{0.5f, 3}, 1.0f}, Start{{1e30f, 3}, 1.0f},
                             Start{{1e-44f, 3}, 1.0f}}) {
    DeviceArray<cuda::ThresholdSlot> slots = {{start.state, 0}, {{77.0f, 77}, 0}};
    ThresholdState expected = start.state;
    DeviceValue<uint32_t> parity, step, epoch;
    float growth = 1.0f;
    for (uint32_t now = 0; now < 5; ++now, growth *= start.growth) {
      SCOPED_TRACE(concat("from ", start.state.tau, ", growth ", start.growth, ", step ", now));
      stream_.wait();
      Pattern pattern{"normal", normal(numel, now)};
      for (size_t i = 0; i < numel; ++i) {
        pattern.values[i] *= i % 7 == 0 ? 0.0f : growth;
      }
      if (now == 3) {
        pattern.name = "not finite";
        pattern.values[numel / 2] = std::numeric_limits<float>::quiet_NaN();
      }
      Summed x(pattern, DType::kFloat32, 0);
      Choice choice(numel);
      parity = now % 2;
      step = now * 31;
      EXPECT_TRUE(now == 0 || slots[now % 2].step == (now - 1) * 31 + 1);
      slots[now % 2].step = now * 31;
      const cuda::ThresholdSlots threshold{slots.data(), parity.data(), step.data(), epoch.data()};
      cuda::select_above(x.input(k), threshold, choice.output(), stream_);
      stream_.wait();
      choice.expect(x.sum, chosen_by_threshold(x.sum, k, now * 31, expected));
      EXPECT_EQ(slots[(now + 1) % 2].state.tau, expected.tau);
      EXPECT_EQ(slots[(now + 1) % 2].state.age, expected.age);
    }
  }
}

TEST_P(SelectKernels, CarryNoThresholdAboveTheLargestFloat) {
  Pattern pattern{"largest", std::vector<float>(100)};
  pattern.values[7] = pattern.values[93] = std::numeric_limits<float>::max();
  DeviceArray<cuda::ThresholdSlot> slots = {{{3.4e38f, 1}, 0}, {{0.0f, 0}, 0}};
  DeviceValue<uint32_t> parity, step, epoch;
  stream_.wait();
  Summed x(pattern, DType::kFloat32, 0);
  Choice choice(100);
  cuda::select_above(x.input(1), {slots.data(), parity.data(), step.data(), epoch.data()},
                     choice.output(), stream_);
  stream_.wait();
  EXPECT_EQ(slots[1].state, (ThresholdState{std::numeric_limits<float>::max(), 2}));
}

TEST_P(SelectKernels, CarryNoThresholdWhereFewerAreNotZero) {
  Pattern pattern{"sparse", std::vector<float>(9000)};
  pattern.values[17] = 3.0f;
  for (const size_t k : {size_t{1}, size_t{2}}) {
    DeviceArray<cuda::ThresholdSlot> slots(2);
    DeviceValue<uint32_t> parity, step, epoch;
    stream_.wait();
    Summed x(pattern, DType::kFloat32, 0);
    Choice choice(9000);
    cuda::select_above(x.input(k), {slots.data(), parity.data(), step.data(), epoch.data()}, choice.output(),
                       stream_);
    stream_.wait();
    choice.expect(x.sum, chosen_by_sorting(x.sum, k));
    EXPECT_EQ(slots[1].state.tau, k == 1 ? 3.0f : 0.0f);
    EXPECT_EQ(slots[1].state.age, 1u);
  }
}

TEST_P(SelectKernels, ForgetAThresholdOfAnotherStep) {
  const Pattern pattern{"normal", normal(9000, 3)};
  DeviceArray<cuda::ThresholdSlot> slots = {{{1e30f, 3}, 6}, {}};
  DeviceValue<uint32_t> parity, step(7), epoch;
  Summed x(pattern, DType::kFloat32, 0);
  Choice choice(9000);
  cuda::select_above(x.input(90), {slots.data(), parity.data(), step.data(), epoch.data()}, choice.output(),
                     stream_);
  stream_.wait();
  choice.expect(x.sum, chosen_by_sorting(x.sum, 90));
  EXPECT_EQ(slots[1].step, 8u);
}

TEST(SelectLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> g(5000), odd(5001);
  const std::span<float> x(g);
  Choice choice(5000);
  const ConstTensorView view(g.data(), 5000, DType::kFloat32, kEmulated);
  const cuda::SelectOutput good = choice.output();
  const auto fails = [&](const char* what, const cuda::SelectInput& in,
                         const cuda::SelectOutput& out) {
    expect_refused(what, [&] { cuda::select_largest(in, out, stream); });
  };
  const auto with = [&](auto change) {
    cuda::SelectOutput out = good;
    change(out);
    return out;
  };
  float* const misaligned = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(odd.data()) + 1);
  fails("k is 0, must be 1 to 5000", {view, {}, 0}, good);
  fails("k is 5001", {view, {}, 5001}, good);
  fails("e has 10 elements", {view, {x.first(10)}, 5}, good);
  fails("g is in the memory of the CPU", {{g.data(), 5000, DType::kFloat32, {}}, {}, 5}, good);
  fails("g is a null pointer", {{nullptr, 5000, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("g's address modulo 4 is 1", {{misaligned, 5000, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("g has 2147483649 elements",
        {{g.data(), (size_t{1} << 31) + 1, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("x has 10 elements", {view, {}, 5}, with([&](auto& o) { o.x = x.first(10); }));
  fails("x has 0 elements, must have 5000", {view, {}, 5}, with([](auto& o) { o.x = {}; }));
  fails("x's address modulo 4 is 1", {view, {}, 5},
        with([&](auto& o) { o.x = std::span(misaligned, 5000); }));
  fails("mask has 10 bytes", {view, {}, 5}, with([&](auto& o) { o.mask = o.mask.first(10); }));
  fails("counts has 1 elements", {view, {}, 5}, with([&](auto& o) { o.counts = o.counts.first(1); }));
  fails("before has 1 elements", {view, {}, 5}, with([&](auto& o) { o.before = o.before.first(1); }));
  fails("call is null", {view, {}, 5}, with([](auto& o) { o.call = nullptr; }));
  fails("workspace has 9 bytes", {view, {}, 5},
        with([&](auto& o) { o.workspace = o.workspace.first(9); }));
  fails("workspace must begin on a multiple of 16", {view, {}, 5}, with([&](auto& o) {
          o.workspace = std::span(o.workspace.data() + 8, o.workspace.size());
        }));
  expect_refused("k is 4097, must be 1 to 4096",
                 [&] { cuda::select_in_chunks({view, {}, 4097}, good, stream); });
  DeviceArray<cuda::ThresholdSlot> slots(2);
  DeviceValue<uint32_t> word;
  expect_refused("threshold.slots is a null pointer", [&] {
    cuda::select_above({view, {}, 5}, {nullptr, word.data(), word.data(), word.data()}, good, stream);
  });
  expect_refused("threshold.step is a null pointer", [&] {
    cuda::select_above({view, {}, 5}, {slots.data(), word.data(), nullptr, word.data()}, good, stream);
  });
}

}  // namespace
}  // namespace gradwire::testing
