// randomk on a GPU. randomk.cc says what it computes.

#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/compress/internal/cuda_values.h"
#include "gradwire/kernels/compress/internal/drawn_group.h"
#include "gradwire/kernels/ops/drawn_cuda.h"

namespace gradwire {
namespace {

class CudaDrawn final : public CudaFormat {
 public:
  CudaDrawn(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
      : CudaFormat(std::move(on_cpu), std::move(shape)),
        format_{sparse_values(spec().codec.values),
                static_cast<uint32_t>(kept_elements(spec().choice.density, kChunk)),
                static_cast<int>(spec().codec.levels)},
        group_(drawn_group(this->shape())),
        segments_(upload_segments()) {}

 protected:
  void encode(const Encoding& what, Context& context) override {
    const cuda::RoundingSource rounding = rounding_source(segments_, what.rank_stage);
    const bool by_chance = spec().codec.rounding == Rounding::kStochastic;
    cuda::encode_drawn({.g = what.x,
                        .e = what.e,
                        .format = format_,
                        .first = what.region.begin,
                        .group = group_,
                        .step = step_words(),
                        .drawn_as = what.parts,
                        .stochastic = by_chance ? &rounding : nullptr,
                        .scale = what.scale,
                        .scale_up = !spec().feedback.on && !what.merging},
                       {.records = what.body,
                        .e_next = what.e_next,
                        .put_back = what.put_back,
                        .masked = what.masked,
                        .call = call_words(),
                        .seal = what.seal},
                       context.stream);
  }

  void add_up(const Addition& what, Context& context) override {
    cuda::sum_drawn({.parts = what.parts,
                     .format = format_,
                     .first = what.region.begin,
                     .step = step_words(),
                     .onto = what.onto,
                     .overflow = what.overflow},
                    what.scale, what.sum, context.stream);
  }

 private:
  const cuda::DrawnFormat format_;
  const DrawnGroup group_;
  const Buffer segments_;
};

}  // namespace

std::unique_ptr<Format> make_cuda_drawn(std::unique_ptr<ChunkedFormat> on_cpu,
                                        CompressorShape shape) {
  return std::make_unique<CudaDrawn>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
