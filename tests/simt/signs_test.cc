// Sign kernels against the CPU compressor's payloads and residuals.

#include "gradwire/kernels/ops/signs_cuda.h"

#include "gradwire/kernels/ops/elementwise.h"
#include "tests/simt/records.h"

namespace gradwire::testing {
namespace {

class SignKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SignKernels, kOrders);

std::unique_ptr<Compressor> cpu_compressor(size_t numel, DType dtype, uint32_t block) {
  CompressorSpec spec = parse_spec("1bit");
  spec.codec.block = block;
  return make_compressor(spec, {.numel = numel, .dtype = dtype});
}

void expect_encoded(const Pattern& pattern, DType dtype, uint32_t block, size_t offset,
                    Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " x ", to_string(dtype), ", blocks of ", block,
                      ", offset ", offset));
  const OwnedTensor g = tensor_of(pattern.values, dtype);
  const std::vector<float> e =
      pattern.name == "normal" ? normal(numel, 77, 0.01f) : std::vector<float>(numel);
  const Encoded expected = compress_on_cpu(*cpu_compressor(numel, dtype, block), g, e);
  EncodeMemories memory(g, e, expected.payload.size(), offset);
  cuda::encode_signs({.g = memory.g_view(dtype), .e = memory.e.span(), .block = block},
                     {.records = memory.records(),
                      .e_next = memory.e_next.span(),
                      .call = memory.call.data(),
                      .seal = memory.seal(expected)},
                     stream);
  stream.wait();
  memory.expect(expected);
}

TEST_P(SignKernels, WriteTheCompressorsPayloadAndResidual) {
  for (const size_t numel : kSizes) {
    for (const Pattern& pattern : patterns(numel, 3)) {
      expect_encoded(pattern, DType::kFloat32, 256, 0, stream_);
    }
  }
}

TEST_P(SignKernels, TakeEveryBlockTypeAndAlignment) {
  for (const size_t numel : {size_t{1}, size_t{1001}, size_t{4096}, size_t{9001}}) {
    for (const Pattern& pattern : patterns(numel, 6)) {
      for (const uint32_t block : {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
        const DType dtype = block % 3 == 1 ? DType::kFloat32
                            : block > 100  ? DType::kBFloat16
                                           : DType::kFloat16;
        expect_encoded(pattern, dtype, block, block / 8 % 7, stream_);
      }
    }
  }
}

TEST_P(SignKernels, TakeSumsThatOverflowBesideOnesThatDoNot) {
  // In each block alone: too large a sum of finite values, an infinity, or neither.
  std::vector<float> x(4999);
  for (const uint32_t block : {8u, 16u, 64u, 256u, 1024u}) {
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t kind = i / block % 3;
      const float sign = i % 2 == 0 ? 1.0f : -1.0f;
      x[i] = sign * (kind == 0 ? 3e38f : kind == 1 ? static_cast<float>(i % 5) * 3.1e-39f : 1.0f);
    }
    expect_encoded({"overflow", x}, DType::kFloat32, block, 0, stream_);
    x[2 * block + 3] = -std::numeric_limits<float>::infinity();
    expect_encoded({"overflow and infinity", x}, DType::kFloat32, block, 0, stream_);
  }
}

TEST_P(SignKernels, EncodeAScaledSumAndPutBackWhatIsLeftOut) {
  const size_t numel = 8201;
  const float scale = 1.0f / 3.0f;
  for (const uint32_t block : {32u, 256u, 2048u}) {
    const OwnedTensor sum = tensor_of(normal(numel, 3), DType::kFloat32);
    const std::vector<float> x = sum.floats();
    std::vector<float> scaled(numel);
    cpu::multiply(x, scale, scaled);
    const auto compressor = cpu_compressor(numel, DType::kFloat32, block);
    Encoded expected = compress_on_cpu(*compressor, tensor_of(scaled, DType::kFloat32),
                                       std::vector<float>(numel));
    std::vector<float> decoded(numel);
    for (size_t i = 0; i < numel; ++i) {
      const size_t record = sizeof(PayloadHeader) +
                            i / kChunk * cuda::quantized_record_bytes(kChunk, 1, block);
      const size_t in_chunk = i % kChunk;
      const size_t count = std::min(kChunk, numel - i / kChunk * kChunk);
      float of_block;
      std::memcpy(&of_block, expected.payload.data() + record + in_chunk / block * 4, 4);
      const std::byte bits =
          expected.payload[record + (count + block - 1) / block * 4 + in_chunk / 8];
      decoded[i] = (static_cast<unsigned>(bits) >> (in_chunk % 8) & 1u) != 0 ? -of_block : of_block;
    }
    std::vector<float> residual = normal(numel, 4);
    EncodeMemories memory(sum, residual, expected.payload.size(), 5);
    cpu::put_back(x, decoded, scale, residual);
    cuda::encode_signs({.g = memory.g_view(sum.dtype), .block = block, .scale = scale},
                       {.records = memory.records(),
                        .put_back = memory.e.span(),
                        .call = memory.call.data(),
                        .seal = memory.seal(expected)},
                       stream_);
    stream_.wait();
    ASSERT_EQ(bits_of(memory.e.values()), bits_of(residual));
    ASSERT_EQ(memory.payload.values(), expected.payload);
  }
}

