#include "gradwire/kernels/compress/internal/selecting.h"

#include <algorithm>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

static_assert(cpu::kSelectChunk == kChunk);

/// The chosen elements of one chunk and what they decode to.
struct SelectingCompressor::Chosen {
  std::span<const uint16_t> indices;
  std::span<const float> decoded;
};

SelectingCompressor::SelectingCompressor(const CompressorSpec& spec, CompressorShape shape,
                                         size_t entries)
    : ChunkedCompressor(spec, std::move(shape), {PayloadFormat::kSparse, spec.values}),
      body_(spec.values, sparse_index_codec(entries, this->shape().numel)) {}

size_t SelectingCompressor::capacity_for(Region region) const {
  return sizeof(PayloadHeader) + body_.capacity_bytes(region.numel(), most_entries(region));
}

void SelectingCompressor::open_body(Part& part, PartName name, Workspace::Frame& frame,
                                    ThreadPool& pool) const {
  const auto places = frame.take<ChunkPlace>(chunks_of(part.region.numel()));
  body_.open(part, name, places, pool);
  part.places = places;
}

void SelectingCompressor::add_chunk(const Part& part, size_t chunk, std::span<float> sum) const {
  body_.add_chunk(part, chunk - part.region.begin / kChunk, sum);
}

cpu::Selection SelectingCompressor::choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                                   const Work& work) {
  return choose(input, whole(), frame, work.pool);
}

/// Writes header and body; then keep(chunk, chosen) for each chunk of the region.
template <class Keep>
void SelectingCompressor::emit(const Emission& what, const cpu::Selection& selection, Payload out,
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
    for (size_t j = 0; what.touched != nullptr && j < count; ++j) {
      __builtin_prefetch(what.touched + i * kChunk + indices[j], 1);
    }
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

void SelectingCompressor::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                                const Work& work) {
  Workspace::Frame frame(work.workspace);
  const cpu::Selection selection = choose_in_step({.g = g, .e = e, .e_next = e_next}, frame, work);
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

void SelectingCompressor::write_accumulated(Residual x, Payload out, const Work& work) {
  Workspace::Frame frame(work.workspace);
  const cpu::Selection selection =
      choose_in_step({.g = view_of(std::span<const float>(x)), .e_next = x}, frame, work);
  const uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  const bool exact = spec().values == ValueCodec::kFloat32;
  emit({whole(), 1.0f, flags, exact ? nullptr : x.data()}, selection, out, frame, work.pool,
       [&](size_t chunk, const Chosen& chosen) {
         if (exact) {
           return;
         }
         float* const left = x.data() + chunk * kChunk;
         const float* const value = selection.values.data() + selection.chunks[chunk].first;
         for (size_t i = 0; i < chosen.indices.size(); ++i) {
           left[chosen.indices[i]] = value[i] - chosen.decoded[i];
         }
       });
}

void SelectingCompressor::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                                    Gradient out) const {
  if (out.dtype != DType::kFloat32 || shape().numel < cpu::kStreamingNumel) {
    ChunkedCompressor::write_sum(parts, chunk, scale, out);
    return;
  }
  // All zeros between calls: clearing it while it is read saves a pass.
  constexpr size_t kLine = 64;
  alignas(kLine) thread_local float values[kChunk + kLine / sizeof(float)];
  const std::span<float> to = out.as<float>();
  // As far behind a line as `to` is, so that lines become lines.
  const size_t shift = reinterpret_cast<uintptr_t>(to.data()) % kLine / sizeof(float);
  const std::span<float> total(values + shift, to.size());
  cpu::prefetch_end(to);
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      add_chunk(part, chunk, total);
    }
  }
  cpu::multiply_and_clear(total, scale, to);
}

void SelectingCompressor::write_slice(const Part& part, Region region, Payload out) const {
  const size_t bytes = body_.copy_chunks(part, region, out.data() + sizeof(PayloadHeader));
  write_header(out, region, part.flags, sizeof(PayloadHeader) + bytes);
}

void SelectingCompressor::write_merged(std::span<const Part> parts, const MergeInput& input,
                                       Residual e_next, Payload out, const Work& work) const {
  Workspace::Frame frame(work.workspace);
  const Region region = input.region;
  const std::span<float> sum = frame.take<float>(region.numel());
  cpu::for_each_chunk(work.pool, chunks_of(region.numel()), [&](size_t i) {
    const Region mine = region_of(region.begin / kChunk + i);
    sum_chunk(parts, mine.begin / kChunk, sum.subspan(i * kChunk, mine.numel()));
  });
  const cpu::Selection selection =
      choose({.g = view_of(std::span<const float>(sum))}, region, frame, work.pool);
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

}  // namespace gradwire
