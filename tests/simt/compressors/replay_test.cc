// A whole step is recorded once and replayed: what changes between replays (residuals, parity,
// thresholds, random numbers) is found in device memory.

#include <gtest/gtest.h>

#include "tests/kernels/compress_cases.h"
#include "tests/kernels/cpu_rig.h"
#include "tests/simt/captured.h"
#include "tests/simt/compressors/loop.h"
#include "tests/support/sampling.h"

namespace gradwire::testing {
namespace {

/// compress, decompress, commit; all memory is taken before it is recorded.
struct Step {
  explicit Step(const std::string& spec, size_t numel) : loop(spec, numel), mean(numel) {
    loop.set_gradient(std::vector<float>(numel));
    for (int i = 0; i < 3; ++i) {  // the workspace grows twice
      enqueue();
    }
    loop.state->set_step(0, loop.stream);
    loop.stream.wait();
  }
  void enqueue() {
    loop.enqueue_compress();
    const ConstPayload parts[] = {loop.payload, loop.payload};
    loop.compressor->decompress(parts, 0.5f, {mean.data(), mean.size(), DType::kFloat32, kGpu},
                                loop.context);
    loop.state->commit(OnNonFinite::kSkip, loop.stream);
  }

  Loop loop;
  DeviceArray<float> mean;
};

TEST(Replay, FollowsTheCommits) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 301;
    Step step(spec, numel);
    CpuRig cpu(spec, {.numel = numel, .seed = kLoopSeed});
    std::vector<float> e(numel), e_next(numel);
    Captured captured(step.loop.stream, [&] { step.enqueue(); });
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> values = heavy_tailed(numel, 50 + static_cast<uint64_t>(i));
      step.loop.set_gradient(values);
      captured.replay();
      const auto expected = cpu.compress(tensor_of(values, DType::kFloat32), e, e_next);
      ASSERT_EQ(step.loop.sent(), expected) << "replay " << i;
      const std::vector<float> mean = cpu.decompress({expected, expected}, 0.5f).floats();
      std::swap(e, e_next);
      cpu.commit();  // last: what is decoded may be part of what commits
      ASSERT_EQ(bits_of(step.loop.committed()), bits_of(e)) << "replay " << i;
      ASSERT_EQ(bits_of(std::vector<float>(step.mean.begin(), step.mean.end())), bits_of(mean));
    }
  }
}

TEST(Replay, WritesTheSameThreeTimesWhereNothingIsCommitted) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    Step step(spec, 2 * kChunk + 5);
    Captured captured(step.loop.stream, [&] { step.loop.enqueue_compress(); });
    step.loop.set_gradient(heavy_tailed(2 * kChunk + 5, 3));
    captured.replay();
    const std::vector<std::byte> first = step.loop.sent();
    for (int i = 0; i < 2; ++i) {
      captured.replay();
      EXPECT_EQ(step.loop.sent(), first);
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
