// Sparse bodies against the CPU's top-k compressor: what a selection becomes, and its sum.

#include "gradwire/kernels/ops/sparse_cuda.h"

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

class SparseKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SparseKernels, kOrders);

struct Codec {
  const char* text;
  cuda::SparseValues values;
};
const std::vector<Codec> kCodecs = {{"", cuda::SparseValues::kFloat32},
                                    {",fp16", cuda::SparseValues::kFloat16},
                                    {",bf16", cuda::SparseValues::kBFloat16},
                                    {",int8", cuda::SparseValues::kInt8},
                                    {",int4", cuda::SparseValues::kInt4}};

struct Compressed {
  std::vector<std::byte> payload;  // its true length
  std::vector<float> e_next;
};

struct OnCpu {
  OnCpu(const char* density, const Codec& codec, size_t numel, DType dtype = DType::kFloat32)
      : compressor(make_compressor(parse_spec(concat("topk:", density, codec.text)),
                                   {.numel = numel, .dtype = dtype})) {}

  Compressed compress(const std::vector<float>& g) {
    const std::vector<float> e(g.size());
    OwnedTensor tensor = tensor_of(g, compressor->shape().dtype);
    Compressed out{std::vector<std::byte>(compressor->capacity_bytes()),
                   std::vector<float>(g.size())};
    compressor->compress(tensor.view(), e, out.e_next, out.payload, context);
    stream->wait();
    out.payload.resize(payload_bytes(out.payload));
    return out;
  }
  size_t kept() const { return kept_elements(compressor->spec().density, compressor->shape().numel); }
  cuda::SparseFormat format(const Codec& codec) const {
    return {codec.values, kept() > compressor->shape().numel / 12};
  }

  std::unique_ptr<Compressor> compressor;
  std::unique_ptr<Stream> stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
};

struct Selected {
  explicit Selected(const std::vector<float>& g, size_t k, Stream& stream)
      : x(g.size()),
        mask(cuda::select_chunks(g.size()) * cuda::kMaskBytes),
        counts(cuda::select_chunks(g.size())) {
    const DeviceArray<float> gradient = on_device(g), e(g.size());
    DeviceArray<std::byte> room(cuda::select_workspace_bytes(g.size()));
    DeviceValue<uint32_t> status;
    cuda::select_largest({{gradient.data(), g.size(), DType::kFloat32, kEmulated}, e, k},
                         {x, mask, counts, status.data(), room}, stream);
    stream.wait();
  }
  DeviceArray<float> x;
  DeviceArray<std::byte> mask;
  DeviceArray<uint32_t> counts;
};

void expect_encoded(const Pattern& pattern, const Selected& selected, const char* density,
                    const Codec& codec, Stream& stream) {
  const size_t numel = pattern.values.size();
  SCOPED_TRACE(concat(pattern.name, ", ", numel, " elements, topk:", density, codec.text));
  OnCpu cpu(density, codec, numel);
  const Compressed expected = cpu.compress(pattern.values);
  const size_t length = expected.payload.size() - sizeof(PayloadHeader);
  Guarded<float> x({selected.x.begin(), selected.x.end()});
  Guarded<std::byte> body(length, numel % 4);
  Guarded<std::byte> workspace(cuda::sparse_workspace_bytes(numel, 1));
  DeviceValue<uint64_t> bytes;
  DeviceValue<uint32_t> status;
  cuda::encode_sparse({x.span(), selected.mask, selected.counts}, cpu.format(codec),
                      {body.span(), bytes.data(), status.data(), workspace.span()}, stream);
  stream.wait();
  ASSERT_EQ(*bytes, length);
  EXPECT_EQ(*status, 0u);
  ASSERT_EQ(body.values(),
            std::vector<std::byte>(expected.payload.begin() + sizeof(PayloadHeader),
                                   expected.payload.end()));
  ASSERT_EQ(bits_of(x.values()), bits_of(expected.e_next));
  EXPECT_TRUE(body.guards_hold() && x.guards_hold() && workspace.guards_hold());
}

