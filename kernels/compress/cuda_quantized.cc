// Block quantizers and signs on a GPU. quantized.cc and signs.cc say what they compute.

#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/compress/internal/cuda_values.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/signs_cuda.h"

namespace gradwire {
namespace {

cuda::ReadFormat format_of_records(const CompressorSpec& spec) {
  return {.kind = cuda::BodyKind::kRecords,
          .format = {.values = sparse_values(spec.codec.values)},
          .block = spec.codec.block};
}

class CudaQuantized final : public CudaFormat {
 public:
  CudaQuantized(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
      : CudaFormat(std::move(on_cpu), std::move(shape)),
        bits_(value_bits(spec().codec.values, this->shape().dtype)),
        segments_(upload_segments()) {}

  std::optional<cuda::ReadFormat> read_format() const override { return format_of_records(spec()); }

 protected:
  void encode(const Encoding& what, Context& context) override {
    const cuda::RoundingSource rounding = rounding_source(segments_, what.rank_stage);
    cuda::quantize(
        {.g = what.x,
         .e = what.e,
         .bits = bits_,
         .block = spec().codec.block,
         .stochastic = spec().codec.rounding == Rounding::kStochastic ? &rounding : nullptr,
         .first = what.region.begin,
         .scale = what.scale,
         .format = code_format(spec().codec.values),
         .levels = static_cast<int>(spec().codec.levels)},
        {.records = what.body,
         .e_next = what.e_next,
         .put_back = what.put_back,
         .call = call_words(),
         .seal = what.seal},
        context.stream);
  }

  void add_up(const Addition& what, Context& context) override {
    cuda::dequantize({.parts = what.parts,
                      .bits = bits_,
                      .block = spec().codec.block,
                      .first = what.region.begin,
                      .faults = faults_of_parts(),
                      .onto = what.onto,
                      .overflow = what.overflow,
                      .format = code_format(spec().codec.values)},
                     what.scale, what.sum, context.stream);
  }

 private:
  const int bits_;
  const Buffer segments_;
};

class CudaSigns final : public CudaFormat {
 public:
  CudaSigns(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
      : CudaFormat(std::move(on_cpu), std::move(shape)) {}

  std::optional<cuda::ReadFormat> read_format() const override { return format_of_records(spec()); }

 protected:
  void encode(const Encoding& what, Context& context) override {
    cuda::encode_signs({.g = what.x, .e = what.e, .block = spec().codec.block, .scale = what.scale},
                       {.records = what.body,
                        .e_next = what.e_next,
                        .put_back = what.put_back,
                        .call = call_words(),
                        .seal = what.seal},
                       context.stream);
  }

  void add_up(const Addition& what, Context& context) override {
    cuda::sum_signs({.parts = what.parts,
                     .block = spec().codec.block,
                     .first = what.region.begin,
                     .faults = faults_of_parts(),
                     .onto = what.onto,
                     .overflow = what.overflow},
                    what.scale, what.sum, context.stream);
  }
};

}  // namespace

std::unique_ptr<Format> make_cuda_quantized(std::unique_ptr<ChunkedFormat> on_cpu,
                                            CompressorShape shape) {
  if (on_cpu->spec().codec.values == ValueCodec::kSign) {
    return std::make_unique<CudaSigns>(std::move(on_cpu), std::move(shape));
  }
  return std::make_unique<CudaQuantized>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
