// Sparse bodies against the CPU's top-k compressor: what a selection becomes.

#include "gradwire/kernels/ops/sparse_cuda.h"

#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "tests/simt/sparse_cases.h"

namespace gradwire::testing {
namespace {

class SparseKernels : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SparseKernels, kOrders);

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
}

}  // namespace
}  // namespace gradwire::testing
