// topk: the k = max(1, ceil(density * n)) elements of g + e with the largest magnitude, ties to the
// smaller index, zeros never. Aji and Heafield, arXiv:1704.05021; with error feedback: Stich et
// al., arXiv:1809.07599.
//   D = values of the chosen elements, 0 elsewhere;   e_next = (g + e) - D
// What is chosen is exact whatever the value codec; internal/sparse_body.h says how it is stored.

#include <algorithm>

#include "gradwire/kernels/compress/internal/factories.h"
#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/select.h"
#include "gradwire/kernels/ops/sparse.h"

namespace gradwire {
namespace {

static_assert(cpu::kSelectChunk == kChunk);

/// The chosen elements of one chunk and what they decode to.
struct Chosen {
  std::span<const uint16_t> indices;
  std::span<const float> decoded;
};

class TopK final : public ChunkedCompressor {
 public:
  TopK(const CompressorSpec& spec, CompressorShape shape)
      : ChunkedCompressor(spec, std::move(shape), {PayloadFormat::kSparse, spec.values}),
        kept_(kept_elements(spec.density, this->shape().numel)),
        body_(spec.values, sparse_index_codec(kept_, this->shape().numel)) {}

  bool fixed_length() const override { return false; }
  Combine combine() const override { return Combine::kGather; }

 protected:
  size_t capacity_for(Region region) const override {
    return sizeof(PayloadHeader) +
           body_.capacity_bytes(region.numel(), std::min(kept_, region.numel()));
  }
  void open_body(Part& part, PartName name, Workspace::Frame& frame,
                 ThreadPool& pool) const override {
    const auto places = frame.take<ChunkPlace>(chunks_of(part.region.numel()));
    body_.open(part, name, places, pool);
    part.places = places;
  }
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const override {
    body_.add_chunk(part, chunk - part.region.begin / kChunk, sum);
  }
  void write_sum(std::span<const Part> parts, size_t chunk, float scale,
                 Gradient out) const override;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) const override;
  void write_slice(const Part& part, Region region, Payload out) const override;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const override;

 private:
  /// What emit() encodes: scale * x at the chosen elements.
  struct Emission {
    Region region;
    float scale = 1.0f;
    uint8_t flags = 0;
  };
  template <class Keep>
  void emit(const Emission& what, const cpu::Selection& selection, Payload out,
            Workspace::Frame& frame, ThreadPool& pool, const Keep& keep) const;

  const size_t kept_;
  const SparseBody body_;
};

/// Writes header and body; then keep(chunk, chosen) for each chunk of the region.
template <class Keep>
void TopK::emit(const Emission& what, const cpu::Selection& selection, Payload out,
                Workspace::Frame& frame, ThreadPool& pool, const Keep& keep) const {
  const auto places = frame.take<ChunkPlace>(selection.chunks.size());
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].count = selection.chunks[i].count;
  }
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const size_t bytes = body_.lay_out(what.region.numel(), places);
  body_.write_counts(what.region.numel(), places, body);
  cpu::for_each_chunk(pool, places.size(), [&](size_t i) {
    alignas(64) float value_memory[kChunk];
    alignas(64) float decoded_memory[kChunk];
    const auto [first, count] = selection.chunks[i];
    const auto indices = selection.indices.subspan(first, count);
    std::span<const float> values = selection.values.subspan(first, count);
    if (what.scale != 1.0f) {
      const std::span<float> scaled(value_memory, count);
      cpu::multiply(values, what.scale, scaled);
      values = scaled;
    }
    const std::span<float> decoded(decoded_memory, count);
    body_.write_chunk({places, what.region.numel(), i}, indices, values, decoded, body);
    keep(i, Chosen{indices, decoded});
  });
  write_header(out, what.region, what.flags, sizeof(PayloadHeader) + bytes);
}

void TopK::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                 const Work& work) const {
  Workspace::Frame frame(work.workspace);
  const cpu::Selection selection =
      cpu::select_largest({.g = g, .e = e, .e_next = e_next, .k = kept_}, frame, work.pool);
  const uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  // e_next holds zeros at what was chosen: right where values travel as they are.
  const bool exact = e_next.empty() || spec().values == ValueCodec::kFloat32;
  emit({whole(), 1.0f, flags}, selection, out, frame, work.pool,
       [&](size_t chunk, const Chosen& chosen) {
         if (exact) {
           return;
         }
         float* const left = e_next.data() + chunk * kChunk;
         const float* const x = selection.values.data() + selection.chunks[chunk].first;
         for (size_t i = 0; i < chosen.indices.size(); ++i) {
           left[chosen.indices[i]] = x[i] - chosen.decoded[i];
         }
       });
}

void TopK::write_sum(std::span<const Part> parts, size_t chunk, float scale, Gradient out) const {
  if (out.dtype != DType::kFloat32 || shape().numel < cpu::kStreamingNumel) {
    ChunkedCompressor::write_sum(parts, chunk, scale, out);
    return;
  }
  // All zeros between calls: clearing it while it is read saves a pass.
  alignas(64) thread_local float values[kChunk];
  const std::span<float> total(values, out.numel);
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      add_chunk(part, chunk, total);
    }
  }
  cpu::multiply_and_clear(total, scale, out.as<float>());
}

void TopK::write_slice(const Part& part, Region region, Payload out) const {
  const size_t bytes = body_.copy_chunks(part, region, out.data() + sizeof(PayloadHeader));
  write_header(out, region, part.flags, sizeof(PayloadHeader) + bytes);
}

void TopK::write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                        Payload out, const Work& work) const {
  Workspace::Frame frame(work.workspace);
  const Region region = input.region;
  const std::span<float> sum = frame.take<float>(region.numel());
  cpu::for_each_chunk(work.pool, chunks_of(region.numel()), [&](size_t i) {
    const Region mine = region_of(region.begin / kChunk + i);
    sum_chunk(parts, mine.begin / kChunk, sum.subspan(i * kChunk, mine.numel()));
  });
  const size_t k = kept_elements(spec().density, region.numel());
  const cpu::Selection selection =
      cpu::select_largest({.g = view_of(std::span<const float>(sum)), .k = k}, frame, work.pool);
  uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  for (const Part& part : parts) {
    flags |= part.flags;
  }
  emit({region, input.scale, flags}, selection, out, frame, work.pool,
       [&](size_t i, const Chosen& chosen) {
         if (e_next.empty()) {
           return;
         }
         alignas(64) float decoded[kChunk] = {};
         for (size_t j = 0; j < chosen.indices.size(); ++j) {
           decoded[chosen.indices[j]] = chosen.decoded[j];
         }
         const Region mine = region_of(region.begin / kChunk + i);
         cpu::put_back(sum.subspan(i * kChunk, mine.numel()), {decoded, mine.numel()}, input.scale,
                       e_next.subspan(mine.begin, mine.numel()));
       });
}

}  // namespace

std::unique_ptr<Compressor> make_topk(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<TopK>(spec, std::move(shape));
}

}  // namespace gradwire
