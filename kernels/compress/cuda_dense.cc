// none, fp16 and bf16 on a GPU. dense.cc says what they compute.

#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire {
namespace {

class CudaDense final : public CudaFormat {
 public:
  CudaDense(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
      : CudaFormat(std::move(on_cpu), std::move(shape)),
        sent_(static_cast<DType>(this->on_cpu().header_of({}, 0, 0).values)) {}

  std::optional<cuda::ReadFormat> read_format() const override {
    const cuda::SparseValues values = sent_ == DType::kFloat32   ? cuda::SparseValues::kFloat32
                                      : sent_ == DType::kFloat16 ? cuda::SparseValues::kFloat16
                                                                 : cuda::SparseValues::kBFloat16;
    return cuda::ReadFormat{.kind = cuda::BodyKind::kValues, .format = {.values = values}};
  }

 protected:
  void encode(const Encoding& what, Context& context) override {
    cuda::encode_cast({.g = what.x, .e = what.e, .scale = what.scale},
                      {.out = {what.body.data(), what.x.numel, sent_, shape().device},
                       .e_next = what.e_next,
                       .put_back = what.put_back,
                       .call = call_words(),
                       .seal = what.seal},
                      context.stream);
  }

  void add_up(const Addition& what, Context& context) override {
    cuda::sum_cast({.parts = what.parts,
                    .dtype = sent_,
                    .begin = what.region.begin,
                    .onto = what.onto,
                    .overflow = what.overflow},
                   what.scale, what.sum, context.stream);
  }

 private:
  const DType sent_;
};

}  // namespace

std::unique_ptr<Format> make_cuda_dense(std::unique_ptr<ChunkedFormat> on_cpu,
                                        CompressorShape shape) {
  return std::make_unique<CudaDense>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
