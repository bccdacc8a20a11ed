// The compressors on a GPU that choose elements and send them as (index, value) entries. topk.cc,
// tensortopk.cc, blocktopk.cc, threshold.cc and dgc.cc say what is chosen, internal/sparse_body.h
// how it is stored.

#include <algorithm>
#include <array>
#include <bit>

#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/compress/internal/cuda_values.h"
#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/ops/select_blocks_cuda.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/select_segments_cuda.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"

namespace gradwire {
namespace {

/// Densities fall from variant to variant: the first ones may have bitmaps.
cuda::SparseFormat format_of(const CompressorSpec& spec, const SelectingFormat& on_cpu,
                             const BlockGrid& blocks) {
  uint32_t bitmaps = 0;
  while (bitmaps <= on_cpu.last_variant() && on_cpu.index_codec(bitmaps) == IndexCodec::kBitmap) {
    ++bitmaps;
  }
  return {.values = sparse_values(spec.codec.values),
          .bitmap = bitmaps > 0,
          .by_variant = bitmaps > 0 && bitmaps <= on_cpu.last_variant(),
          .bitmap_variants = bitmaps,
          .levels = static_cast<int>(spec.codec.levels),
          .blocks = blocks};
}

class CudaSelecting final : public CudaFormat {
 public:
  CudaSelecting(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
      : CudaFormat(std::move(on_cpu), std::move(shape)),
        choice_(find_compressor(spec().name).select),
        blocks_(selecting().block_segments().empty()
                    ? Buffer()
                    : upload(std::as_bytes(selecting().block_segments()))),
        format_(format_of(spec(), selecting(),
                          {blocks_.as<BlockSegment>().data(), selecting().block_segments().size(),
                           spec().choice.width})),
        segments_(upload_segments()) {
    if (choice_ == Selection::kLargestOfParameters) {
      std::vector<uint64_t> ends;
      for (const Segment& segment : this->shape().segments) {
        ends.push_back((ends.empty() ? 0 : ends.back()) + segment.numel);
      }
      ends_ = upload(std::as_bytes(std::span(ends)));
    }
    if (choice_ == Selection::kAboveThreshold) {
      thresholds_ = Buffer(2 * sizeof(cuda::ThresholdSlot), this->shape().device);
    }
    if (choice_ == Selection::kLargestVelocities) {
      stage_ = Buffer(sizeof(uint32_t), this->shape().device);
    }
  }

  std::optional<cuda::ReadFormat> read_format() const override {
    return cuda::ReadFormat{.kind = cuda::BodyKind::kEntries, .format = format_};
  }

  // Of all these a threshold alone is learned; a slot of another step or epoch says nothing.
  std::vector<uint64_t> state() const override {
    if (choice_ != Selection::kAboveThreshold) {
      return {};
    }
    const cuda::StepWords words = read_words();
    cuda::ThresholdSlot slot;
    read_memory(thresholds_.bytes().subspan(words.parity * sizeof slot, sizeof slot),
                std::as_writable_bytes(std::span(&slot, 1)));
    const bool known = slot.step == words.step && slot.epoch == words.epoch;
    const ThresholdState kept = known ? slot.state : ThresholdState{};
    return {std::bit_cast<uint32_t>(kept.tau), kept.age};
  }
  void set_state(std::span<const uint64_t> state) override {
    if (choice_ != Selection::kAboveThreshold) {
      CudaFormat::set_state(state);
      return;
    }
    CompressorShape shape_on_cpu = shape();
    shape_on_cpu.device = {};
    find_compressor(spec().name).make(spec(), shape_on_cpu)->set_state(state);  // refuses what is none
    const cuda::StepWords words = read_words();
    const cuda::ThresholdSlot slot{{std::bit_cast<float>(static_cast<uint32_t>(state[0])),
                                    static_cast<uint32_t>(state[1])},
                                   words.step,
                                   words.epoch};
    write_memory(std::as_bytes(std::span(&slot, 1)),
                 thresholds_.bytes().subspan(words.parity * sizeof slot, sizeof slot));
  }

 protected:
  bool encodes_in_place() const override { return choice_ == Selection::kLargestVelocities; }
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
    const cuda::SelectOutput chosen{.x = x,
                                    .mask = frame.take<std::byte>(chunks * cuda::kMaskBytes),
                                    .counts = frame.take<uint32_t>(chunks),
                                    .before = frame.take<cuda::EntriesBefore>(chunks),
                                    .call = call_words(),
                                    .workspace = frame.take<std::byte>(select_bytes(what.region))};
    const size_t listed = format_.blocks.width > 0 ? chunks : 0;
    const auto listed_counts = frame.take<uint32_t>(listed);
    const auto listed_before = frame.take<cuda::EntriesBefore>(listed);
    if (choice_ == Selection::kLargestBlocks) {
      const BlockExtent blocks = blocks_in(what.region);
      cuda::select_blocks({.g = what.x,
                           .e = what.e,
                           .k = kept_elements(spec().choice.density, blocks.end - blocks.begin)},
                          {format_.blocks, what.region.begin, blocks, listed_counts, listed_before},
                          chosen, context.stream);
    } else {
      select(what, chosen, context.stream);
    }
    const cuda::RoundingSource rounding = rounding_source(segments_, what.rank_stage);
    const bool staged = choice_ == Selection::kLargestVelocities;
    cuda::encode_sparse(
        {.x = x,
         .mask = chosen.mask,
         .counts = chosen.counts,
         .before = chosen.before,
         .scale = what.scale,
         .variant = staged ? stage_.as<uint32_t>().data() : nullptr,
         .stochastic = spec().codec.rounding == Rounding::kStochastic ? &rounding : nullptr,
         .first = what.region.begin,
         .listed = listed_counts,
         .listed_before = listed_before},
        format_, {.body = what.body, .call = call_words(), .seal = what.seal}, context.stream);
    if (!what.masked.empty()) {  // factor masking: what is sent starts anew
      cuda::clear_marked(what.masked, chosen.mask, context.stream);
    }
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
                      .onto = what.onto,
                      .overflow = what.overflow},
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
                       what.out.first(capacity_for(what.region)), context.stream);
  }

