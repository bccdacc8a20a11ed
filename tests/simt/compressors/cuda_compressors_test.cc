// Compressors on a GPU: the bytes of the CPU's, commits on the device, faults that end them.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/compress_cases.h"
#include "tests/kernels/cpu_rig.h"
#include "tests/simt/compressors/loop.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

/// A group of several parameters that begin at odd places.
CompressorShape shape_of(size_t numel, DType dtype) {
  CompressorShape shape{.numel = numel, .dtype = dtype, .seed = kLoopSeed, .rank = 2};
  if (numel > 300) {
    shape.segments = {{5, 3, 259}, {9, 0, numel - 259}};
  }
  return shape;
}

void expect_agreement(const std::string& spec, DType dtype, const std::vector<float>& values) {
  const size_t numel = values.size();
  SCOPED_TRACE(concat(spec, " ", to_string(dtype), " ", numel));
  CpuRig cpu(spec, shape_of(numel, dtype));
  Rig gpu(spec, shape_of(numel, dtype));
  ASSERT_EQ(cpu.compressor().capacity_bytes(), gpu.compressor().capacity_bytes());
  std::vector<float> residual = normal(numel, kLoopSeed + 1, 0.1f);
  for (int step = 0; step < 2; ++step) {
    OwnedTensor g = tensor_of(values, dtype);
    std::vector<float> on_cpu(numel), on_gpu(numel);
    const auto payload = cpu.compress(g, residual, on_cpu);
    ASSERT_EQ(gpu.compress(g, residual, on_gpu), payload);
    ASSERT_EQ(bits_of(on_gpu), bits_of(on_cpu));
    ASSERT_EQ(gpu.decompress({payload, payload}, 0.3f).bytes,
              cpu.decompress({payload, payload}, 0.3f).bytes);
    std::vector<std::vector<std::byte>> merged;
    for (const Region region : tiles(numel, 2)) {
      const auto part = cpu.slice(payload, region);
      ASSERT_EQ(gpu.slice(payload, region), part);
      std::vector<float> put_on_cpu = on_cpu, put_on_gpu = on_cpu;
      merged.push_back(cpu.merge({part, part, part}, region, 0.3f, put_on_cpu));
      ASSERT_EQ(gpu.merge({part, part, part}, region, 0.3f, put_on_gpu), merged.back());
      ASSERT_EQ(bits_of(put_on_gpu), bits_of(put_on_cpu));
    }
    ASSERT_EQ(gpu.decompress(merged).bytes, cpu.decompress(merged).bytes);
    residual = on_cpu;
    cpu.commit();
    gpu.commit();
  }
}

/// A row of the registry each, since the emulator takes its time.
class CudaCompressorRow : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Rows, CudaCompressorRow, ::testing::ValuesIn([] {
  std::vector<std::string_view> names;
  for (const CompressorRow& row : all_rows()) {
    names.push_back(row.name);
  }
  return names;
}()));

TEST_P(CudaCompressorRow, WritesTheBytesOfTheCpu) {
  std::vector<std::string> specs = all_specs();
  std::erase_if(specs, [](const std::string& spec) { return parse_spec(spec).name != GetParam(); });
  ASSERT_FALSE(specs.empty());
  for (const std::string& spec : specs) {
    for (const size_t numel : odd_sizes()) {
      expect_agreement(spec, DType::kFloat32, heavy_tailed(numel, kLoopSeed));
    }
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      expect_agreement(spec, dtype, normal(2 * kChunk + 333, kLoopSeed));
    }
  }
}

TEST(CudaCompressors, FlagWhatIsNotFinite) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 500;
    std::vector<float> values = normal(numel, kLoopSeed);
    values[4099] = std::numeric_limits<float>::infinity();
    CpuRig cpu(spec, shape_of(numel, DType::kFloat32));
    Rig gpu(spec, shape_of(numel, DType::kFloat32));
    OwnedTensor g = tensor_of(values, DType::kFloat32);
    const auto payload = gpu.compress(g, {}, {});
    EXPECT_EQ(flags_of(payload), kFlagNonFinite);
    EXPECT_EQ(payload, cpu.compress(g, {}, {}));
    const auto part = gpu.slice(payload, {0, kChunk});
    EXPECT_EQ(part, cpu.slice(payload, {0, kChunk}));
    EXPECT_EQ(gpu.merge({part, part}, {0, kChunk}, 0.5f, {}),
              cpu.merge({part, part}, {0, kChunk}, 0.5f, {}));
    EXPECT_EQ(flags_of(gpu.compress(tensor_of(normal(numel, 1), DType::kFloat32), {}, {})), 0)
        << "a flag stays with its call";
  }
}

