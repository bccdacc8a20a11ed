// Quantize and dequantize kernels against the CPU compressors' payloads and residuals.

#include "gradwire/kernels/ops/quantize_cuda.h"

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/random.h"
#include "tests/simt/records.h"

namespace gradwire::testing {
namespace {

class QuantizeKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, QuantizeKernels, kOrders);

struct Case {
  int bits = 8;
  bool stochastic = false;
  bool feedback = true;
  size_t offset = 0;  // of all memory but segments, from a 16-byte boundary
  uint32_t block = 256;
};

/// Parameters whose parts of the group begin at odd places, in the group and in themselves.
std::vector<Segment> segments_of(size_t numel) {
  std::vector<Segment> segments;
  size_t done = 0;
  for (const size_t length : {size_t{3}, size_t{256}, size_t{1}, size_t{1021}, size_t{4096}}) {
    const size_t mine = std::min(length, numel - done);
    if (mine > 0) {
      const auto id = static_cast<uint32_t>(segments.size() * 7 + 1);
      segments.push_back({id, segments.size() * 5 + 2, mine});
      done += mine;
    }
  }
  if (done < numel || segments.empty()) {
    segments.push_back({99, 16, numel - done});
  }
  return segments;
}

DeviceArray<cuda::RandomSegment> table_of(const std::vector<Segment>& segments) {
  DeviceArray<cuda::RandomSegment> table;
  uint64_t end = 0;
  for (const Segment& segment : segments) {
    end += segment.numel;
    table.push_back({end, segment.offset_in_parameter, segment.parameter});
  }
  return table;
}

constexpr uint64_t kSeed = 0x9E3779B97F4A7C15u;

std::unique_ptr<Compressor> cpu_compressor(size_t numel, DType dtype, const Case& c) {
  CompressorSpec spec = parse_spec(c.bits == 8 ? "int8" : c.bits == 4 ? "int4" : "2bit");
  spec.codec.rounding = c.stochastic ? Rounding::kStochastic : Rounding::kNearest;
  spec.feedback.on = c.feedback;
  spec.codec.block = c.block;
  CompressorShape shape{.numel = numel, .dtype = dtype, .seed = kSeed, .rank = 3};
  if (numel > 0) {
    shape.segments = segments_of(numel);
  }
  auto compressor = make_compressor(spec, shape);
  compressor->set_step(41);
  return compressor;
}

void expect_encoded(const Pattern& pattern, DType dtype, const Case& c, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " x ", to_string(dtype), ", int", c.bits,
                      c.stochastic ? ", stochastic" : "", c.feedback ? ", feedback" : "",
                      ", offset ", c.offset, ", blocks of ", c.block));
  const OwnedTensor g = tensor_of(pattern.values, dtype);
  const std::vector<float> e = c.feedback ? normal(numel, 77, 0.01f) : std::vector<float>();
  const auto compressor = cpu_compressor(numel, dtype, c);
  const Encoded expected = compress_on_cpu(*compressor, g, e);
  const DeviceArray<cuda::RandomSegment> table = table_of(segments_of(numel));
  DeviceValue<uint32_t> step(41);
  const cuda::RoundingSource rounding{table, step.data(), kSeed, 12};
  EncodeMemories memory(g, e, expected.payload.size(), c.offset);
  cuda::quantize({.g = memory.g_view(dtype),
                  .e = memory.e.span(),
                  .bits = c.bits,
                  .block = c.block,
                  .stochastic = c.stochastic ? &rounding : nullptr},
                 {.records = memory.records(),
                  .e_next = memory.e_next.span(),
                  .call = memory.call.data(),
                  .seal = memory.seal(expected)},
                 stream);
  stream.wait();
  memory.expect(expected);
}

TEST_P(QuantizeKernels, WriteTheCompressorsPayloadAndResidual) {
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 3)) {
      for (const int bits : {8, 4}) {
        expect_encoded(pattern, DType::kFloat32, {.bits = bits}, stream_);
        expect_encoded(pattern, DType::kFloat32, {.bits = bits, .stochastic = true}, stream_);
      }
    }
  }
}

