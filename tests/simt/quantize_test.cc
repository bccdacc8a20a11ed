// Quantize and dequantize kernels against the CPU compressors' payloads and residuals.

#include "gradwire/kernels/ops/quantize_cuda.h"

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/random.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class QuantizeKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, QuantizeKernels, kOrders);

struct Case {
  int bits;
  bool stochastic;
  bool feedback;
  size_t offset;  // of all memory but segments, from a 16-byte boundary
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

struct Encoded {
  std::vector<std::byte> records;
  std::vector<float> e_next;
  bool finite = true;
};

/// What the CPU compressor writes behind the payload's header.
Encoded on_cpu(const OwnedTensor& g, const std::vector<float>& e, const Case& c) {
  CompressorSpec spec = parse_spec(c.bits == 8 ? "int8" : "int4");
  spec.rounding = c.stochastic ? Rounding::kStochastic : Rounding::kNearest;
  spec.error_feedback = c.feedback;
  CompressorShape shape{.numel = g.numel(), .dtype = g.dtype, .seed = 0x9E3779B97F4A7C15u, .rank = 3};
  if (g.numel() > 0) {
    shape.segments = segments_of(g.numel());
  }
  const auto compressor = make_compressor(spec, shape);
  compressor->set_step(41);
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::vector<std::byte> payload(compressor->capacity_bytes());
  Encoded out{{}, std::vector<float>(c.feedback ? e.size() : 0), true};
  const ConstGradient view(g.bytes.data(), g.numel(), g.dtype);
  compressor->compress(view, c.feedback ? e : ConstResidual(), out.e_next, payload, context);
  stream->wait();
  out.finite = read_header(payload).flags == 0;
  out.records.assign(payload.begin() + sizeof(PayloadHeader), payload.end());
  return out;
}

void expect_encoded(const Pattern& pattern, DType dtype, const Case& c, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " x ", to_string(dtype), ", int", c.bits,
                      c.stochastic ? ", stochastic" : "", c.feedback ? ", feedback" : "",
                      ", offset ", c.offset));
  const OwnedTensor g = tensor_of(pattern.values, dtype);
  const std::vector<float> e = normal(numel, 77, 0.01f);
  const Encoded expected = on_cpu(g, e, c);
  Guarded<std::byte> source(g.bytes, c.offset / 2 * 2);
  Guarded<float> before(c.feedback ? e : std::vector<float>(), c.offset / 4 * 4);
  Guarded<float> after(c.feedback ? numel : 0, c.offset / 4 * 4);
  Guarded<std::byte> records(cuda::quantized_bytes(numel, c.bits), c.offset);
  const DeviceArray<cuda::RandomSegment> table = table_of(segments_of(numel));
  DeviceValue<uint32_t> step(41), status(8);
  const cuda::RoundingSource rounding{table, step.data(), 0x9E3779B97F4A7C15u, 12};
  cuda::quantize({.g = {source.bytes(), numel, dtype, kEmulated},
                  .e = before.span(),
                  .bits = c.bits,
                  .stochastic = c.stochastic ? &rounding : nullptr},
                 {.records = records.span(), .e_next = after.span(), .status = status.data()}, stream);
  stream.wait();
  ASSERT_EQ(records.values(), expected.records);
  ASSERT_EQ(bits_of(after.values()), bits_of(expected.e_next));
  EXPECT_EQ(*status, expected.finite ? 8u : 8u | cuda::kStatusNonFinite);
  EXPECT_TRUE(records.guards_hold());
  EXPECT_TRUE(after.guards_hold());
}

TEST_P(QuantizeKernels, WriteTheCompressorsRecordsAndResidual) {
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 3)) {
      for (const int bits : {8, 4}) {
        expect_encoded(pattern, DType::kFloat32, {bits, false, true, 0}, stream_);
        expect_encoded(pattern, DType::kFloat32, {bits, true, true, 0}, stream_);
      }
    }
  }
}

TEST_P(QuantizeKernels, TakeEveryTypeAlignmentAndNoFeedback) {
  for (const size_t numel : {size_t{1}, size_t{257}, size_t{4097}, size_t{8699}}) {
    const Pattern pattern = {"normal", normal(numel, 5)};
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const size_t offset : {1, 2, 4, 8}) {
        for (const int bits : {8, 4}) {
          expect_encoded(pattern, dtype, {bits, false, true, offset}, stream_);
          expect_encoded(pattern, dtype, {bits, true, false, offset}, stream_);
        }
      }
    }
  }
}