/// What a merge of `parts` says of values that overflow: its flag, and which residuals stayed finite.
template <class AnyRig>
std::pair<uint8_t, std::vector<bool>> merged(AnyRig& rig,
                                             const std::vector<std::vector<std::byte>>& parts,
                                             float scale, float kept) {
  std::vector<float> e_next(rig.numel(), kept);
  const uint8_t flags = flags_of(rig.merge(parts, {0, rig.numel()}, scale, e_next));
  std::vector<bool> finite;
  for (const float e : e_next) {
    finite.push_back(std::isfinite(e));
  }
  return {flags, finite};
}

TEST(CudaCompressors, FlagMergesThatOverflowAsTheCpuDoes) {
  const size_t numel = kChunk + 500;
  size_t flagged = 0;
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    CpuRig cpu(spec, {.numel = numel, .seed = kLoopSeed});
    Rig gpu(spec, {.numel = numel, .seed = kLoopSeed});
    const auto payload_of = [&](uint64_t seed, float scale) {
      return cpu.compress(tensor_of(normal(numel, seed, scale), DType::kFloat32), {}, {});
    };
    const auto large = payload_of(1, 1e37f), other = payload_of(2, 1e37f);
    // What is left of the sum is put back onto little; onto what it makes overflow, with either sign.
    for (const float kept : {0.0f, 3.4e38f, -3.4e38f}) {
      const auto expected = merged(cpu, {large, other}, 0.5f, kept);
      EXPECT_EQ(merged(gpu, {large, other}, 0.5f, kept), expected) << kept;
      flagged += expected.first;
    }
    // Finite parts with a sum that is not: it is what fp16 cannot hold, and some specs not send.
    const std::vector<std::vector<std::byte>> many(40, payload_of(3, 1e37f));
    const auto expected = merged(cpu, many, 0.025f, 0.0f);
    EXPECT_EQ(merged(gpu, many, 0.025f, 0.0f), expected);
    flagged += expected.first;
    const auto again = merged(gpu, {payload_of(4, 1.0f)}, 1.0f, 0.0f);
    EXPECT_EQ(again.first, 0) << "a flag stays with its call";
  }
  EXPECT_GT(flagged, all_specs().size()) << "some of it has to overflow";
}

TEST(CudaCompressors, CommitOnTheDevice) {
  for (const char* spec : {"topk:5%,int4", "chunktopk:2%", "threshold:5%", "int4,stochastic",
                           "1bit", "bf16,ef", "randomk:10%,int4", "int8,momentum=0.9",
                           "randomk:10%,momentum=0.8", "topk:5%,int8,ef21,eta=0.3"}) {
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 99;
    Loop loop(spec, numel);
    CpuRig cpu(spec, {.numel = numel, .seed = kLoopSeed});
    std::vector<float> e(numel), e_next(numel);
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> values = normal(numel, kLoopSeed + step);
      loop.compress(values);
      const OwnedTensor g = tensor_of(values, DType::kFloat32);
      ASSERT_EQ(loop.sent(), cpu.compress(g, e, e_next)) << step;
      if (step != 1) {  // not committed: the next step starts from the same residual
        loop.state->commit(OnNonFinite::kError, loop.stream);
        cpu.commit();
        std::swap(e, e_next);
      }
      ASSERT_EQ(bits_of(loop.committed()), bits_of(e)) << step;
    }
    EXPECT_EQ(loop.state->read(loop.stream).step, 3u);
  }
}

TEST(CudaCompressors, RoundByTheStepThatWasSet) {
  Rig gpu("int4,stochastic", {.numel = kChunk, .seed = kLoopSeed});
  CpuRig cpu("int4,stochastic", {.numel = kChunk, .seed = kLoopSeed});
  const OwnedTensor g = tensor_of(normal(kChunk, 1), DType::kFloat32);
  const auto first = gpu.compress(g, {}, {});
  gpu.set_step(41);
  cpu.set_step(41);
  EXPECT_NE(gpu.compress(g, {}, {}), first);
  EXPECT_EQ(gpu.compress(g, {}, {}), cpu.compress(g, {}, {}));
}

