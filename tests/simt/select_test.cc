// The selection kernels against a full sort.

#include "gradwire/kernels/ops/select_cuda.h"

#include "tests/simt/chosen.h"
#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class SelectKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SelectKernels, kOrders);

void expect_selected(const Pattern& pattern, size_t k, DType dtype, size_t offset,
                     Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", k, " of ", numel, " x ", to_string(dtype), ", offset ",
                      offset));
  const OwnedTensor g = tensor_of(pattern.values, dtype);
  const bool feedback = offset != 4;
  std::vector<float> e(feedback ? numel : 0);
  if (pattern.name == "normal") {  // elsewhere ties stay ties
    e = normal(e.size(), 6, 0.1f);
  }
  std::vector<float> x = g.floats();
  for (size_t i = 0; i < e.size(); ++i) {
    x[i] += e[i];
  }
  const bool finite = std::ranges::all_of(x, [](float v) { return std::isfinite(v); });
  const size_t chunks = cuda::select_chunks(numel);
  Guarded<std::byte> source(g.bytes, offset / size_of(dtype) * size_of(dtype));
  Guarded<float> before(e, offset / 4 * 4);
  Guarded<float> sum(numel, offset / 4 * 4);
  Guarded<std::byte> mask(chunks * cuda::kMaskBytes);
  Guarded<uint32_t> counts(chunks);
  Guarded<std::byte> workspace(cuda::select_workspace_bytes(numel));
  DeviceValue<cuda::CallWords> call;
  DeviceValue<uint32_t> parity(pattern.name == "normal" ? 1 : 0);
  // The array that is not meant has no memory: it must not be touched.
  const std::span<float> nowhere(reinterpret_cast<float*>(16), numel);
  const std::span<float> to[2] = {*parity == 0 ? sum.span() : nowhere,
                                  *parity == 0 ? nowhere : sum.span()};
  cuda::select_largest({{source.bytes(), numel, dtype, kEmulated}, {before.span()}, k},
                       {.x = {to[0], to[1], parity.data()},
                        .mask = mask.span(),
                        .counts = counts.span(),
                        .call = call.data(),
                        .workspace = workspace.span()},
                       stream);
  stream.wait();
  ASSERT_EQ(bits_of(sum.values()), bits_of(x));
  EXPECT_EQ((*call).flags, finite ? 0u : cuda::kStatusNonFinite);
  const std::vector<bool> expected =
      finite ? chosen_by_sorting(x, k) : std::vector<bool>(numel);
  std::vector<uint32_t> expected_counts(chunks);
  for (size_t i = 0; i < chunks * cuda::kSelectChunk; ++i) {
    const bool marked = (static_cast<unsigned>(mask.span()[i / 8]) >> (i % 8) & 1u) != 0;
    const bool wanted = i < numel && expected[i];
    ASSERT_EQ(marked, wanted) << "element " << i;
    expected_counts[i / cuda::kSelectChunk] += wanted ? 1 : 0;
  }
  EXPECT_EQ(counts.values(), expected_counts);
  EXPECT_TRUE(sum.guards_hold() && mask.guards_hold() && counts.guards_hold() &&
              workspace.guards_hold());
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

TEST_P(SelectKernels, LeaveTheGradientWhereItIsTheSum) {
  const std::vector<float> g = normal(9001, 12);
  Guarded<float> x(g);
  const size_t chunks = cuda::select_chunks(g.size());
  DeviceArray<std::byte> mask(chunks * cuda::kMaskBytes);
  DeviceArray<std::byte> workspace(cuda::select_workspace_bytes(g.size()));
  DeviceArray<uint32_t> counts(chunks);
  DeviceValue<cuda::CallWords> call;
  cuda::select_largest({{x.bytes(), g.size(), DType::kFloat32, kEmulated}, {}, 90},
                       {x.span(), mask, counts, call.data(), workspace}, stream_);
  stream_.wait();
  EXPECT_EQ(bits_of(x.values()), bits_of(g));
  const std::vector<bool> expected = chosen_by_sorting(g, 90);
  for (size_t i = 0; i < g.size(); ++i) {
    ASSERT_EQ((static_cast<unsigned>(mask[i / 8]) >> (i % 8) & 1u) != 0, expected[i]) << i;
  }
}

TEST(SelectLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> g(5000), x(5000), odd(5001);
  DeviceArray<std::byte> mask(2 * cuda::kMaskBytes);
  DeviceArray<std::byte> workspace(cuda::select_workspace_bytes(5000) + 16);
  DeviceArray<uint32_t> counts(2);
  DeviceValue<cuda::CallWords> words;
  cuda::CallWords* const call = words.data();
  const std::span<std::byte> room(workspace);
  const ConstTensorView view(g.data(), 5000, DType::kFloat32, kEmulated);
  const cuda::SelectOutput good{std::span(x), mask, counts, call, room};
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
  fails("e has 10 elements", {view, {std::span(x).first(10)}, 5}, good);
  fails("g is in the memory of the CPU", {{g.data(), 5000, DType::kFloat32, {}}, {}, 5}, good);
  fails("g is a null pointer", {{nullptr, 5000, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("g's address modulo 4 is 1", {{misaligned, 5000, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("g has 2147483649 elements",
        {{g.data(), (size_t{1} << 31) + 1, DType::kFloat32, kEmulated}, {}, 5}, good);
  fails("x has 10 elements", {view, {}, 5}, with([&](auto& o) { o.x = std::span(x).first(10); }));
  fails("x has 0 elements, must have 5000", {view, {}, 5}, with([](auto& o) { o.x = {}; }));
  fails("x's address modulo 4 is 1", {view, {}, 5},
        with([&](auto& o) { o.x = std::span(misaligned, 5000); }));
  fails("mask has 10 bytes", {view, {}, 5}, with([&](auto& o) { o.mask = std::span(mask).first(10); }));
  fails("counts has 1 elements", {view, {}, 5},
        with([&](auto& o) { o.counts = std::span(counts).first(1); }));
  fails("call is null", {view, {}, 5}, with([](auto& o) { o.call = nullptr; }));
  fails("workspace has 9 bytes", {view, {}, 5}, with([&](auto& o) { o.workspace = room.first(9); }));
  fails("workspace must begin on a multiple of 16", {view, {}, 5},
        with([&](auto& o) { o.workspace = room.subspan(8); }));
}

}  // namespace
}  // namespace gradwire::testing
