// Sparse bodies against the CPU's top-k compressor: what a selection becomes.

#include "gradwire/kernels/ops/sparse_cuda.h"

#include "gradwire/kernels/ops/select_cuda.h"
#include "tests/simt/chosen.h"
#include "tests/simt/refused.h"
#include "tests/simt/sparse_cases.h"

namespace gradwire::testing {
namespace {

class SparseKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SparseKernels, kOrders);

/// The k largest of g, as the selection leaves them in device memory.
struct Selected {
  Selected(const std::vector<float>& g, size_t k)
      : x(g.begin(), g.end()),
        mask(cuda::select_chunks(g.size()) * cuda::kMaskBytes),
        counts(cuda::select_chunks(g.size())),
        before(counts.size()),
        finite(std::ranges::all_of(g, [](float v) { return std::isfinite(v); })) {
    const std::vector<bool> chosen =
        finite ? chosen_by_sorting(g, k) : std::vector<bool>(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      x[i] += 0.0f;
      if (chosen[i]) {
        mask[i / 8] |= static_cast<std::byte>(1u << (i % 8));
        ++counts[i / kChunk];
      }
    }
    for (size_t i = 1; i < counts.size(); ++i) {
      const uint32_t count = counts[i - 1];
      before[i] = {before[i - 1].entries + count, before[i - 1].odd_counts + count % 2,
                   before[i - 1].two_bits + count / 4 + (count % 4 != 0 ? 1 : 0),
                   before[i - 1].one_bit + count / 8 + (count % 8 != 0 ? 1 : 0)};
    }
  }
  DeviceArray<float> x;
  DeviceArray<std::byte> mask;
  DeviceArray<uint32_t> counts;
  DeviceArray<cuda::EntriesBefore> before;
  bool finite;
};

/// What encode_sparse() writes and what it needs.
struct SparseMemories {
  SparseMemories(const Selected& selected, size_t payload_bytes, size_t offset)
      : x({selected.x.begin(), selected.x.end()}),
        payload(payload_bytes, offset) {}

  cuda::SparseOutput output(const PayloadHeader& header) {
    return {.body = payload.span().subspan(sizeof header),
            .body_bytes = bytes.data(),
            .call = call.data(),
            .seal = {header, payload.bytes(), call.data(), status.data()}};
  }
  bool guards_hold() const {
    return x.guards_hold() && payload.guards_hold();
  }

  Guarded<float> x;
  Guarded<std::byte> payload;
  DeviceValue<uint64_t> bytes;
  DeviceValue<cuda::CallWords> call;
  DeviceValue<uint32_t> status;
};

void expect_encoded(const Pattern& pattern, const Selected& selected, const char* density,
                    const Codec& codec, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " elements, topk:", density, codec.text));
  OnCpu cpu(density, codec, numel);
  const Compressed expected = cpu.compress(pattern.values);
  SparseMemories memory(selected, expected.payload.size(), numel % 4);
  memory.call = {.flags = selected.finite ? 0u : cuda::kStatusNonFinite};
  PayloadHeader header = read_header(expected.payload);
  header.bytes = header.flags = 0;  // the kernel's to find
  const ChanceOnDevice chance(numel);
  cuda::encode_sparse({.x = {memory.x.span()},
                       .mask = selected.mask,
                       .counts = selected.counts,
                       .before = selected.before,
                       .stochastic = codec.stochastic ? &chance.source : nullptr},
                      cpu.format(codec), memory.output(header), stream);
  stream.wait();
  ASSERT_EQ(memory.payload.values(), expected.payload);
  ASSERT_EQ(bits_of(memory.x.values()), bits_of(expected.e_next));
  EXPECT_EQ(*memory.bytes, expected.payload.size() - sizeof header);
  EXPECT_EQ(*memory.status, selected.finite ? 0u : cuda::kStatusNonFinite);
  EXPECT_EQ((*memory.call).flags, 0u);
  EXPECT_TRUE(memory.guards_hold());
}

TEST_P(SparseKernels, WriteTheCompressorsPayloadAndResidual) {
  for (const size_t numel : {size_t{0}, size_t{1}, size_t{33}, size_t{4096}, size_t{8999}}) {
    for (const Pattern& pattern : patterns(numel, 41)) {
      for (const char* density : {"1%", "25%"}) {
        const Selected selected(pattern.values, OnCpu(density, kCodecs[0], numel).kept());
        for (const Codec& codec : kCodecs) {
          expect_encoded(pattern, selected, density, codec, stream_);
        }
      }
    }
  }
}

