// The compressors on a GPU that choose elements and send them as (index, value) entries. topk.cc
// says what is chosen, internal/sparse_body.h how it is stored.

#include "gradwire/kernels/compress/internal/cuda_compressor.h"
#include "gradwire/kernels/compress/internal/cuda_factories.h"
#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"

namespace gradwire {
namespace {

/// Memory of the kernels is taken on multiples of 64, as they ask.
cuda::SparseFormat format_of(const CompressorSpec& spec, IndexCodec indices) {
  const auto values = [&] {
    switch (spec.values) {
      case ValueCodec::kFloat16:
        return cuda::SparseValues::kFloat16;
      case ValueCodec::kBFloat16:
        return cuda::SparseValues::kBFloat16;
      case ValueCodec::kInt8:
        return cuda::SparseValues::kInt8;
      case ValueCodec::kInt4:
        return cuda::SparseValues::kInt4;
      default:
        return cuda::SparseValues::kFloat32;
    }
  };
  return {values(), indices == IndexCodec::kBitmap};
}

class CudaTopK final : public CudaCompressor {
 public:
  CudaTopK(std::unique_ptr<ChunkedCompressor> on_cpu, CompressorShape shape)
      : CudaCompressor(std::move(on_cpu), std::move(shape)),
        kept_(kept_elements(spec().density, this->shape().numel)),
        format_(format_of(spec(), sparse_index_codec(kept_, this->shape().numel))) {}

 protected:
  void encode(const Encoding& what, Context& context) override {
    const size_t numel = what.region.numel();
    Workspace::Frame frame(context.workspace);
    // The sum of a merge is nobody's but ours; without feedback the selection still needs a place.
    cuda::ParitySpan x = what.e_next;
    if (what.merging) {
      x = std::span(static_cast<float*>(const_cast<void*>(what.x.data)), numel);
    } else if (x.empty()) {
      x = frame.take<float>(numel);
    }
    const size_t chunks = cuda::select_chunks(numel);
    const auto mask = frame.take<std::byte>(chunks * cuda::kMaskBytes);
    const auto counts = frame.take<uint32_t>(chunks);
    const auto before = frame.take<cuda::EntriesBefore>(chunks);
    const size_t k = what.merging ? kept_elements(spec().density, numel) : kept_;
    cuda::select_largest(
        {.g = what.x, .e = what.e, .k = k},
        {.x = x,
         .mask = mask,
         .counts = counts,
         .before = before,
         .call = call_words(),
         .workspace = frame.take<std::byte>(cuda::select_workspace_bytes(numel))},
        context.stream);
    cuda::encode_sparse(
        {.x = x, .mask = mask, .counts = counts, .before = before, .scale = what.scale}, format_,
        {.body = what.body, .call = call_words(), .seal = what.seal}, context.stream);
    if (!what.put_back.empty()) {
      cuda::add_to(x.first, what.put_back, context.stream);
    }
  }

  void add_up(const Addition& what, Context& context) override {
    Workspace::Frame frame(context.workspace);
    const size_t numel = shape().numel;
    const size_t room = cuda::sparse_workspace_bytes(numel, what.parts.size());
    cuda::add_sparse({.parts = what.parts,
                      .most_numel = numel,
                      .workspace = frame.take<std::byte>(room),
                      .step = step_words()},
                     format_, 
                     {.sum = what.sum,
                      .begin = what.region.begin,
                      .scale = what.scale,
                      .onto = what.onto},
                     context.stream);
  }

  void copy_slice(const Slicing& what, Context& context) override {
    Workspace::Frame frame(context.workspace);
    const size_t room = cuda::sparse_workspace_bytes(shape().numel, 1);
    cuda::slice_sparse({.parts = what.table,
                        .most_numel = shape().numel,
                        .workspace = frame.take<std::byte>(room),
                        .step = step_words()},
                       format_, on_cpu().header_of(what.region, 0, 0),
                       what.out.first(slice_capacity_bytes(what.region)), context.stream);
  }

 private:
  const size_t kept_;
  const cuda::SparseFormat format_;
};

}  // namespace

std::unique_ptr<Compressor> make_cuda_sparse(std::unique_ptr<ChunkedCompressor> on_cpu,
                                             CompressorShape shape) {
  return std::make_unique<CudaTopK>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
