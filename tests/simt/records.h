#pragma once
// Payloads of fixed records on the CPU and in device memory: what the tests of quantize and signs
// compare.

#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "tests/simt/refused.h"
#include "tests/simt/support.h"

namespace gradwire::testing {

/// A payload and the residual that goes with it; no residual: not wanted.
struct Encoded {
  std::vector<std::byte> payload;
  std::vector<float> e_next;
};

inline Encoded compress_on_cpu(Compressor& compressor, const OwnedTensor& g,
                               const std::vector<float>& e) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  Encoded out{std::vector<std::byte>(compressor.capacity_bytes()), std::vector<float>(e.size())};
  compressor.compress({g.bytes.data(), g.numel(), g.dtype}, e, out.e_next, out.payload, context);
  stream->wait();
  return out;
}

/// What an encoding launcher reads and writes, `offset` bytes after 16-byte boundaries where their
/// types allow it.
struct EncodeMemories {
  EncodeMemories(const OwnedTensor& gradient, const std::vector<float>& residual, size_t bytes,
                 size_t offset)
      : g(gradient.bytes, offset / 2 * 2 % 16 / size_of(gradient.dtype) * size_of(gradient.dtype)),
        e(residual, offset / 4 * 4),
        e_next(residual.size(), offset / 4 * 4),
        payload(bytes, offset),
        numel(gradient.numel()) {}

  ConstTensorView g_view(DType dtype) { return {g.bytes(), numel, dtype, kEmulated}; }
  std::span<std::byte> records() { return payload.span().subspan(sizeof(PayloadHeader)); }
  std::vector<std::byte> payload_without_header() const {
    const std::vector<std::byte> all = payload.values();
    return {all.begin() + sizeof(PayloadHeader), all.end()};
  }
  /// Writes the expected payload's header; but the kernel has to find the flags.
  cuda::Seal seal(const Encoded& expected) {
    PayloadHeader header = read_header(expected.payload);
    header.flags = 0;
    return {header, payload.bytes(), call.data(), status.data()};
  }
  void expect(const Encoded& expected) {
    ASSERT_EQ(payload.values(), expected.payload);
    ASSERT_EQ(bits_of(e_next.values()), bits_of(expected.e_next));
    const bool finite = read_header(expected.payload).flags == 0;
    EXPECT_EQ(*status, finite ? 8u : 8u | cuda::kStatusNonFinite);
    EXPECT_EQ((*call).arrived, 0u);
    EXPECT_EQ((*call).flags, 0u);
    EXPECT_TRUE(g.guards_hold() && e.guards_hold() && e_next.guards_hold() && payload.guards_hold());
  }

  Guarded<std::byte> g;
  Guarded<float> e;
  Guarded<float> e_next;
  Guarded<std::byte> payload;
  DeviceValue<cuda::CallWords> call;
  DeviceValue<uint32_t> status{8};
  size_t numel;
};

/// Payloads of `parts` ranks, decompressed by the CPU with scale 0.3 and added up by `add`.
template <class Add>
void expect_sum(Compressor& cpu, size_t parts, const Add& add, Stream& stream) {
  const size_t numel = cpu.shape().numel;
  const DType dtype = cpu.shape().dtype;
  std::vector<Guarded<std::byte>> bodies;
  std::vector<std::vector<std::byte>> payloads;
  DeviceArray<cuda::DevicePart> table;
  for (size_t part = 0; part < parts; ++part) {
    const std::vector<float> e(cpu.spec().feedback.on ? numel : 0);
    payloads.push_back(
        compress_on_cpu(cpu, tensor_of(heavy_tailed(numel, part), dtype), e).payload);
    bodies.emplace_back(std::vector<std::byte>(payloads.back().begin() + 32, payloads.back().end()),
                        part);
  }
  for (auto& body : bodies) {
    table.push_back({body.bytes(), body.span().size(), 0,
                     static_cast<uint32_t>((numel + kChunk - 1) / kChunk), numel, 0});
  }
  const auto cpu_stream = make_inline_stream();
  Workspace workspace;
  Context context{*cpu_stream, workspace};
  OwnedTensor expected = zeros(numel, dtype);
  const std::vector<ConstPayload> views(payloads.begin(), payloads.end());
  cpu.decompress(views, 0.3f, expected.view(), context);
  cpu_stream->wait();
  Guarded<std::byte> sum(numel * size_of(dtype), parts % 4 * 4);
  DeviceValue<cuda::StepWords> step;
  add({.parts = table, .faults = {step.data(), nullptr}},
      TensorView{sum.bytes(), numel, dtype, kEmulated});
  stream.wait();
  ASSERT_EQ(sum.values(), expected.bytes);
  EXPECT_TRUE(sum.guards_hold());
  EXPECT_EQ((*step).status, 0u);
}

}  // namespace gradwire::testing