TEST_P(SparseKernels, WriteScaledValuesAndLeaveTheRestUnscaled) {
  // Of powers of two, so that scaling commutes with rounding: the payload is that of scale * x.
  const size_t numel = 8999;
  const float scale = 0.25f;
  const std::vector<float> x = normal(numel, 5);
  std::vector<float> scaled = x;
  for (float& value : scaled) {
    value *= scale;
  }
  for (const Codec& codec : kCodecs) {
    OnCpu cpu("2%", codec, numel);
    const Compressed expected = cpu.compress(scaled);
    const Selected selected(x, cpu.kept());
    SparseMemories memory(selected, expected.payload.size(), 1);
    DeviceValue<uint32_t> parity(1);
    const std::span<float> nowhere(reinterpret_cast<float*>(16), numel);
    const ChanceOnDevice chance(numel);
    cuda::encode_sparse({.x = {nowhere, memory.x.span(), parity.data()},
                         .mask = selected.mask,
                         .counts = selected.counts,
                         .before = selected.before,
                         .scale = scale,
                         .stochastic = codec.stochastic ? &chance.source : nullptr},
                        cpu.format(codec), memory.output(read_header(expected.payload)), stream_);
    stream_.wait();
    ASSERT_EQ(memory.payload.values(), expected.payload) << codec.text;
    const std::vector<float> left = memory.x.values();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(left[i], expected.e_next[i] / scale) << i << codec.text;
    }
  }
}

TEST(SparseLaunchers, RefuseABodyThatIsTooShortOnTheDevice) {
  TestStream stream;
  const std::vector<float> g = normal(5000, 3);
  const Selected selected(g, 50);
  SparseMemories memory(selected, 132, 0);
  memory.payload.fill(std::byte{7});
  cuda::encode_sparse({{memory.x.span()}, selected.mask, selected.counts, selected.before}, {}, memory.output({}),
                      stream);
  stream.wait();
  EXPECT_EQ(*memory.status, cuda::kStatusMalformed);
  EXPECT_GT(*memory.bytes, 100u);
  std::vector<std::byte> expected(132, std::byte{7});
  std::fill_n(expected.begin(), sizeof(PayloadHeader), std::byte{0});
  EXPECT_EQ(memory.payload.values(), expected);
  EXPECT_EQ(bits_of(memory.x.values()), bits_of(g));
}

TEST(SparseLaunchers, NameWhatIsWrong) {
  TestStream stream;
  const auto cpu_stream = make_inline_stream();
  const Selected s(normal(5000, 3), 50);
  SparseMemories memory(s, 1000, 0);
  const cuda::SparseInput in{{memory.x.span()}, s.mask, s.counts, s.before};
  const cuda::SparseOutput out = memory.output({});
  const auto fails = [&](const char* what, const auto& change) {
    cuda::SparseInput bad_in = in;
    cuda::SparseOutput bad_out = out;
    cuda::SparseFormat format;
    change(bad_in, bad_out, format);
    expect_refused(what, [&] { cuda::encode_sparse(bad_in, format, bad_out, stream); });
  };
  fails("mask has 4 bytes, must have 1024", [](auto& i, auto&, auto&) { i.mask = i.mask.first(4); });
  fails("counts has 1 elements, must have 2",
        [](auto& i, auto&, auto&) { i.counts = i.counts.first(1); });
  fails("x is a null pointer", [](auto& i, auto&, auto&) {
    i.x = std::span<float>(static_cast<float*>(nullptr), 5000);
  });
  fails("scale is -1", [](auto& i, auto&, auto&) { i.scale = -1; });
  fails("body is a null pointer", [](auto&, auto& o, auto&) {
    o.body = std::span<std::byte>(static_cast<std::byte*>(nullptr), 5);
  });
  fails("call is null", [](auto&, auto& o, auto&) { o.call = nullptr; });
  fails("the seal's status is null", [](auto&, auto& o, auto&) { o.seal = {}; });
  fails("the seal's call", [](auto&, auto& o, auto&) { o.seal.call = nullptr; });
  fails("body_bytes's address modulo 8 is 4", [](auto&, auto& o, auto&) {
    o.body_bytes = reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(o.body_bytes) + 4);
  });
  fails("before has 1 elements, must have 2",
        [](auto& i, auto&, auto&) { i.before = i.before.first(1); });
  fails("values is 10, must be 0 to 9",
        [](auto&, auto&, auto& f) { f.values = static_cast<cuda::SparseValues>(10); });
  const ChanceOnDevice chance(5000);
  const cuda::RoundingSource nothing{};
  fails("stochastic is given, must be null", [&](auto& i, auto&, auto& f) {
    i.stochastic = &chance.source;
    f.values = cuda::SparseValues::kSign;
  });
  fails("stochastic is null, must be given",
        [](auto&, auto&, auto& f) { f.values = cuda::SparseValues::kPowerOfTwo; });
  fails("levels is 3, must be 0", [](auto&, auto&, auto& f) {
    f.values = cuda::SparseValues::kInt4;
    f.levels = 3;
  });
  fails("levels is 8, must be a code", [&](auto& i, auto&, auto& f) {
    i.stochastic = &chance.source;
    f.values = cuda::SparseValues::kInt4;
    f.levels = 8;
  });
  fails("the rounding source has no segments", [&](auto& i, auto&, auto& f) {
    i.stochastic = &nothing;
    f.values = cuda::SparseValues::kInt4;
  });
  fails("first is 7", [](auto& i, auto&, auto&) { i.first = 7; });
  expect_refused("CPU stream", [&] { cuda::encode_sparse(in, {}, out, *cpu_stream); });
}

}  // namespace
}  // namespace gradwire::testing