TEST(CudaCompressors, MergeIntoTheResidualThatIsWritten) {
  Loop loop("int8", kChunk);
  loop.compress(normal(kChunk, 1));
  loop.state->commit(OnNonFinite::kError, loop.stream);
  loop.compress(normal(kChunk, 2));
  const auto sent = loop.sent();
  const std::vector<float> before(loop.first.begin(), loop.first.end());
  const std::vector<float> committed = loop.committed();
  const auto theirs = CpuRig("int8", {.numel = kChunk}).compress(
      tensor_of(normal(kChunk, 3), DType::kFloat32), {}, {});
  DeviceArray<std::byte> copy(sent.begin(), sent.end()), other(theirs.begin(), theirs.end());
  DeviceArray<std::byte> out(loop.payload.size());
  const ConstPayload parts[] = {copy, other};
  loop.compressor->merge({parts, {0, kChunk}, 0.5f, loop.first}, loop.second, out, loop.context);
  loop.stream.wait();
  EXPECT_NE(bits_of(loop.first), bits_of(before)) << "parity 1 writes the first buffer";
  EXPECT_EQ(bits_of(loop.committed()), bits_of(committed));
}

TEST(CudaCompressors, ANonFiniteStepCommitsNothing) {
  for (const OnNonFinite policy : {OnNonFinite::kError, OnNonFinite::kSkip}) {
    Loop loop("topk:5%", kChunk);
    loop.compress(normal(kChunk, 1));
    loop.state->commit(policy, loop.stream);
    const std::vector<float> committed = loop.committed();
    std::vector<float> bad = normal(kChunk, 2);
    bad[77] = std::nanf("");
    loop.compress(bad);
    loop.state->commit(policy, loop.stream);
    EXPECT_EQ(bits_of(loop.committed()), bits_of(committed));
    loop.compress(normal(kChunk, 3));
    loop.state->commit(policy, loop.stream);
    const cuda::StepWords words = loop.state->read(loop.stream);
    if (policy == OnNonFinite::kSkip) {
      EXPECT_EQ(words.step, 2u);
      EXPECT_EQ(words.skipped, 1u);
      loop.state->check(loop.stream);
    } else {
      EXPECT_EQ(words.step, 1u) << "until the error was reported";
      EXPECT_THROW(loop.state->check(loop.stream), InvalidArgument);
      loop.state->clear(loop.stream);
      loop.state->check(loop.stream);
      loop.state->commit(policy, loop.stream);
      EXPECT_EQ(loop.state->read(loop.stream).step, 2u);
    }
  }
}

TEST(CudaCompressors, AnotherRanksFlagStopsTheCommit) {
  Loop loop("int8", kChunk);
  CpuRig other("int8", {.numel = kChunk, .rank = 1});
  std::vector<float> bad = normal(kChunk, 2);
  bad[5] = std::numeric_limits<float>::infinity();
  const OwnedTensor bad_gradient = tensor_of(bad, DType::kFloat32);
  const auto theirs = other.compress(bad_gradient, {}, {});
  loop.compress(normal(kChunk, 1));
  DeviceArray<std::byte> received(theirs.begin(), theirs.end());
  DeviceArray<float> mean(kChunk);
  const ConstPayload parts[] = {loop.payload, received};
  loop.compressor->decompress(parts, 0.5f, {mean.data(), kChunk, DType::kFloat32, kGpu},
                              loop.context);
  loop.state->commit(OnNonFinite::kSkip, loop.stream);
  EXPECT_EQ(loop.state->read(loop.stream).skipped, 1u);
  EXPECT_EQ(loop.state->read(loop.stream).step, 0u);
}

TEST(CudaCompressors, NameTheFaultOfAPayload) {
  struct Fault {
    size_t at;
    uint8_t flip;
    const char* says;
  };
  const Fault faults[] = {{0, 1, "magic"},       {4, 2, "version"},   {5, 3, "format"},
                          {6, 1, "value codec"}, {7, 4, "flags"},     {8, 1, "fingerprint"},
                          {12, 9, "region"},     {16, 64, "region"},  {16, 1, "region"},  {24, 1, "length"},
                          {25, 0x80, "length"}};
  for (const char* spec : {"int8", "topk:5%", "fp16,ef", "1bit"}) {
    Rig gpu(spec, {.numel = kChunk + 7});
    const OwnedTensor g = tensor_of(normal(kChunk + 7, 1), DType::kFloat32);
    const auto good = gpu.compress(g, {}, {});
    for (const Fault& fault : faults) {
      SCOPED_TRACE(concat(spec, " byte ", fault.at));
      auto bad = good;
      bad[fault.at] ^= std::byte{fault.flip};
      try {
        gpu.decompress({good, bad});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const InvalidArgument& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find("payload part 1: "), std::string::npos) << message;
        EXPECT_NE(message.find(fault.says), std::string::npos) << message;
      }
    }
    for (const size_t length : {size_t{0}, size_t{31}, good.size() - 1}) {
      EXPECT_THROW(gpu.decompress({{good.begin(), good.begin() + static_cast<ptrdiff_t>(length)}}),
                   InvalidArgument);
    }
    const std::vector<float> sum = gpu.decompress({good}).floats();
    EXPECT_TRUE(all_equal(sum, CpuRig(spec, {.numel = kChunk + 7}).decompress({good}).floats()))
        << "a fault that was reported is forgotten";
  }
}