TEST_P(QuantizeKernels, ReadTheStepWhenTheyRun) {
  const DeviceArray<float> x = on_device(normal(5000, 9));
  const DeviceArray<cuda::RandomSegment> table = {{5000, 0, 0}};
  DeviceValue<uint32_t> step, status;
  const cuda::RoundingSource rounding{table, step.data(), 5, 0};
  std::vector<DeviceArray<std::byte>> runs;
  for (const uint32_t now : {1u, 1u, 2u}) {
    step = now;
    runs.emplace_back(cuda::quantized_bytes(5000, 4));
    cuda::quantize({{x.data(), x.size(), DType::kFloat32, kEmulated}, {}, 4, &rounding},
                   {runs.back(), {}, status.data()}, stream_);
    stream_.wait();
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

TEST_P(QuantizeKernels, AddPartsInRankOrder) {
  for (const size_t numel : {size_t{0}, size_t{33}, size_t{4095}, size_t{9001}}) {
    for (const int bits : {8, 4}) {
      for (const size_t parts : {size_t{0}, size_t{1}, size_t{5}}) {
        std::vector<Guarded<std::byte>> records;
        std::vector<std::vector<std::byte>> payloads;
        std::vector<ConstPayload> views;
        const auto spec = parse_spec(bits == 8 ? "int8" : "int4");
        const auto compressor = make_compressor(spec, {.numel = numel, .dtype = DType::kBFloat16});
        const auto cpu_stream = make_inline_stream();
        Workspace workspace;
        Context context{*cpu_stream, workspace};
        for (size_t part = 0; part < parts; ++part) {
          const OwnedTensor g = tensor_of(heavy_tailed(numel, part), DType::kBFloat16);
          const std::vector<float> e(numel);
          std::vector<float> e_next(numel);
          payloads.emplace_back(compressor->capacity_bytes());
          compressor->compress({g.bytes.data(), numel, g.dtype}, e, e_next, payloads.back(),
                               context);
          records.emplace_back(std::vector<std::byte>(payloads.back().begin() + 32,
                                                      payloads.back().end()),
                               part);
        }
        views.assign(payloads.begin(), payloads.end());
        OwnedTensor expected = zeros(numel, DType::kBFloat16);
        compressor->decompress(views, 0.3f, expected.view(), context);
        cpu_stream->wait();
        DeviceArray<const std::byte*> table;
        for (auto& part : records) {
          table.push_back(part.bytes());
        }
        Guarded<std::byte> sum(numel * 2);
        DeviceValue<uint32_t> status;
        cuda::dequantize({table, bits}, 0.3f, {sum.bytes(), numel, DType::kBFloat16, kEmulated},
                         status.data(), stream_);
        stream_.wait();
        ASSERT_EQ(sum.values(), expected.bytes) << numel << " " << bits << " " << parts;
        EXPECT_TRUE(sum.guards_hold());
        EXPECT_EQ(*status, 0u);
      }
    }
  }
}

TEST_P(QuantizeKernels, PackTwoBitsAndUnpackThem) {
  const size_t numel = 4999;
  const DeviceArray<float> x = on_device(normal(numel, 4));
  const DeviceArray<float> e(numel);
  DeviceArray<float> e_next(numel), sum(numel);
  DeviceArray<std::byte> records(cuda::quantized_bytes(numel, 2));
  DeviceValue<uint32_t> status;
  cuda::quantize({{x.data(), numel, DType::kFloat32, kEmulated}, e, 2, nullptr},
                 {records, e_next, status.data()}, stream_);
  const DeviceArray<const std::byte*> table = {records.data()};
  cuda::dequantize({table, 2}, 1.0f, {sum.data(), numel, DType::kFloat32, kEmulated},
                   status.data(), stream_);
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

TEST(QuantizeLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> x(300), y(300);
  DeviceArray<std::byte> records(cuda::quantized_bytes(300, 8));
  DeviceValue<uint32_t> word;
  uint32_t* const status = word.data();
  const ConstTensorView g(x.data(), 300, DType::kFloat32, kEmulated);
  const auto fails = [&](const cuda::QuantizeInput& in, const cuda::QuantizeOutput& out) {
    EXPECT_THROW(cuda::quantize(in, out, stream), InvalidArgument);
  };
  fails({.g = g, .e = {}, .bits = 3}, {records, {}, status});
  fails({.g = g, .e = std::span(x).first(5)}, {records, y, status});
  fails({.g = g, .e = x}, {records, {}, status});
  fails({.g = g, .e = x}, {records, x, status});
  fails({.g = g, .e = {}}, {std::span(records).first(10), {}, status});
  fails({.g = g, .e = {}}, {records, {}, nullptr});
  fails({.g = {x.data(), 300, DType::kFloat32, {}}, .e = {}}, {records, {}, status});
  const DeviceArray<const std::byte*> table = {records.data()};
  EXPECT_THROW(cuda::dequantize({table, 8}, 0, {y.data(), 300, DType::kFloat32, kEmulated}, status,
                                stream),
               InvalidArgument);
}

TEST(QuantizeLaunchers, LeaveOutAScaleThatIsNoNumber) {
  TestStream stream;
  DeviceArray<std::byte> records(cuda::quantized_bytes(512, 8), std::byte{1});
  const float scales[2] = {std::numeric_limits<float>::quiet_NaN(), 2.0f};
  std::memcpy(records.data(), scales, sizeof scales);
  const DeviceArray<const std::byte*> table = {records.data()};
  DeviceArray<float> sum(512);
  DeviceValue<uint32_t> status;
  cuda::dequantize({table, 8}, 1.0f, {sum.data(), 512, DType::kFloat32, kEmulated}, status.data(),
                   stream);
  stream.wait();
  EXPECT_EQ(*status, cuda::kStatusMalformed);
  EXPECT_EQ(sum[0], 0.0f);
  EXPECT_EQ(sum[511], 2.0f);
}

}  // namespace
}  // namespace gradwire::testing
