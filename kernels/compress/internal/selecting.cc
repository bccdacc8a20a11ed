#include "gradwire/kernels/compress/internal/selecting.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

static_assert(cpu::kSelectChunk == kChunk);

/// The chosen elements of one chunk and what they decode to.
struct SelectingFormat::Chosen {
  std::span<const uint16_t> indices;
  std::span<const float> decoded;
};

SelectingFormat::SelectingFormat(const CompressorSpec& spec, CompressorShape shape,
                                 std::span<const size_t> entries)
    : ChunkedFormat(spec, std::move(shape), {PayloadFormat::kSparse, spec.codec.values}),
      numbers_(this->shape()) {
  for (const size_t most : entries) {
    bodies_.emplace_back(ValueRun(spec), sparse_index_codec(most, this->shape().numel));
  }
}

SelectingFormat::SelectingFormat(const CompressorSpec& spec, CompressorShape shape,
                                 std::vector<BlockSegment> segments)
    : ChunkedFormat(spec, std::move(shape), {PayloadFormat::kSparse, spec.codec.values}),
      segments_(std::move(segments)),
      numbers_(this->shape()) {
  bodies_.emplace_back(ValueRun(spec), IndexCodec::kBlocks, blocks());
}

size_t SelectingFormat::capacity_for(Region region) const {
  size_t bytes = 0;
  for (uint32_t variant = 0; variant < bodies_.size(); ++variant) {
    const Scope scope{region, variant};
    bytes = std::max(bytes, bodies_[variant].capacity_bytes(
                                region.numel(), {most_entries(scope), most_indices(scope)}));
  }
  return sizeof(PayloadHeader) + bytes;
}

uint32_t SelectingFormat::merged_variant(std::span<const Part> parts, const Work& work) const {
  const auto first = std::ranges::min_element(parts, {}, &Part::variant);
  return first == parts.end() ? variant_in(work.step) : first->variant;
}

void SelectingFormat::open_body(Part& part, PartName name, Workspace::Frame& frame,
                                ThreadPool& pool) const {
  const auto places = frame.take<ChunkPlace>(chunks_of(part.region.numel()));
  body_of(part).open(part, name, places, pool);
  part.places = places;
}

void SelectingFormat::add_chunk(const Part& part, size_t chunk, std::span<float> sum) const {
  body_of(part).add_chunk(part, chunk - part.region.begin / kChunk, sum);
}

cpu::Selection SelectingFormat::choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                               const Work& work) {
  return choose(input, {whole(), variant_in(work.step)}, frame, work.pool);
}

cpu::Selection SelectingFormat::choose_and_mask(cpu::SelectInput input, Workspace::Frame& frame,
                                                const Work& work) {
  const cpu::Selection chosen = choose_in_step(input, frame, work);
  if (!work.masked.empty()) {
    cpu::for_each_chunk(work.pool, chosen.chunks.size(), [&](size_t chunk) {
      const auto [first, count] = chosen.chunks[chunk];
      for (const uint16_t index : chosen.indices.subspan(first, count)) {
        work.masked[chunk * kChunk + index] = 0.0f;
      }
    });
  }
  return chosen;
}

/// Writes header and body; then keep(chunk, chosen) for each chunk of the region.
template <class Keep>
void SelectingFormat::emit(const Emission& what, const cpu::Selection& selection, Payload out,
                           Workspace::Frame& frame, ThreadPool& pool, const Keep& keep) const {
  const SparseBody& format = bodies_[what.variant];
  const auto places = frame.take<ChunkPlace>(selection.chunks.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [first, count] = selection.chunks[i];
    places[i].count = count;
    places[i].blocks =
        format.count_blocks(what.region.begin + i * kChunk, selection.indices.subspan(first, count));
  }
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const size_t bytes = format.lay_out(what.region.numel(), places);
  format.write_counts(what.region.numel(), places, body);
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
    uint16_t random_memory[kChunk];
    const std::span<uint16_t> random(random_memory, format.draws() ? count : 0);
    if (format.draws()) {
      numbers_.fill_chosen(region_of(what.region.begin / kChunk + i), indices, what.draw, random);
    }
    format.write_chunk({places, what.region, i}, {indices, values, random}, decoded, body);
    keep(i, Chosen{indices, decoded});
  });
  write_header(out, what.region, what.flags, sizeof(PayloadHeader) + bytes, what.variant);
}

void SelectingFormat::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                            const Work& work) {
  Workspace::Frame frame(work.workspace);
  const cpu::Selection selection = choose_and_mask({.g = g, .e = e, .e_next = e_next}, frame, work);
  const uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  // e_next holds zeros at what was chosen: right where values travel as they are.
  const bool exact = e_next.empty() || spec().codec.values == ValueCodec::kFloat32;
  emit({whole(), 1.0f, flags, variant_in(work.step), {work.step, compress_stage(shape().rank)}},
       selection, out, frame, work.pool, [&](size_t chunk, const Chosen& chosen) {
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

void SelectingFormat::write_accumulated(Residual x, Payload out, const Work& work) {
  Workspace::Frame frame(work.workspace);
  const cpu::Selection selection =
      choose_and_mask({.g = view_of(std::span<const float>(x)), .e_next = x}, frame, work);
  const uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  const bool exact = spec().codec.values == ValueCodec::kFloat32;
  const Emission what{whole(),
                      1.0f,
                      flags,
                      variant_in(work.step),
                      {work.step, compress_stage(shape().rank)},
                      exact ? nullptr : x.data()};
  emit(what, selection, out, frame, work.pool, [&](size_t chunk, const Chosen& chosen) {
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

float SelectingFormat::most_in(const Part& part, size_t chunk) const {
  return body_of(part).most_in(part, chunk - part.region.begin / kChunk);
}

bool SelectingFormat::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                                Gradient out) const {
  if (out.dtype != DType::kFloat32 || shape().numel < cpu::kStreamingNumel) {
    return ChunkedFormat::write_sum(parts, chunk, scale, out);
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
  return cpu::multiply_and_clear(total, scale, to);
}

void SelectingFormat::write_slice(const Part& part, Region region, Payload out) const {
  const size_t bytes =
      body_of(part).copy_chunks(part, region, out.data() + sizeof(PayloadHeader));
  write_header(out, region, part.flags, sizeof(PayloadHeader) + bytes, part.variant);
}

void SelectingFormat::write_merged(std::span<const Part> parts, const MergeInput& input,
                                   Residual e_next, Payload out, const Work& work) const {
  if (input.most_entries > 0) {
    write_merged_at_most(parts, input, e_next, out, work);
    return;
  }
  Workspace::Frame frame(work.workspace);
  const Region region = input.region;
  const uint32_t variant = merged_variant(parts, work);
  const std::span<float> sum = frame.take<float>(region.numel());
  cpu::for_each_chunk(work.pool, chunks_of(region.numel()), [&](size_t i) {
    const Region mine = region_of(region.begin / kChunk + i);
    sum_chunk(parts, mine.begin / kChunk, sum.subspan(i * kChunk, mine.numel()));
  });
  const cpu::Selection selection =
      choose({.g = view_of(std::span<const float>(sum))}, {region, variant}, frame, work.pool);
  uint8_t flags = selection.finite ? 0 : kFlagNonFinite;
  for (const Part& part : parts) {
    flags |= part.flags;
  }
  std::atomic<bool> finite{true};
  emit({region, input.scale, flags, variant, draw_of_merge(input, work)}, selection, out, frame,
       work.pool, [&](size_t i, const Chosen& chosen) {
         if (e_next.empty()) {
           return;
         }
         alignas(64) float decoded[kChunk] = {};
         for (size_t j = 0; j < chosen.indices.size(); ++j) {
           decoded[chosen.indices[j]] = chosen.decoded[j];
         }
         const Region mine = region_of(region.begin / kChunk + i);
         const Residual kept = e_next.subspan(mine.begin, mine.numel());
         cpu::put_back(sum.subspan(i * kChunk, mine.numel()), {decoded, mine.numel()}, input.scale,
                       kept);
         if (!cpu::all_finite(kept)) {
           finite.store(false, std::memory_order_relaxed);
         }
       });
  flag_overflow(finite, out);
}

/// Sums of all parts in order of the elements, chunk by chunk, with room left behind some chunks:
/// zeros there, which nothing chooses.
struct SelectingFormat::Union {
  std::span<const size_t> first;    ///< of each chunk, and the end
  std::span<uint32_t> counts;       ///< of each chunk
  std::span<float> sums;
  std::span<uint16_t> indices;      ///< within the chunk
};

SelectingFormat::Union SelectingFormat::unite(std::span<const Part> parts, Region region,
                                              Workspace::Frame& frame, ThreadPool& pool) const {
  const size_t chunks = chunks_of(region.numel());
  const auto first = frame.take<size_t>(chunks + 1);
  size_t total = 0;
  for (size_t i = 0; i < chunks; ++i) {
    first[i] = total;
    size_t entries = 0;
    for (const Part& part : parts) {
      entries += part.places[i].count;
    }
    total += std::min(entries, chunk_length(region.numel(), i));
  }
  first[chunks] = total;
  const Union all{first, frame.take<uint32_t>(chunks), frame.take<float>(total),
                  frame.take<uint16_t>(total)};
  cpu::for_each_chunk(pool, chunks, [&](size_t i) {
    float sum[kChunk];  // valid where marked: clearing it would take longer than adding does
    uint64_t marks[kChunk / 64] = {};
    SparseBody::EntryRoom room;
    for (const Part& part : parts) {
      const SparseBody::Entries entries = body_of(part).read_entries(part, i, room);
      for (size_t j = 0; j < entries.indices.size(); ++j) {
        const size_t at = entries.indices[j];
        const uint64_t mark = uint64_t{1} << (at % 64);
        sum[at] = (marks[at / 64] & mark) != 0 ? sum[at] + entries.values[j] : entries.values[j];
        marks[at / 64] |= mark;
      }
    }
    size_t end = all.first[i];
    for (size_t word = 0; word < kChunk / 64; ++word) {
      for (uint64_t left = marks[word]; left != 0; left &= left - 1) {
        const size_t at = word * 64 + static_cast<size_t>(std::countr_zero(left));
        all.indices[end] = static_cast<uint16_t>(at);
        all.sums[end++] = sum[at];
      }
    }
    all.counts[i] = static_cast<uint32_t>(end - all.first[i]);
    std::fill(all.sums.begin() + static_cast<ptrdiff_t>(end),
              all.sums.begin() + static_cast<ptrdiff_t>(all.first[i + 1]), 0.0f);
  });
  return all;
}

// Works on what there is, not on the region: regions that are balanced by entries may be most of
// the group.
void SelectingFormat::write_merged_at_most(std::span<const Part> parts, const MergeInput& input,
                                           Residual e_next, Payload out, const Work& work) const {
  Workspace::Frame frame(work.workspace);
  const Region region = input.region;
  const Union all = unite(parts, region, frame, work.pool);
  cpu::Selection chosen;
  if (!all.sums.empty()) {
    chosen = cpu::select_largest({.g = view_of(std::span<const float>(all.sums)),
                                  .k = std::min(input.most_entries, all.sums.size())},
                                 frame, work.pool);
  }
  // From places among the sums to places in the region's chunks.
  const auto chunks = frame.take<cpu::Selection::Chunk>(all.counts.size());
  const auto indices = frame.take<uint16_t>(chosen.total);
  const auto values = frame.take<float>(chosen.total);
  size_t chunk = 0, entry = 0;
  if (!chunks.empty()) {
    chunks[0] = {0, 0};
  }
  for (size_t block = 0; block < chosen.chunks.size(); ++block) {
    const auto [first, count] = chosen.chunks[block];
    for (size_t j = first; j < first + count; ++j, ++entry) {
      const size_t at = block * cpu::kSelectChunk + chosen.indices[j];
      while (at >= all.first[chunk + 1]) {
        chunks[++chunk] = {entry, 0};
      }
      ++chunks[chunk].count;
      indices[entry] = all.indices[at];
      values[entry] = chosen.values[j];
    }
  }
  for (size_t c = chunk + 1; c < chunks.size(); ++c) {
    chunks[c] = {entry, 0};
  }
  uint8_t flags = chosen.finite ? 0 : kFlagNonFinite;
  for (const Part& part : parts) {
    flags |= part.flags;
  }
  const cpu::Selection selection{
      .chunks = chunks, .indices = indices, .values = values, .total = chosen.total};
  std::atomic<bool> finite{true};
  const uint32_t variant = merged_variant(parts, work);
  emit({region, input.scale, flags, variant, draw_of_merge(input, work)}, selection, out, frame,
       work.pool, [&](size_t i, const Chosen& sent) {
         const size_t count = all.counts[i];
         if (e_next.empty() || count == 0) {
           return;
         }
         const auto at = all.indices.subspan(all.first[i], count);
         float* const residual = e_next.data() + region.begin + i * kChunk;
         float decoded[kChunk], left[kChunk];
         for (size_t j = 0, k = 0; j < count; ++j) {
           const bool is_sent = k < sent.indices.size() && sent.indices[k] == at[j];
           decoded[j] = is_sent ? sent.decoded[k++] : 0.0f;
           left[j] = residual[at[j]];
         }
         cpu::put_back(all.sums.subspan(all.first[i], count), {decoded, count}, input.scale,
                       {left, count});
         for (size_t j = 0; j < count; ++j) {
           residual[at[j]] = left[j];
         }
         if (!cpu::all_finite({left, count})) {
           finite.store(false, std::memory_order_relaxed);
         }
       });
  flag_overflow(finite, out);
}

}  // namespace gradwire