TEST(CudaCompressors, SendNothingThatAReaderTakesAfterAFault) {
  for (const char* spec : {"int8", "topk:10%", "fp16,ef"}) {
    SCOPED_TRACE(spec);
    Loop loop(spec, kChunk);
    loop.compress(normal(kChunk, 1));
    const auto good = loop.sent();
    auto bad = good;
    bad[8] ^= std::byte{1};
    DeviceArray<std::byte> first(bad.begin(), bad.end()), second(good.begin(), good.end());
    DeviceArray<std::byte> out(loop.payload.size(), std::byte{7});
    const ConstPayload parts[] = {first, second};
    loop.compressor->merge({parts, {0, kChunk}, 0.5f}, {}, out, loop.context);
    loop.stream.wait();
    EXPECT_THROW(read_header({out.host(), out.size()}), InvalidArgument);
    loop.compress(normal(kChunk, 2));
    loop.stream.wait();
    EXPECT_THROW(read_header({loop.payload.host(), loop.payload.size()}), InvalidArgument);
    EXPECT_THROW(loop.state->check(loop.stream), InvalidArgument);
    loop.state->clear(loop.stream);
    loop.compress(normal(kChunk, 1));
    EXPECT_EQ(loop.sent(), good);
  }
}

TEST(CudaCompressors, ForgetAThresholdWhereTheStepIsSet) {
  const size_t numel = 9001;
  Rig gpu("threshold:1%", {.numel = numel});
  CpuRig cpu("threshold:1%", {.numel = numel});
  for (int step = 0; step < 2; ++step) {
    const OwnedTensor g = tensor_of(normal(numel, static_cast<uint64_t>(step)), DType::kFloat32);
    ASSERT_EQ(gpu.compress(g, {}, {}), cpu.compress(g, {}, {}));
    gpu.commit();
    cpu.commit();
  }
  gpu.set_step(2);
  cpu.set_step(2);
  const OwnedTensor g = tensor_of(normal(numel, 9, 1.5f), DType::kFloat32);
  EXPECT_EQ(gpu.compress(g, {}, {}), cpu.compress(g, {}, {}));
}

TEST(CudaCompressors, NeverReadOrWriteOutsideForAnyByte) {
  for (const char* spec : {"int4", "2bit,block=8", "1bit", "topk:5%,int4", "topk:30%"}) {
    SCOPED_TRACE(spec);
    const size_t numel = kChunk + 777;
    Rig gpu(spec, {.numel = numel});
    const OwnedTensor g = tensor_of(normal(numel, 1), DType::kFloat32);
    const auto good = gpu.compress(g, {}, {});
    for (size_t at = 0; at < good.size(); at += at < 64 ? 1 : good.size() / 30) {
      for (const uint8_t flip : {0xFF, 0x01, 0x80}) {
        auto bad = good;
        bad[at] ^= std::byte{flip};
        try {  // accepted or refused; the Rig's guards and the sanitizer tell of anything else
          gpu.decompress({bad, good}, 0.5f);
        } catch (const InvalidArgument&) {
        }
        try {
          gpu.slice(bad, {0, kChunk});
        } catch (const InvalidArgument&) {
        }
      }
    }
  }
}

TEST(CudaCompressors, RefuseWhatIsOfAnotherDevice) {
  Loop loop("topk:5%", 5000);
  Compressor& compressor = *loop.compressor;
  const auto cpu_stream = make_inline_stream();
  Workspace cpu_workspace;
  Context on_cpu{*cpu_stream, cpu_workspace}, mixed{loop.stream, cpu_workspace};
  const ConstGradient g(loop.g.data(), 5000, DType::kFloat32, kGpu);
  const auto fails = [&](ConstGradient gradient, Context& context) {
    EXPECT_THROW(compressor.compress(gradient, loop.first, loop.second, loop.payload, context),
                 InvalidArgument);
  };
  fails(g, on_cpu);
  fails(g, mixed);
  fails({loop.g.data(), 5000, DType::kFloat32}, loop.context);
  fails({loop.g.data(), 4999, DType::kFloat32, kGpu}, loop.context);
  fails({nullptr, 5000, DType::kFloat32, kGpu}, loop.context);
  EXPECT_THROW(compressor.commit(), DeviceError);
  EXPECT_THROW(compressor.set_step(3), DeviceError);
  EXPECT_THROW(make_compressor(parse_spec("int8"), {.numel = 5, .state = loop.state}),
               InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing
