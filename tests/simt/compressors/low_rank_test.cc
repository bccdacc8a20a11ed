// powersgd on a GPU: the CPU's bits, step for step, and what the device alone knows: which side a step
// sends, and whether it has a basis.

#include <gtest/gtest.h>

#include "tests/kernels/cpu_rig.h"
#include "tests/kernels/low_rank_case.h"
#include "tests/simt/compressors/loop.h"

namespace gradwire::testing {
namespace {

/// Long rows for several turns of a warp, many for several tiles, and vectors for several blocks.
std::vector<Segment> large_segments() {
  return {{1, 0, 150 * 31, 150}, {2, 0, 23}, {3, 0, 24 * 530, 24}, {4, 0, 48 * 47, 48}};
}

/// Bits of payload, mean, residual, slices and merges, of three ranks alike.
void expect_the_same_step(CpuRig& cpu, Rig& gpu, const OwnedTensor& g, std::vector<float>& residual) {
  const size_t numel = residual.size();
  std::vector<float> on_cpu(numel), on_gpu(numel);
  const auto payload = cpu.compress(g, residual, on_cpu);
  ASSERT_EQ(gpu.compress(g, residual, on_gpu), payload);
  ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
  std::vector<std::vector<std::byte>> merged;
  for (const Region region : tiles(numel, 2)) {
    const auto part = cpu.slice(payload, region);
    ASSERT_EQ(gpu.slice(payload, region), part);
    merged.push_back(cpu.merge({part, part, part}, region, 0.3f, {}));
    ASSERT_EQ(gpu.merge({part, part, part}, region, 0.3f, {}), merged.back());
  }
  std::vector<float> x = residual, y = residual;
  ASSERT_EQ(gpu.compress_accumulated(y), cpu.compress_accumulated(x));
  ASSERT_EQ(bits_of(y), bits_of(x));
  cpu.restore(payload, x);
  gpu.restore(payload, y);
  ASSERT_EQ(bits_of(y), bits_of(x));
  ASSERT_EQ(gpu.decompress({payload, payload}, 0.3f).bytes,
            cpu.decompress({payload, payload}, 0.3f).bytes);
  ASSERT_EQ(gpu.decompress(merged).bytes, cpu.decompress(merged).bytes);
  residual = on_cpu;
}

TEST(CudaLowRank, WritesTheBytesOfTheCpu) {
  struct Case {
    const char* spec;
    std::vector<Segment> segments;
    DType dtype;
  };
  for (const Case& c : {Case{"powersgd:1", mixed_segments(), DType::kBFloat16},
                        Case{"powersgd:4", mixed_segments(), DType::kFloat32},
                        Case{"powersgd:11", large_segments(), DType::kFloat32},
                        Case{"powersgd:3", large_segments(), DType::kFloat16}}) {
    const size_t numel = numel_of(c.segments);
    CpuRig cpu(c.spec, shape_of(c.segments, kLoopSeed, 1, c.dtype));
    Rig gpu(c.spec, shape_of(c.segments, kLoopSeed, 1, c.dtype));
    std::vector<float> residual = normal(numel, kLoopSeed, 0.1f);
    for (uint64_t step = 0; step < 4; ++step) {
      SCOPED_TRACE(concat(c.spec, " ", to_string(c.dtype), ", step ", step));
      const OwnedTensor g = tensor_of(heavy_tailed(numel, kLoopSeed + step), c.dtype);
      ASSERT_NO_FATAL_FAILURE(expect_the_same_step(cpu, gpu, g, residual));
      cpu.commit();
      gpu.commit();
    }
  }
}

/// Bits of both rounds' payloads, slices and merges, of mean and residual, of three ranks alike.
void expect_the_same_rounds(CpuRig& cpu, Rig& gpu, const OwnedTensor& g,
                            std::vector<float>& residual) {
  const size_t numel = residual.size();
  std::vector<float> on_cpu(numel), on_gpu(numel);
  std::vector<std::vector<std::byte>> merged;
  const auto merge = [&](const std::vector<std::byte>& payload) {
    merged.clear();
    for (const Region region : tiles(numel, 2)) {
      const auto part = cpu.slice(payload, region);
      ASSERT_EQ(gpu.slice(payload, region), part);
      merged.push_back(cpu.merge({part, part, part}, region, 1.0f / 3, {}));
      ASSERT_EQ(gpu.merge({part, part, part}, region, 1.0f / 3, {}), merged.back());
    }
  };
  const auto first = cpu.compress(g, residual, on_cpu);
  ASSERT_EQ(gpu.compress(g, residual, on_gpu), first);
  ASSERT_NO_FATAL_FAILURE(merge(first));
  cpu.take_first(merged);
  gpu.take_first({first, first, first}, 1.0f / 3);
  const auto second = cpu.compress_second(g, residual, on_cpu);
  ASSERT_EQ(gpu.compress_second(g, residual, on_gpu), second);
  ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
  ASSERT_NO_FATAL_FAILURE(merge(second));
  ASSERT_EQ(gpu.decompress({second, second}, 0.3f).bytes,
            cpu.decompress({second, second}, 0.3f).bytes);
  ASSERT_EQ(gpu.decompress(merged).bytes, cpu.decompress(merged).bytes);
  ASSERT_EQ(gpu.slice(first, {0, kChunk}), cpu.slice(first, {0, kChunk})) << "of another round";
  residual = on_cpu;
}

TEST(CudaLowRank, WritesTheBytesOfTheCpuInTwoRounds) {
  struct Case {
    const char* spec;
    std::vector<Segment> segments;
    DType dtype;
  };
  for (const Case& c :
       {Case{"powersgd:1,rounds=2", mixed_segments(), DType::kBFloat16},
        Case{"powersgd:4,rounds=2", mixed_segments(), DType::kFloat32},
        Case{"powersgd:11,rounds=2", large_segments(), DType::kFloat32},
        Case{"powersgd:3,rounds=2,decay=0.9", large_segments(), DType::kFloat16},
        Case{"powersgd:4,rounds=2,momentum=0.8", mixed_segments(), DType::kFloat32},
        Case{"powersgd:4,rounds=2,ef21,eta=0.3", mixed_segments(), DType::kFloat32}}) {
    const size_t numel = numel_of(c.segments);
    CpuRig cpu(c.spec, shape_of(c.segments, kLoopSeed, 1, c.dtype));
    Rig gpu(c.spec, shape_of(c.segments, kLoopSeed, 1, c.dtype));
    std::vector<float> residual = normal(numel, kLoopSeed, 0.1f);
    for (uint64_t step = 0; step < 3; ++step) {
      SCOPED_TRACE(concat(c.spec, " ", to_string(c.dtype), ", step ", step));
      const OwnedTensor g = tensor_of(heavy_tailed(numel, kLoopSeed + step), c.dtype);
      ASSERT_NO_FATAL_FAILURE(expect_the_same_rounds(cpu, gpu, g, residual));
      cpu.commit();
      gpu.commit();
    }
  }
}

TEST(CudaLowRank, RefusesAGradientOfWhichNothingMayBeKept) {
  const std::vector<Segment> segments{{4, 0, 64 * 48, 64}};
  for (const char* spec : {"powersgd:2", "powersgd:2,decay=0.9", "powersgd:2,momentum=0.9",
                           "powersgd:2,momentum=0.9,decay=0.9", "powersgd:2,ef21"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CpuRig cpu(spec, shape_of(segments, kLoopSeed, 0, dtype));
      Rig gpu(spec, shape_of(segments, kLoopSeed, 0, dtype));
      std::vector<float> values(64 * 48), e = normal(values.size(), kLoopSeed);
      std::vector<float> on_cpu(e), on_gpu(e);
      for (const float largest : {0x1p103f, 0x1p105f}) {
        SCOPED_TRACE(concat(spec, " ", to_string(dtype), ", ", largest));
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = i == 100 ? -largest : 1.0f;
        }
        const OwnedTensor g = tensor_of(values, dtype);
        const auto payload = cpu.compress(g, e, on_cpu);
        EXPECT_EQ(flags_of(payload) != 0, largest > 0x1p104f);
        EXPECT_TRUE(gpu.compress(g, e, on_gpu) == payload);
      }
    }
  }
}

TEST(CudaLowRank, LearnsFromZerosAndDependentVectorsAsTheCpuDoes) {
  const std::vector<Segment> segments{{4, 0, 30 * 40, 30}, {5, 0, 40 * 20, 40}};
  CpuRig cpu("powersgd:5", shape_of(segments, kLoopSeed));
  Rig gpu("powersgd:5", shape_of(segments, kLoopSeed));
  std::vector<float> residual(numel_of(segments));
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    std::vector<float> values(residual.size());
    for (size_t i = 0; i < 1200 && step > 0; ++i) {  // of rank 1, and the other one zero
      values[i] = (step == 3 ? 1e-30f : 1.0f) * static_cast<float>(i / 40 % 7) *
                  static_cast<float>(i % 40);
    }
    ASSERT_NO_FATAL_FAILURE(
        expect_the_same_step(cpu, gpu, tensor_of(values, DType::kFloat32), residual));
    cpu.commit();
    gpu.commit();
  }
}

