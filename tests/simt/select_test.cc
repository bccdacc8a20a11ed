// The selection kernels against a full sort.

#include "gradwire/kernels/ops/select_cuda.h"

#include <bit>
#include <numeric>

#include "gradwire/kernels/ops/device_status.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class SelectKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SelectKernels, kOrders);

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

/// Which elements have to be chosen, by sorting all of them.
std::vector<bool> chosen_by_sorting(const std::vector<float>& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return magnitude(x[a]) > magnitude(x[b]);
  });
  std::vector<bool> chosen(x.size());
  for (size_t i = 0; i < std::min(k, x.size()) && magnitude(x[order[i]]) != 0; ++i) {
    chosen[order[i]] = true;
  }
  return chosen;
}

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
  Guarded<std::byte> source(g.bytes, offset / 2 * 2);
  Guarded<float> before(e, offset / 4 * 4);
  Guarded<float> sum(numel, offset / 4 * 4);
  Guarded<std::byte> mask(chunks * cuda::kMaskBytes);
  Guarded<uint32_t> counts(chunks);
  Guarded<std::byte> workspace(cuda::select_workspace_bytes(numel));
  DeviceValue<uint32_t> status;
  cuda::select_largest(
      {{source.bytes(), numel, dtype, kEmulated}, before.span(), k},
      {sum.span(), mask.span(), counts.span(), status.data(), workspace.span()}, stream);
  stream.wait();
  ASSERT_EQ(bits_of(sum.values()), bits_of(x));
  EXPECT_EQ(*status, finite ? 0u : cuda::kStatusNonFinite);
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

TEST(SelectLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> g(5000), x(5000);
  DeviceArray<std::byte> mask(2 * cuda::kMaskBytes), workspace(cuda::select_workspace_bytes(5000));
  DeviceArray<uint32_t> counts(2);
  DeviceValue<uint32_t> word;
  uint32_t* const status = word.data();
  const ConstTensorView view(g.data(), 5000, DType::kFloat32, kEmulated);
  const cuda::SelectOutput good{x, mask, counts, status, workspace};
  const auto fails = [&](const cuda::SelectInput& in, const cuda::SelectOutput& out) {
    EXPECT_THROW(cuda::select_largest(in, out, stream), InvalidArgument);
  };
  fails({view, {}, 0}, good);
  fails({view, {}, 5001}, good);
  fails({view, std::span(x).first(10), 5}, good);
  fails({{g.data(), 5000, DType::kFloat32, {}}, {}, 5}, good);
  fails({view, {}, 5}, {std::span(x).first(10), mask, counts, status, workspace});
  fails({view, {}, 5}, {x, std::span(mask).first(10), counts, status, workspace});
  fails({view, {}, 5}, {x, mask, std::span(counts).first(1), status, workspace});
  fails({view, {}, 5}, {x, mask, counts, nullptr, workspace});
  fails({view, {}, 5}, {x, mask, counts, status, std::span(workspace).first(9)});
}

}  // namespace
}  // namespace gradwire::testing