TEST_P(SparseKernels, WriteTheCompressorsBodyAndResidual) {
  for (const size_t numel : {size_t{0}, size_t{1}, size_t{33}, size_t{4096}, size_t{8999}}) {
    for (const Pattern& pattern : patterns(numel, 41)) {
      for (const char* density : {"1%", "25%"}) {
        const Selected selected(pattern.values, OnCpu(density, kCodecs[0], numel).kept(), stream_);
        for (const Codec& codec : kCodecs) {
          expect_encoded(pattern, selected, density, codec, stream_);
        }
      }
    }
  }
}

/// Bodies of several ranks in device memory.
struct Parts {
  void add(const std::vector<std::byte>& payload) {
    bodies.emplace_back(std::vector<std::byte>(payload.begin() + sizeof(PayloadHeader),
                                               payload.end()),
                        bodies.size());
    bytes.push_back(payload.size() - sizeof(PayloadHeader));
  }
  uint32_t sum_into(TensorView sum, const cuda::SparseFormat& format, float scale, Stream& stream) {
    DeviceArray<const std::byte*> table;
    for (auto& body : bodies) {
      table.push_back(body.bytes());
    }
    DeviceArray<std::byte> room(cuda::sparse_workspace_bytes(sum.numel, bodies.size()));
    DeviceValue<uint32_t> status;
    cuda::add_sparse({table, bytes, room}, format, {sum, scale, status.data()}, stream);
    stream.wait();
    return *status;
  }
  std::vector<Guarded<std::byte>> bodies;
  DeviceArray<uint64_t> bytes;
};

TEST_P(SparseKernels, AddPartsInRankOrder) {
  for (const size_t numel : {size_t{0}, size_t{1}, size_t{4095}, size_t{9001}}) {
    for (const Codec& codec : kCodecs) {
      for (const char* density : {"2%", "30%"}) {
        for (const auto& [dtype, ranks] :
             {std::pair(DType::kFloat32, size_t{5}), std::pair(DType::kBFloat16, size_t{3}),
              std::pair(DType::kFloat32, size_t{0})}) {
          OnCpu cpu(density, codec, numel, dtype);
          std::vector<std::vector<std::byte>> payloads;
          Parts parts;
          for (size_t rank = 0; rank < ranks; ++rank) {
            payloads.push_back(cpu.compress(heavy_tailed(numel, rank)).payload);
            parts.add(payloads.back());
          }
          const std::vector<ConstPayload> views(payloads.begin(), payloads.end());
          OwnedTensor expected = zeros(numel, dtype);
          cpu.compressor->decompress(views, 0.2f, expected.view(), cpu.context);
          cpu.stream->wait();
          Guarded<std::byte> sum(numel * size_of(dtype), 4);
          const uint32_t status = parts.sum_into({sum.bytes(), numel, dtype, kEmulated},
                                                 cpu.format(codec), 0.2f, stream_);
          ASSERT_EQ(sum.values(), expected.bytes) << numel << codec.text << density;
          EXPECT_EQ(status, 0u);
          EXPECT_TRUE(sum.guards_hold());
        }
      }
    }
  }
}