TEST_P(QuantizeKernels, TakeEveryTypeAlignmentAndNoFeedback) {
  for (const size_t numel : {size_t{1}, size_t{257}, size_t{4097}, size_t{8699}}) {
    const Pattern pattern = {"normal", normal(numel, 5)};
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const size_t offset : {1, 2, 4, 8, 12}) {
        for (const int bits : {8, 4}) {
          expect_encoded(pattern, dtype, {bits, false, true, offset}, stream_);
          expect_encoded(pattern, dtype, {bits, true, false, offset}, stream_);
        }
      }
    }
  }
}

TEST_P(QuantizeKernels, TakeEveryBlock) {
  for (const size_t numel : {size_t{1}, size_t{1001}, size_t{4096}, size_t{9001}}) {
    for (const Pattern& pattern : patterns(numel, 6)) {
      if (pattern.name == "heavy-tailed" || pattern.name == "not finite") {
        for (const uint32_t block : {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
          for (const int bits : {8, 4, 2}) {
            expect_encoded(pattern, DType::kBFloat16, {bits, block % 3 == 2, true, 2, block},
                           stream_);
          }
        }
      }
    }
  }
}

TEST_P(QuantizeKernels, ReadTheStepWhenTheyRun) {
  const DeviceArray<float> x = on_device(normal(5000, 9));
  const DeviceArray<cuda::RandomSegment> table = {{5000, 0, 0}};
  DeviceValue<uint32_t> step;
  DeviceValue<cuda::CallWords> call;
  const cuda::RoundingSource rounding{table, step.data(), 5, 0};
  std::vector<DeviceArray<std::byte>> runs;
  for (const uint32_t now : {1u, 1u, 2u}) {
    step = now;
    runs.emplace_back(cuda::quantized_bytes(5000, 4, 256));
    cuda::quantize({.g = {x.data(), x.size(), DType::kFloat32, kEmulated},
                    .bits = 4,
                    .stochastic = &rounding},
                   {.records = runs.back(), .call = call.data()}, stream_);
    stream_.wait();
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

TEST_P(QuantizeKernels, ChooseTheResidualByTheDevicesParity) {
  const size_t numel = 5001;
  const OwnedTensor g = tensor_of(normal(numel, 1), DType::kFloat32);
  const std::vector<float> e = normal(numel, 2);
  const Encoded expected = compress_on_cpu(*cpu_compressor(numel, g.dtype, {}), g, e);
  for (const uint32_t parity : {0u, 1u}) {
    EncodeMemories memory(g, e, expected.payload.size(), 0);
    DeviceValue<uint32_t> word(parity);
    std::span<float> buffers[2] = {memory.e.span(), memory.e_next.span()};
    if (parity == 1) {
      std::swap(buffers[0], buffers[1]);
    }
    cuda::quantize({.g = memory.g_view(g.dtype), .e = {buffers[0], buffers[1], word.data()}},
                   {.records = memory.records(),
                    .e_next = {buffers[1], buffers[0], word.data()},
                    .call = memory.call.data(),
                    .seal = memory.seal(expected)},
                   stream_);
    stream_.wait();
    memory.expect(expected);
  }
}

TEST_P(QuantizeKernels, LeaveTheResidualInTheGradientsMemory) {
  for (const uint32_t block : {32u, 256u, 4096u}) {
    const size_t numel = 9001;
    const OwnedTensor g = tensor_of(normal(numel, 1), DType::kFloat32);
    const std::vector<float> zero(numel);
    const Encoded expected =
        compress_on_cpu(*cpu_compressor(numel, g.dtype, {.block = block}), g, zero);
    EncodeMemories memory(g, {}, expected.payload.size(), 0);
    const std::span<float> x(reinterpret_cast<float*>(memory.g.bytes()), numel);
    cuda::quantize({.g = memory.g_view(g.dtype), .block = block},
                   {.records = memory.records(),
                    .e_next = x,
                    .call = memory.call.data(),
                    .seal = memory.seal(expected)},
                   stream_);
    stream_.wait();
    std::vector<float> left(numel);
    std::memcpy(left.data(), memory.g.values().data(), numel * sizeof(float));
    EXPECT_EQ(bits_of(left), bits_of(expected.e_next));
    memory.expect({expected.payload, {}});
  }
}

/// What merge() does with a sum of parts that begins at element `first` of the group.
TEST_P(QuantizeKernels, EncodeAScaledSumAndPutBackWhatIsLeftOut) {
  for (const bool stochastic : {false, true}) {
    for (const uint32_t block : {64u, 256u, 1024u}) {
      const size_t first = 4096;
      const size_t numel = 4905;
      const float scale = 1.0f / 3.0f;
      const std::vector<Segment> segments = segments_of(first + numel);
      const OwnedTensor sum = tensor_of(normal(numel, 3), DType::kFloat32);
      const std::vector<float> x = sum.floats();
      std::vector<uint16_t> random;
      for (const Segment& segment : segments) {
        const size_t begin = random.size();
        random.resize(begin + segment.numel);
        cpu::random_halves({kSeed, 41, segment.parameter, 13}, segment.offset_in_parameter,
                           std::span(random).subspan(begin));
      }
      Encoded expected{std::vector<std::byte>(32), normal(numel, 4)};
      for (size_t begin = 0; begin < numel; begin += kChunk) {
        const size_t count = std::min(kChunk, numel - begin);
        std::vector<float> scaled(count), decoded(count), scales((count + block - 1) / block);
        std::vector<int8_t> codes(count);
        cpu::multiply(std::span(x).subspan(begin, count), scale, scaled);
        const auto drawn = std::span(random).subspan(first + begin, count);
        cpu::quantize(scaled,
                      {8, block, stochastic ? std::span<const uint16_t>(drawn)
                                            : std::span<const uint16_t>()},
                      {scales, codes, decoded});
        cpu::put_back(std::span(x).subspan(begin, count), decoded, scale,
                      std::span(expected.e_next).subspan(begin, count));
        for (const auto& bytes : {std::as_bytes(std::span(scales)), std::as_bytes(std::span(codes))}) {
          expected.payload.insert(expected.payload.end(), bytes.begin(), bytes.end());
        }
      }
      EncodeMemories memory(sum, normal(numel, 4), expected.payload.size(), 3);
      const DeviceArray<cuda::RandomSegment> table = table_of(segments);
      DeviceValue<uint32_t> step(41);
      const cuda::RoundingSource rounding{table, step.data(), kSeed, 13};
      cuda::quantize({.g = memory.g_view(sum.dtype),
                      .block = block,
                      .stochastic = stochastic ? &rounding : nullptr,
                      .first = first,
                      .scale = scale},
                     {.records = memory.records(),
                      .put_back = memory.e.span(),
                      .call = memory.call.data()},
                     stream_);
      stream_.wait();
      ASSERT_EQ(memory.payload_without_header(), std::vector<std::byte>(expected.payload.begin() + 32,
                                                                        expected.payload.end()));
      ASSERT_EQ(bits_of(memory.e.values()), bits_of(expected.e_next));
    }
  }
}

TEST_P(QuantizeKernels, AddPartsInRankOrder) {
  for (const size_t numel : {size_t{0}, size_t{33}, size_t{4095}, size_t{9001}}) {
    for (const int bits : {8, 4, 2}) {
      for (const uint32_t block : {8u, 256u, 2048u}) {
        for (const size_t parts : {size_t{0}, size_t{1}, numel == 33 ? size_t{131} : size_t{5}}) {
          SCOPED_TRACE(concat(numel, " elements, int", bits, ", ", parts, " parts"));
          const auto cpu = cpu_compressor(numel, DType::kBFloat16, {.bits = bits, .block = block});
          expect_sum(*cpu, parts, [&](const cuda::QuantizedParts& these, TensorView sum) {
            cuda::QuantizedParts p = these;
            p.bits = bits;
            p.block = block;
            cuda::dequantize(p, 0.3f, sum, stream_);
          }, stream_);
        }
      }
    }
  }
}

TEST_P(QuantizeKernels, AddThePartsThatHoldAChunk) {
  // Chunks of one element each in all but the last, so that a value says whose it is.
  const size_t record = cuda::quantized_record_bytes(kChunk, 8, 4096);
  std::vector<Guarded<std::byte>> bodies;
  const auto body = [&](size_t chunks, float scale) {
    std::vector<std::byte> bytes(chunks * record, std::byte{1});
    for (size_t i = 0; i < chunks; ++i) {
      const float of_chunk = scale * static_cast<float>(i + 1);
      std::memcpy(bytes.data() + i * record, &of_chunk, sizeof of_chunk);
    }
    bodies.emplace_back(bytes, 1);
    return bodies.back().bytes();
  };
  bodies.reserve(2);
  const DeviceArray<cuda::DevicePart> table = {{body(3, 1.0f), 3 * record, 2, 3, 3 * kChunk, 0},
                                               {},
                                               {body(2, 100.0f), 2 * record, 4, 2, 2 * kChunk, 0}};
  Guarded<float> sum(5 * kChunk);  // of chunks 1 to 5
  DeviceValue<cuda::StepWords> step;
  cuda::dequantize({.parts = table, .block = 4096, .first = kChunk, .faults = {step.data(), nullptr}},
                   1.0f, {sum.bytes(), 5 * kChunk, DType::kFloat32, kEmulated}, stream_);
  stream_.wait();
  const std::vector<float> values = sum.values();
  const float expected[5] = {0, 1, 2, 103, 200};
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], expected[i / kChunk]) << i;
  }
  EXPECT_EQ((*step).status, 0u);
  EXPECT_TRUE(sum.guards_hold());
}

