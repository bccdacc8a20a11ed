// randomk on a GPU beside the CPU's, beyond what every row is held to: every share of a chunk,
// every value codec, draws that differ, and faults.

#include <gtest/gtest.h>

#include "tests/kernels/compress_cases.h"
#include "tests/kernels/cpu_rig.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = 90210;

CompressorShape shape_of(size_t numel) {
  return {.numel = numel, .segments = {{7, 0x300000005, numel}}, .seed = kSeed};
}

void expect_agreement(const std::string& spec, size_t numel) {
  SCOPED_TRACE(concat(spec, " ", numel));
  CpuRig cpu(spec, shape_of(numel));
  Rig gpu(spec, shape_of(numel));
  const OwnedTensor g = tensor_of(heavy_tailed(numel, kSeed), DType::kFloat32);
  const std::vector<float> e = normal(numel, kSeed + 1, 0.1f);
  std::vector<float> on_cpu(numel), on_gpu(numel);
  const auto payload = cpu.compress(g, e, on_cpu);
  ASSERT_EQ(gpu.compress(g, e, on_gpu), payload);
  ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
  ASSERT_EQ(gpu.decompress({payload, payload}, 0.3f).bytes,
            cpu.decompress({payload, payload}, 0.3f).bytes);
  for (const Region region : tiles(numel, 1)) {
    const auto part = cpu.slice(payload, region);
    ASSERT_EQ(gpu.slice(payload, region), part);
    const auto merged = cpu.merge({part, part}, region, 0.3f, on_cpu);
    ASSERT_EQ(gpu.merge({part, part}, region, 0.3f, on_gpu), merged);
    ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
  }
}

TEST(DrawnOnCuda, DrawsTheElementsOfTheCpu) {
  // Whole chunks are the hardest draw: every element moves, and many of them often.
  for (const char* k : {"1", "31", "32", "33", "41", "2000", "4095", "4096"}) {
    for (const size_t numel : {size_t{1}, size_t{300}, kChunk, kChunk + 77}) {
      expect_agreement(concat("randomk:", k, "/4096"), numel);
    }
  }
}

TEST(DrawnOnCuda, WritesEveryValueCodec) {
  for (const char* values : {"fp32", "fp16", "bf16", "int8", "int4", "2bit", "1bit", "e4m3", "e5m2",
                             "ternary", "natural", "qsgd:7", "int8,stochastic"}) {
    for (const char* feedback : {"", ",noef", ",decay=0.5"}) {
      expect_agreement(concat("randomk:41/4096,", values, feedback), 2 * kChunk + 501);
    }
  }
}

TEST(DrawnOnCuda, DrawsAnewInEveryStep) {
  CpuRig cpu("randomk:1%", shape_of(kChunk));
  Rig gpu("randomk:1%", shape_of(kChunk));
  const OwnedTensor g = tensor_of(normal(kChunk, kSeed), DType::kFloat32);
  std::vector<std::vector<std::byte>> payloads;
  for (const uint32_t step : {0u, 1u, 900u}) {
    cpu.set_step(step);
    gpu.set_step(step);
    payloads.push_back(gpu.compress(g, {}, {}));
    EXPECT_EQ(payloads.back(), cpu.compress(g, {}, {})) << step;
  }
  EXPECT_NE(payloads[0], payloads[1]);
  EXPECT_EQ(gpu.decompress(payloads, 0.5f).bytes, cpu.decompress(payloads, 0.5f).bytes)
      << "of several draws";
}

TEST(DrawnOnCuda, WhatIsScaledUpStaysFinite) {
  CpuRig cpu("randomk:1/4096,noef", shape_of(kChunk + 9));
  Rig gpu("randomk:1/4096,noef", shape_of(kChunk + 9));
  std::vector<float> values(kChunk + 9, -3e38f);
  const OwnedTensor g = tensor_of(values, DType::kFloat32);
  const auto payload = gpu.compress(g, {}, {});
  EXPECT_EQ(payload, cpu.compress(g, {}, {}));
  EXPECT_EQ(flags_of(payload), 0);
}

TEST(DrawnOnCuda, PayloadsOfOtherDrawsDoNotMerge) {
  Rig gpu("randomk:1%", shape_of(500));
  const OwnedTensor g = tensor_of(normal(500, kSeed), DType::kFloat32);
  const auto first = gpu.compress(g, {}, {});
  gpu.commit();
  const auto second = gpu.compress(g, {}, {});
  try {
    gpu.merge({first, second}, {0, 500}, 0.5f, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "payload part 1: its variant is none of its spec's, or not that of part 0");
  }
  const auto merged = gpu.merge({second, second}, {0, 500}, 0.5f, {});
  EXPECT_EQ(read_header(merged).variant, read_header(second).variant);
}

TEST(DrawnOnCuda, RefusesScalesThatAreNotFinite) {
  Rig gpu("randomk:1%,int8", shape_of(2 * kChunk));
  const OwnedTensor g = tensor_of(normal(2 * kChunk, kSeed), DType::kFloat32);
  auto payload = gpu.compress(g, {}, {});
  payload[sizeof(PayloadHeader) + 1] = std::byte{0x7F};
  payload[sizeof(PayloadHeader)] = std::byte{0x80};
  try {
    gpu.decompress({payload});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "payload part 0: a scale is not finite or negative");
  }
}

TEST(DrawnOnCuda, NeverReadsOrWritesOutsideForAnyByte) {
  const size_t numel = kChunk + 777;
  for (const char* spec : {"randomk:1%", "randomk:30%,int4"}) {
    Rig gpu(spec, shape_of(numel));
    const auto good = gpu.compress(tensor_of(normal(numel, 1), DType::kFloat32), {}, {});
    for (size_t at = 0; at < good.size(); at += at < 40 ? 1 : good.size() / 20) {
      auto bad = good;
      bad[at] ^= std::byte{0xFF};
      try {  // accepted or refused; the Rig's guards and the sanitizer tell of anything else
        gpu.decompress({bad, good}, 0.5f);
        gpu.slice(bad, {0, kChunk});
      } catch (const InvalidArgument&) {
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