TEST_P(SparseKernels, LeaveOutWhatIsMalformed) {
  constexpr size_t kNumel = 9001;
  for (const Codec& codec : {kCodecs[0], kCodecs[3]}) {
    for (const char* density : {"2%", "30%"}) {
      OnCpu cpu(density, codec, kNumel);
      const std::vector<std::byte> good = cpu.compress(normal(kNumel, 1)).payload;
      DeviceArray<float> alone(kNumel), sum(kNumel);
      Parts one;
      one.add(good);
      ASSERT_EQ(one.sum_into({alone.data(), kNumel, DType::kFloat32, kEmulated}, cpu.format(codec),
                             1.0f, stream_),
                0u);
      // The count of the first chunk, and the length: nothing of the part is used.
      for (const int fault : {0, 1, 2}) {
        std::vector<std::byte> bad = good;
        if (fault == 0) {
          bad[33] = std::byte{0xFF};
        } else {
          bad.resize(fault == 1 ? bad.size() - 1 : 35);
        }
        Parts two;
        two.add(good);
        two.add(bad);
        EXPECT_EQ(two.sum_into({sum.data(), kNumel, DType::kFloat32, kEmulated}, cpu.format(codec),
                               1.0f, stream_),
                  cuda::kStatusMalformed);
        EXPECT_EQ(sum, alone) << fault;
      }
      // Any byte of the indices: the sum may differ, no memory outside is touched.
      for (size_t at = 32; at < good.size(); at += good.size() / 20) {
        std::vector<std::byte> bad = good;
        bad[at] ^= std::byte{0xFF};
        Parts parts;
        parts.add(bad);
        Guarded<float> guarded(kNumel);
        parts.sum_into({guarded.bytes(), kNumel, DType::kFloat32, kEmulated}, cpu.format(codec),
                       1.0f, stream_);
        EXPECT_TRUE(guarded.guards_hold());
      }
    }
  }
}

TEST(SparseLaunchers, RefuseABodyThatIsTooShortOnTheDevice) {
  TestStream stream;
  const std::vector<float> g = normal(5000, 3);
  Selected selected(g, 50, stream);
  DeviceArray<std::byte> body(100, std::byte{7}), room(cuda::sparse_workspace_bytes(5000, 1));
  DeviceValue<uint64_t> bytes;
  DeviceValue<uint32_t> status;
  cuda::encode_sparse({selected.x, selected.mask, selected.counts}, {},
                      {body, bytes.data(), status.data(), room}, stream);
  stream.wait();
  EXPECT_EQ(*status, cuda::kStatusMalformed);
  EXPECT_GT(*bytes, 100u);
  EXPECT_EQ(body, DeviceArray<std::byte>(100, std::byte{7}));
  EXPECT_EQ(bits_of(selected.x), bits_of(g));
}

TEST(SparseLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> x(5000);
  DeviceArray<std::byte> mask(2 * cuda::kMaskBytes), body(99);
  DeviceArray<std::byte> room(cuda::sparse_workspace_bytes(5000, 1));
  DeviceArray<uint32_t> counts(2);
  DeviceValue<uint64_t> length;
  DeviceValue<uint32_t> word;
  uint64_t* const bytes = length.data();
  uint32_t* const status = word.data();
  const auto encode = [&](const cuda::SparseInput& in, const cuda::SparseOutput& out) {
    EXPECT_THROW(cuda::encode_sparse(in, {}, out, stream), InvalidArgument);
  };
  encode({x, std::span(mask).first(4), counts}, {body, bytes, status, room});
  encode({x, mask, std::span(counts).first(1)}, {body, bytes, status, room});
  encode({x, mask, counts}, {body, nullptr, status, room});
  encode({x, mask, counts}, {body, bytes, nullptr, room});
  encode({x, mask, counts}, {body, bytes, status, std::span(room).first(8)});
  const TensorView sum(x.data(), 5000, DType::kFloat32, kEmulated);
  const DeviceArray<const std::byte*> bodies = {body.data()};
  const DeviceArray<uint64_t> lengths = {99};
  const auto add = [&](const cuda::SparseParts& parts, const cuda::SparseSum& out) {
    EXPECT_THROW(cuda::add_sparse(parts, {}, out, stream), InvalidArgument);
  };
  add({bodies, {}, room}, {sum, 1.0f, status});
  add({bodies, lengths, std::span(room).first(8)}, {sum, 1.0f, status});
  add({bodies, lengths, room}, {sum, -1.0f, status});
  add({bodies, lengths, room}, {sum, 1.0f, nullptr});
  add({bodies, lengths, room}, {{x.data(), 5000, DType::kFloat32, {}}, 1.0f, status});
}

}  // namespace
}  // namespace gradwire::testing