TEST_P(QuantizeKernels, PackTwoBitsAndUnpackThem) {
  const size_t numel = 4999;
  const DeviceArray<float> x = on_device(normal(numel, 4));
  DeviceArray<float> e(numel), e_next(numel), sum(numel);
  DeviceArray<std::byte> records(cuda::quantized_bytes(numel, 2, 256));
  DeviceValue<cuda::CallWords> call;
  DeviceValue<cuda::StepWords> step;
  cuda::quantize({.g = {x.data(), numel, DType::kFloat32, kEmulated}, .e = {e}, .bits = 2},
                 {.records = records, .e_next = {e_next}, .call = call.data()}, stream_);
  const DeviceArray<cuda::DevicePart> table = {{records.data(), records.size(), 0, 2, numel, 0}};
  cuda::dequantize({.parts = table, .bits = 2, .faults = {step.data(), nullptr}}, 1.0f,
                   {sum.data(), numel, DType::kFloat32, kEmulated}, stream_);
  stream_.wait();
  for (size_t i = 0; i < numel; ++i) {
    const size_t block = i / 256 * 256;
    float largest = 0;
    for (size_t j = block; j < std::min(numel, block + 256); ++j) {
      largest = std::max(largest, std::abs(x[j]));
    }
    const float code = std::nearbyint(x[i] * (1.0f / largest));
    ASSERT_EQ(sum[i], code * largest) << i;
    ASSERT_EQ(e_next[i], x[i] - code * largest) << i;
  }
}

TEST(QuantizeLaunchers, LeaveOutAScaleThatIsNoNumber) {
  TestStream stream;
  DeviceArray<std::byte> records(cuda::quantized_bytes(768, 8, 256), std::byte{1});
  const float scales[3] = {std::numeric_limits<float>::quiet_NaN(), 2.0f, -1.0f};
  std::memcpy(records.host(), scales, sizeof scales);
  const DeviceArray<cuda::DevicePart> table = {{}, {records.data(), records.size(), 0, 1, 768, 0}};
  DeviceArray<float> sum(768);
  DeviceValue<cuda::StepWords> step;
  cuda::dequantize({.parts = table, .faults = {step.data(), nullptr}}, 1.0f,
                   {sum.data(), 768, DType::kFloat32, kEmulated}, stream);
  stream.wait();
  EXPECT_EQ((*step).status, cuda::kStatusMalformed);
  EXPECT_EQ((*step).fault, 1u << 8 | static_cast<uint32_t>(cuda::FaultReason::kScale));
  EXPECT_EQ(sum[0], 0.0f);
  EXPECT_EQ(sum[511], 2.0f);
  EXPECT_EQ(sum[512], 0.0f);
}

}  // namespace
}  // namespace gradwire::testing