TEST_P(SignKernels, AddPartsInRankOrder) {
  for (const size_t numel : {size_t{0}, size_t{33}, size_t{4095}, size_t{9001}}) {
    for (const uint32_t block : {8u, 256u, 4096u}) {
      for (const size_t parts : {size_t{0}, size_t{1}, numel == 33 ? size_t{131} : size_t{5}}) {
        SCOPED_TRACE(concat(numel, " elements in blocks of ", block, ", ", parts, " parts"));
        const auto cpu = cpu_compressor(numel, DType::kFloat32, block);
        expect_sum(*cpu, parts, [&](const cuda::QuantizedParts& p, TensorView sum) {
          cuda::sum_signs({.parts = p.parts, .block = block, .faults = p.faults}, 0.3f, sum,
                          stream_);
        }, stream_);
      }
    }
  }
}

TEST(SignLaunchers, LeaveOutAScaleThatIsNoNumber) {
  TestStream stream;
  DeviceArray<std::byte> record(cuda::quantized_bytes(512, 1, 256));
  const float scales[2] = {-2.0f, 3.0f};
  std::memcpy(record.host(), scales, sizeof scales);
  record[8 + 63] = std::byte{0x80};
  const DeviceArray<cuda::DevicePart> table = {{record.data(), record.size(), 5, 1, 512, 0}};
  DeviceArray<float> sum(512);
  DeviceValue<cuda::StepWords> step;
  cuda::sum_signs({.parts = table, .first = 5 * kChunk, .faults = {step.data(), nullptr}}, 1.0f,
                  {sum.data(), 512, DType::kFloat32, kEmulated}, stream);
  stream.wait();
  EXPECT_EQ((*step).status, cuda::kStatusMalformed);
  EXPECT_EQ((*step).fault, static_cast<uint32_t>(cuda::FaultReason::kScale));
  EXPECT_EQ(sum[255], 0.0f);
  EXPECT_EQ(sum[256], 3.0f);
  EXPECT_EQ(sum[511], -3.0f);
}

TEST(SignLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> x(300), y(300);
  DeviceArray<std::byte> records(cuda::quantized_bytes(300, 1, 256));
  DeviceValue<cuda::CallWords> words;
  const ConstTensorView g(x.data(), 300, DType::kFloat32, kEmulated);
  const cuda::SignsOutput good{.records = records, .call = words.data()};
  const auto fails = [&](const char* what, const cuda::SignsInput& in,
                         const cuda::SignsOutput& out) {
    expect_refused(what, [&] { cuda::encode_signs(in, out, stream); });
  };
  fails("block is 100", {.g = g, .block = 100}, good);
  fails("records has 45 bytes, must have at least 46", {.g = g},
        {.records = std::span(records).first(45), .call = words.data()});
  fails("e_next has 300 elements, must have none where put_back has some", {.g = g},
        {.records = records, .e_next = {y}, .put_back = {y}, .call = words.data()});
  fails("g is a null pointer", {.g = {nullptr, 300, DType::kFloat32, kEmulated}}, good);
  fails("call is null", {.g = g}, {.records = records});
  fails("scale is inf", {.g = g, .scale = std::numeric_limits<float>::infinity()}, good);
  expect_refused("faults.step is null", [&] {
    cuda::sum_signs({}, 1.0f, {y.data(), 300, DType::kFloat32, kEmulated}, stream);
  });
}

}  // namespace
}  // namespace gradwire::testing
