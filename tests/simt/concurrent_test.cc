// Kernels whose last block finishes what all have done, with every block on an OS thread of its own.

#include "gradwire/kernels/ops/select_cuda.h"
#include "tests/simt/chosen.h"
#include "tests/simt/records.h"

namespace gradwire::testing {
namespace {

class ConcurrentBlocks : public ::testing::Test {
 protected:
#if !defined(GRADWIRE_ON_GPU)
  void SetUp() override { simt::set_options({.seed = 0, .concurrent_blocks = true}); }
  void TearDown() override { simt::set_options({}); }
#endif
  TestStream stream_;
};

TEST_F(ConcurrentBlocks, SealAPayloadOnce) {
  const size_t numel = 8 * kChunk + 5;
  for (const bool finite : {true, false}) {
    std::vector<float> values = normal(numel, 1);
    values[3 * kChunk] = finite ? 1.0f : std::numeric_limits<float>::infinity();
    const OwnedTensor g = tensor_of(values, DType::kFloat32);
    const std::vector<float> e(numel);
    const auto compressor = make_compressor(parse_spec("int8"), {.numel = numel});
    const Encoded expected = compress_on_cpu(*compressor, g, e);
    EncodeMemories memory(g, e, expected.payload.size(), 0);
    cuda::quantize({.g = memory.g_view(g.dtype), .e = memory.e.span()},
                   {.records = memory.records(),
                    .e_next = memory.e_next.span(),
                    .call = memory.call.data(),
                    .seal = memory.seal(expected)},
                   stream_);
    stream_.wait();
    memory.expect(expected);
  }
}

void expect_the_largest(const std::vector<Pattern>& patterns, uint32_t k, TestStream& stream) {
  const size_t numel = patterns[0].values.size();
  const size_t chunks = cuda::select_chunks(numel);
  for (const Pattern& pattern : patterns) {
    const DeviceArray<float> g = on_device(pattern.values);
    DeviceArray<float> x(numel);
    DeviceArray<std::byte> mask(chunks * cuda::kMaskBytes);
    DeviceArray<uint32_t> counts(chunks);
    DeviceArray<cuda::EntriesBefore> before(chunks);
    DeviceArray<std::byte> workspace(cuda::select_workspace_bytes(numel));
    DeviceValue<cuda::CallWords> call;
    cuda::select_largest({{g.data(), numel, DType::kFloat32, kEmulated}, {}, k},
                         {std::span(x), mask, counts, before, call.data(), workspace}, stream);
    stream.wait();
    const std::vector<bool> expected = chosen_by_sorting(pattern.values, k);
    uint32_t total = 0;
    for (size_t i = 0; i < numel; ++i) {
      const bool marked = (static_cast<unsigned>(mask[i / 8]) >> (i % 8) & 1u) != 0;
      ASSERT_EQ(marked, expected[i]) << pattern.name << ", element " << i;
      total += marked ? 1 : 0;
    }
    EXPECT_EQ(before[chunks - 1].entries + counts[chunks - 1], total) << pattern.name;
  }
}

TEST_F(ConcurrentBlocks, FindTheCutOnce) {
  expect_the_largest(finite_patterns(8 * kChunk + 5, 2), 3000, stream_);
}

// What ThreadSanitizer runs in every suite (races.cmake).
TEST_F(ConcurrentBlocks, FindTheCutOfTwoChunks) {
  const std::vector<float> values = normal(kChunk + 5, 3);
  expect_the_largest({{"normal", values}}, 500, stream_);
}

}  // namespace
}  // namespace gradwire::testing
