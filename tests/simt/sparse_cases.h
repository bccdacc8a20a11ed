#pragma once
// Top-k on the CPU with every value codec: what the tests of sparse bodies compare with.

#include <memory>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/sparse_format.h"
#include "tests/simt/support.h"

namespace gradwire::testing {

struct Codec {
  const char* text;
  cuda::SparseValues values;
  bool stochastic = false;
  int levels = 0;
};
inline const std::vector<Codec> kCodecs = {{"", cuda::SparseValues::kFloat32},
                                    {",fp16", cuda::SparseValues::kFloat16},
                                    {",bf16", cuda::SparseValues::kBFloat16},
                                    {",int8", cuda::SparseValues::kInt8},
                                    {",int4", cuda::SparseValues::kInt4},
                                    {",e4m3", cuda::SparseValues::kE4M3},
                                    {",e5m2", cuda::SparseValues::kE5M2},
                                    {",2bit", cuda::SparseValues::kInt2},
                                    {",1bit", cuda::SparseValues::kSign},
                                    {",ternary", cuda::SparseValues::kInt2, true},
                                    {",natural", cuda::SparseValues::kPowerOfTwo, true},
                                    {",qsgd:7", cuda::SparseValues::kInt4, true, 7}};

/// The random numbers that OnCpu draws, in device memory.
struct ChanceOnDevice {
  explicit ChanceOnDevice(size_t numel) {
    segments[0] = {numel, 0, 0};
    source = {.segments = segments, .step = step.data()};
  }
  DeviceArray<cuda::RandomSegment> segments = DeviceArray<cuda::RandomSegment>(1);
  DeviceValue<uint32_t> step;
  cuda::RoundingSource source;
};

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
  size_t kept() const {
    return kept_elements(compressor->spec().choice.density, compressor->shape().numel);
  }
  cuda::SparseFormat format(const Codec& codec) const {
    return {.values = codec.values,
            .bitmap = kept() > compressor->shape().numel / 12,
            .levels = codec.levels};
  }

  std::unique_ptr<Compressor> compressor;
  std::unique_ptr<Stream> stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
};

}  // namespace gradwire::testing
