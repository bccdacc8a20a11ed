// The same bits in every run: whatever the order of blocks and threads, and on a GPU whatever runs
// first. Gradients are long enough for many blocks, and hold ties.

#include <gtest/gtest.h>

#include "tests/kernels/compress_cases.h"
#include "tests/simt/compressors/loop.h"

namespace gradwire::testing {
namespace {

#if defined(GRADWIRE_ON_GPU)
constexpr size_t kNumel = (size_t{1} << 20) + 3;
constexpr uint32_t kRuns = 20;
#else
constexpr size_t kNumel = 3 * kChunk + 3;
constexpr uint32_t kRuns = 4;
#endif

struct Outcome {
  std::vector<std::byte> payload;
  std::vector<uint32_t> e_next, mean;

  bool operator==(const Outcome&) const = default;
};

TEST(Determinism, EveryRunWritesTheSameBits) {
  std::vector<float> values = heavy_tailed(kNumel, 9);
  for (size_t i = 0; i < kNumel; i += 3) {
    values[i] = std::round(values[i] * 2) / 2;
  }
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    Loop loop(spec, kNumel);
    DeviceArray<float> mean(kNumel);
    Outcome first;
    for (uint32_t run = 0; run < kRuns; ++run) {
      set_order(run);
      loop.compress(values);
      const ConstPayload parts[] = {loop.payload, loop.payload, loop.payload};
      loop.compressor->decompress(parts, 1.0f / 3, {mean.data(), kNumel, DType::kFloat32, kGpu},
                                  loop.context);
      const Outcome now{loop.sent(), bits_of(loop.second), bits_of(mean)};
      if (run == 0) {
        first = now;
      } else {
        ASSERT_TRUE(now == first) << "run " << run;
      }
    }
  }
  set_order(0);
}

}  // namespace
}  // namespace gradwire::testing