TEST(CudaLowRank, DrawsItsBasisAnewBehindAStepThatWasSetOrTaughtNothing) {
  const std::vector<Segment> segments = mixed_segments();
  const OwnedTensor g = tensor_of(normal(numel_of(segments), kLoopSeed), DType::kFloat32);
  CpuRig cpu("powersgd:4", shape_of(segments, kLoopSeed));
  Rig gpu("powersgd:4", shape_of(segments, kLoopSeed));
  const auto learn = [&] {
    const auto payload = cpu.compress(g, {}, {});
    EXPECT_EQ(gpu.compress(g, {}, {}), payload);
    EXPECT_EQ(gpu.decompress({payload}).bytes, cpu.decompress({payload}).bytes);
  };
  const auto commit = [&] {
    cpu.commit();
    gpu.commit();
  };
  learn();
  commit();
  learn();
  cpu.set_step(2);
  gpu.set_step(2);
  learn();
  commit();
  commit();  // nothing was decoded in between
  learn();
  commit();
  const auto payload = cpu.compress(g, {}, {});
  const auto half = cpu.slice(payload, {0, kChunk});
  EXPECT_EQ(gpu.decompress({half}).bytes, cpu.decompress({half}).bytes);  // is not all of it
  commit();
  learn();
}

}  // namespace
}  // namespace gradwire::testing
