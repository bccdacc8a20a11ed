// Sums and slices of sparse bodies against the CPU's top-k compressor.

#include "gradwire/kernels/ops/sparse_add_cuda.h"

#include "gradwire/kernels/ops/device_status.h"
#include "tests/simt/sparse_cases.h"

namespace gradwire::testing {
namespace {

class SparseSums : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SparseSums, kOrders);

/// Payloads in device memory, opened as if their headers had passed.
struct Parts {
  void add(const std::vector<std::byte>& payload) {
    payloads.emplace_back(payload, payloads.size());
    bytes.push_back(payload.size());
  }
  /// @returns the step's words.
  cuda::StepWords sum_into(TensorView sum, const cuda::SparseFormat& format, float scale,
                           Stream& stream) {
    DeviceArray<cuda::DevicePart> table(payloads.size());
    for (size_t i = 0; i < payloads.size(); ++i) {
      table[i] = {payloads[i].bytes() + sizeof(PayloadHeader), bytes[i] - sizeof(PayloadHeader), 0,
                  static_cast<uint32_t>((sum.numel + kChunk - 1) / kChunk), sum.numel, 0};
    }
    DeviceArray<std::byte> room(cuda::sparse_workspace_bytes(sum.numel, table.size()));
    DeviceValue<cuda::StepWords> step;
    cuda::add_sparse({table, sum.numel, room, step.data()}, format, {sum, 0, scale}, stream);
    stream.wait();
    return *step;
  }
  std::vector<Guarded<std::byte>> payloads;
  std::vector<size_t> bytes;
};

TEST_P(SparseSums, AddPartsInRankOrder) {
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
          const cuda::StepWords step = parts.sum_into({sum.bytes(), numel, dtype, kEmulated},
                                                      cpu.format(codec), 0.2f, stream_);
          ASSERT_EQ(sum.values(), expected.bytes) << numel << codec.text << density;
          EXPECT_EQ(step.status, 0u);
          EXPECT_TRUE(sum.guards_hold());
        }
      }
    }
  }
}

TEST_P(SparseSums, LeaveOutWhatIsMalformed) {
  constexpr size_t kNumel = 9001;
  for (const Codec& codec : {kCodecs[0], kCodecs[3]}) {
    for (const char* density : {"2%", "30%"}) {
      OnCpu cpu(density, codec, kNumel);
      const std::vector<std::byte> good = cpu.compress(normal(kNumel, 1)).payload;
      DeviceArray<float> alone(kNumel), sum(kNumel);
      const TensorView view(sum.data(), kNumel, DType::kFloat32, kEmulated);
      Parts one;
      one.add(good);
      ASSERT_EQ(one.sum_into({alone.data(), kNumel, DType::kFloat32, kEmulated}, cpu.format(codec),
                             1.0f, stream_)
                    .status,
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
        const cuda::StepWords step = two.sum_into(view, cpu.format(codec), 1.0f, stream_);
        EXPECT_EQ(step.status, cuda::kStatusMalformed);
        EXPECT_EQ(step.fault, 1u << 8 | static_cast<uint32_t>(cuda::FaultReason::kBody));
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

TEST(SparseSumLaunchers, NameWhatIsWrong) {
  TestStream stream;
  DeviceArray<float> x(5000);
  DeviceArray<std::byte> room(cuda::sparse_workspace_bytes(5000, 1));
  const DeviceArray<cuda::DevicePart> table(1);
  DeviceValue<cuda::StepWords> step;
  const TensorView sum(x.data(), 5000, DType::kFloat32, kEmulated);
  const auto add = [&](const cuda::SparseParts& parts, const cuda::SparseSum& out) {
    EXPECT_THROW(cuda::add_sparse(parts, {}, out, stream), InvalidArgument);
  };
  add({table, 5000, std::span(room).first(8), step.data()}, {sum, 0, 1.0f});
  add({table, 5000, room, nullptr}, {sum, 0, 1.0f});
  add({table, 5000, room, step.data()}, {sum, 0, -1.0f});
  add({table, 5000, room, step.data()}, {sum, 7, 1.0f});
  add({table, 5000, room, step.data()}, {{x.data(), 5000, DType::kFloat32, {}}, 0, 1.0f});
}

}  // namespace
}  // namespace gradwire::testing