 private:
  const SelectingFormat& selecting() const { return static_cast<const SelectingFormat&>(on_cpu()); }
  BlockExtent blocks_in(Region region) const {
    return blocks_between(selecting().blocks(), region.begin, region.end);
  }
  size_t select_bytes(Region region) const {
    const BlockExtent blocks =
        choice_ == Selection::kLargestBlocks ? blocks_in(region) : BlockExtent{0, 0};
    return choice_ == Selection::kLargestBlocks ? cuda::select_blocks_bytes(blocks.end - blocks.begin)
           : choice_ == Selection::kLargestOfParameters
               ? cuda::select_in_segments_bytes(shape().segments.size())
               : cuda::select_workspace_bytes(region.numel());
  }
  void select(const Encoding& what, const cuda::SelectOutput& out, Stream& stream) {
    if (choice_ == Selection::kLargestOfChunks) {
      cuda::select_in_chunks(
          {.g = what.x, .e = what.e, .k = kept_elements(spec().choice.density, kChunk)}, out,
          stream);
      return;
    }
    if (choice_ == Selection::kLargestOfParameters) {
      cuda::select_in_segments({.g = what.x, .e = what.e},
                               {.ends = ends_.as<const uint64_t>(),
                                .density = spec().choice.density,
                                .first = what.region.begin},
                               out, stream);
      return;
    }
    if (choice_ == Selection::kLargestVelocities) {
      select_in_stage(what, out, stream);
      return;
    }
    const cuda::SelectInput input{
        .g = what.x, .e = what.e, .k = kept_elements(spec().choice.density, what.region.numel())};
    if (choice_ == Selection::kAboveThreshold && !what.merging) {
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

  /// k falls in the warm-up: only the device knows the step.
  void select_in_stage(const Encoding& what, const cuda::SelectOutput& out, Stream& stream) {
    const size_t numel = what.region.numel();
    const uint32_t last = last_warmup_stage(spec());
    std::array<size_t, cuda::kMostSelectStages> kept{};  // later ones keep a single element too
    const size_t count = std::min<size_t>(last + 1, kept.size());
    for (uint32_t stage = 0; stage < count; ++stage) {
      kept[stage] = kept_elements(density_in_stage(spec(), stage), numel);
    }
    const cuda::SelectStages stages{.k = std::span(kept).first(count),
                                    .last = last,
                                    .period = std::max(spec().choice.warmup, 1u),
                                    .step = &step_words()->step,
                                    .parts = what.parts,
                                    .stage = stage_.as<uint32_t>().data()};
    cuda::select_largest({.g = what.x, .e = what.e, .stages = &stages, .in_place = what.in_place},
                         out, stream);
  }

  const Selection choice_;
  const Buffer blocks_;  // where they end, if indices say blocks
  const cuda::SparseFormat format_;
  const Buffer segments_;  // of stochastic rounding
  Buffer ends_;            // of segments
  Buffer thresholds_;
  Buffer stage_;  // of the payload that is written
};

}  // namespace

std::unique_ptr<Format> make_cuda_sparse(std::unique_ptr<ChunkedFormat> on_cpu,
                                         CompressorShape shape) {
  return std::make_unique<CudaSelecting>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
