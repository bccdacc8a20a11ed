// The compressors on a GPU that choose elements and send them as (index, value) entries. topk.cc and
// threshold.cc say what is chosen, internal/sparse_body.h how it is stored.

#include "gradwire/kernels/compress/internal/cuda_compressor.h"
#include "gradwire/kernels/compress/internal/cuda_factories.h"
#include "gradwire/kernels/compress/internal/cuda_values.h"
#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"

namespace gradwire {
namespace {

/// What the specs differ in.
enum class Choice : uint8_t { kLargest, kLargestOfChunks, kAboveThreshold };

class CudaSelecting final : public CudaCompressor {
 public:
  CudaSelecting(std::unique_ptr<ChunkedCompressor> on_cpu, CompressorShape shape, Choice choice)
      : CudaCompressor(std::move(on_cpu), std::move(shape)),
        choice_(choice),
        format_{sparse_values(spec().values),
                static_cast<const SelectingCompressor&>(this->on_cpu()).index_codec() ==
                    IndexCodec::kBitmap,
                static_cast<int>(spec().levels)},
        segments_(upload_segments()) {
    if (choice_ == Choice::kAboveThreshold) {
      thresholds_ = Buffer(2 * sizeof(cuda::ThresholdSlot), this->shape().device);
    }
  }

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
    const cuda::SelectOutput chosen{
        .x = x,
        .mask = frame.take<std::byte>(chunks * cuda::kMaskBytes),
        .counts = frame.take<uint32_t>(chunks),
        .before = frame.take<cuda::EntriesBefore>(chunks),
        .call = call_words(),
        .workspace = frame.take<std::byte>(cuda::select_workspace_bytes(numel))};
    select(what, chosen, context.stream);
    const cuda::RoundingSource rounding = rounding_source(segments_, what.rank_stage);
    cuda::encode_sparse({.x = x,
                         .mask = chosen.mask,
                         .counts = chosen.counts,
                         .before = chosen.before,
                         .scale = what.scale,
                         .stochastic = spec().rounding == Rounding::kStochastic ? &rounding
                                                                               : nullptr,
                         .first = what.region.begin},
                        format_, {.body = what.body, .call = call_words(), .seal = what.seal},
                        context.stream);
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
  void select(const Encoding& what, const cuda::SelectOutput& out, Stream& stream) {
    if (choice_ == Choice::kLargestOfChunks) {
      cuda::select_in_chunks(
          {.g = what.x, .e = what.e, .k = kept_elements(spec().density, kChunk)}, out, stream);
      return;
    }
    const cuda::SelectInput input{
        .g = what.x, .e = what.e, .k = kept_elements(spec().density, what.region.numel())};
    if (choice_ == Choice::kAboveThreshold && !what.merging) {
      cuda::select_above(input,
                         {.slots = thresholds_.as<cuda::ThresholdSlot>().data(),
                          .parity = &step_words()->parity,
                          .step = &step_words()->step,
                          .epoch = &step_words()->epoch},
                         out, stream);
    } else {
      cuda::select_largest(input, out, stream);
    }
  }

  const Choice choice_;
  const cuda::SparseFormat format_;
  const Buffer segments_;
  Buffer thresholds_;
};

}  // namespace

std::unique_ptr<Compressor> make_cuda_sparse(std::unique_ptr<ChunkedCompressor> on_cpu,
                                             CompressorShape shape) {
  const std::string& name = on_cpu->spec().name;
  const Choice choice = name == "chunktopk"   ? Choice::kLargestOfChunks
                        : name == "threshold" ? Choice::kAboveThreshold
                                              : Choice::kLargest;
  return std::make_unique<CudaSelecting>(std::move(on_cpu), std::move(shape), choice);
}

}  // namespace gradwire
