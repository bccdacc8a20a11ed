// dgc on a GPU beside the CPU's, over steps that commit and steps that do not: the velocity shows
// in the bytes of every step after.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_cases.h"
#include "tests/kernels/cpu_rig.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 1712;

/// A gradient with a direction of its own beside noise, so that velocities grow.
std::vector<float> gradient(size_t numel, int step) {
  std::vector<float> g = normal(numel, kSeed + static_cast<uint64_t>(step));
  const std::vector<float> steady = heavy_tailed(numel, kSeed);
  for (size_t i = 0; i < numel; ++i) {
    g[i] += 0.3f * steady[i];
  }
  return g;
}

/// The CPU's compressor, the GPU's, and the residual that both commit.
struct Both {
  Both(const std::string& spec, size_t numel, DType of_gradient = DType::kFloat32, int ranks = 1)
      : dtype(of_gradient),
        cpu(spec, {.numel = numel, .dtype = dtype, .world_size = ranks}),
        gpu(spec, {.numel = numel, .dtype = dtype, .world_size = ranks}),
        e(numel),
        e_next(numel) {}

  /// The payload of both, which is one.
  std::vector<std::byte> compress(const std::vector<float>& values) {
    const OwnedTensor g = tensor_of(values, dtype);
    std::vector<float> on_gpu(e.size());
    const auto payload = cpu.compress(g, e, e_next);
    EXPECT_EQ(gpu.compress(g, e, on_gpu), payload);
    EXPECT_EQ(bits_of(on_gpu), bits_of(e_next));
    return payload;
  }
  void commit() {
    std::swap(e, e_next);
    cpu.commit();
    gpu.commit();
  }

  DType dtype;
  CpuRig cpu;
  Rig gpu;
  std::vector<float> e, e_next;
};

TEST(DgcOnCuda, WritesTheBytesOfTheCpuOverManySteps) {
  const size_t numel = 2 * kChunk + 55;
  struct Case {
    const char* spec;
    DType dtype;
    int ranks;
  };
  for (const Case& c : {Case{"dgc:2%", DType::kFloat32, 1},
                        {"dgc:2%,momentum=0.5,int8", DType::kFloat16, 1},
                        {"dgc:1%,clip=7", DType::kFloat32, 1},
                        {"dgc:1%,clip=90", DType::kBFloat16, 4},
                        {"dgc:30%,fp16", DType::kFloat32, 1},
                        {"dgc:30%,1bit,decay=0.9", DType::kFloat32, 1},
                        {"dgc:2%,ternary", DType::kBFloat16, 1},
                        {"dgc:2%,int8,stochastic,momentum=0.3,clip=5", DType::kFloat32, 2}}) {
    SCOPED_TRACE(c.spec);
    Both both(c.spec, numel, c.dtype, c.ranks);
    for (int step = 0; step < 6; ++step) {
      both.compress(gradient(numel, step));
      both.commit();
    }
  }
}

TEST(DgcOnCuda, ClipsByTheNormOfTheCpu) {
  // More elements than one thread block adds up, with a tail that no lane shares.
  const size_t numel = 33 * kChunk + 1003;
  Both both("dgc:0.1%,clip=3", numel);
  for (int step = 0; step < 2; ++step) {
    both.compress(gradient(numel, step));
    both.commit();
  }
  both.compress(std::vector<float>(numel, 1e-9f));  // below the limit: as it is
}

TEST(DgcOnCuda, TheWarmUpFollowsTheStepOnTheDevice) {
  // Bitmaps at 25%, packed indices after; every stage two steps.
  const size_t numel = 3 * kChunk + 9;
  Both both("dgc:0.1%,warmup=2", numel);
  for (int step = 0; step < 12; ++step) {
    SCOPED_TRACE(step);
    const auto payload = both.compress(gradient(numel, step));
    EXPECT_EQ(read_header(payload).variant, std::min(static_cast<uint32_t>(step) / 2, 4u));
    ASSERT_EQ(both.gpu.decompress({payload, payload}, 0.5f).bytes,
              both.cpu.decompress({payload, payload}, 0.5f).bytes);
    std::vector<std::vector<std::byte>> merged;
    for (const Region region : tiles(numel, 2)) {
      const auto part = both.cpu.slice(payload, region);
      ASSERT_EQ(both.gpu.slice(payload, region), part);
      std::vector<float> on_cpu = both.e_next, on_gpu = both.e_next;
      merged.push_back(both.cpu.merge({part, part}, region, 0.5f, on_cpu));
      ASSERT_EQ(both.gpu.merge({part, part}, region, 0.5f, on_gpu), merged.back());
      ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
    }
    ASSERT_EQ(both.gpu.decompress(merged).bytes, both.cpu.decompress(merged).bytes);
    both.commit();
  }
}

TEST(DgcOnCuda, AMergeTakesTheStageOfItsParts) {
  const size_t numel = kChunk;
  Both both("dgc:0.5%,warmup=1", numel);
  const auto payload = both.compress(gradient(numel, 0));
  both.cpu.set_step(7);  // whoever merges may be in another step
  both.gpu.set_step(7);
  const auto merged = both.gpu.merge({payload, payload}, {0, numel}, 0.5f, {});
  EXPECT_EQ(merged, both.cpu.merge({payload, payload}, {0, numel}, 0.5f, {}));
  EXPECT_EQ(read_header(merged).variant, 0u);
}

TEST(DgcOnCuda, AStepThatDoesNotCommitLeavesTheVelocity) {
  const size_t numel = kChunk + 100;
  Both both("dgc:1%", numel);
  std::vector<float> unused(numel);
  for (int step = 0; step < 4; ++step) {
    std::vector<float> bad = gradient(numel, 100 + step);
    both.gpu.compress(tensor_of(bad, DType::kFloat32), both.e, unused);  // fails later
    bad[5] = step % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    EXPECT_EQ(flags_of(both.gpu.compress(tensor_of(bad, DType::kFloat32), both.e, unused)),
              kFlagNonFinite);
    both.compress(gradient(numel, step));
    both.commit();
  }
}

TEST(DgcOnCuda, TheVelocityIsForgottenWhereTheStepIsSet) {
  const size_t numel = kChunk + 100;
  Both both("dgc:1%,warmup=3", numel);
  for (int step = 0; step < 3; ++step) {
    both.compress(gradient(numel, step));
    both.commit();
  }
  for (const uint32_t step : {3u, 1u}) {
    both.cpu.set_step(step);
    both.gpu.set_step(step);
    both.compress(gradient(numel, 9));
    both.commit();
    both.compress(gradient(numel, 10));
  }
}

TEST(DgcOnCuda, RefusesPayloadsOfTwoStagesInOneCall) {
  const size_t numel = kChunk;
  Both both("dgc:0.5%,warmup=1", numel);
  const auto first = both.compress(gradient(numel, 0));
  both.commit();
  const auto second = both.compress(gradient(numel, 1));
  auto unknown = first;
  unknown[20] = std::byte{99};
  const auto error_of = [&](const std::vector<std::vector<std::byte>>& parts) {
    try {
      both.gpu.decompress(parts);
      return std::string("no error");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  const std::string because = ": its variant is none of its spec's, or not that of part 0";
  EXPECT_EQ(error_of({first, second}), "payload part 1" + because) << "one of them has bitmaps";
  EXPECT_EQ(error_of({unknown}), "payload part 0" + because);
}

}  // namespace
}  // namespace gradwire::testing
