#include "gradwire/kernels/compress/internal/fixed.h"

#include <algorithm>
#include <atomic>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

/// Whether what is written for `numel` elements is too much to stay in a cache until it is read.
bool is_streaming(size_t numel) { return numel >= size_t{1} << 20; }

}  // namespace

size_t FixedFormat::body_bytes(size_t numel) const {
  const size_t tail = numel % kChunk;
  return numel / kChunk * record_bytes(kChunk) + (tail > 0 ? record_bytes(tail) : 0);
}

size_t FixedFormat::capacity_for(Region region) const {
  return sizeof(PayloadHeader) + body_bytes(region.numel());
}

void FixedFormat::check_record(const std::byte*, size_t, PartName) const {}

void FixedFormat::check_scales(const std::byte* scales, size_t count, size_t chunk, PartName name) {
  for (size_t i = 0; i < count; ++i) {
    float scale;
    std::memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    check(std::bit_cast<uint32_t>(scale) <= cpu::kFiniteBits, name, ": scale ", i, " of chunk ",
          chunk, " is ", scale, ", must be finite and not negative");
  }
}

void FixedFormat::open_body(Part& part, PartName name, Workspace::Frame&, ThreadPool& pool) const {
  const size_t expected = body_bytes(part.region.numel());
  check(part.body.size() == expected, name, ": body is ", part.body.size(), " bytes, must be ",
        expected);
  if (!checks_records()) {
    return;
  }
  const size_t first = part.region.begin / kChunk;
  cpu::for_each_chunk(pool, chunks_of(part.region.numel()), [&](size_t i) {
    check_record(part.body.data() + i * record_bytes(kChunk), first + i, name);
  });
}

const std::byte* FixedFormat::record_of(const Part& part, size_t chunk) const {
  return part.body.data() + (chunk - part.region.begin / kChunk) * record_bytes(kChunk);
}

void FixedFormat::add_chunk(const Part& part, size_t chunk, std::span<float> sum) const {
  decode(record_of(part, chunk), sum);
}

bool FixedFormat::sum_records(std::span<const std::byte* const> records, float scale, bool,
                              std::span<float> out) const {
  std::ranges::fill(out, 0.0f);
  for (const std::byte* const record : records) {
    decode(record, out);
  }
  cpu::multiply(out, scale, out);
  return records_stay_finite(records, scale, out.size()) || cpu::all_finite(out);
}

float FixedFormat::largest_scale(const std::byte* scales, size_t count) {
  float largest = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    float scale;
    std::memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    largest = std::max(largest, scale);  // checked by now: finite and not negative
  }
  return largest;
}

bool FixedFormat::records_stay_finite(std::span<const std::byte* const> records, float scale,
                                      size_t numel) const {
  double most = 0;
  for (const std::byte* const record : records) {
    most += double{most_in_record(record, numel)};
  }
  return stays_finite(most, scale);
}

size_t FixedFormat::records_of(std::span<const Part> parts, size_t chunk,
                               std::span<const std::byte*, kMostParts> records) const {
  size_t count = 0;
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      records[count++] = record_of(part, chunk);
    }
  }
  return count;
}

void FixedFormat::read_sum(std::span<const Part> parts, size_t chunk, float scale,
                           std::span<float> out) const {
  if (parts.size() > kMostParts) {
    ChunkedFormat::read_sum(parts, chunk, scale, out);
    return;
  }
  const std::byte* records[kMostParts];
  sum_records({records, records_of(parts, chunk, records)}, scale, false, out);
}

bool FixedFormat::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                            Gradient out) const {
  if (parts.size() > kMostParts) {
    return ChunkedFormat::write_sum(parts, chunk, scale, out);
  }
  const std::byte* memory[kMostParts];
  const std::span<const std::byte* const> records(memory, records_of(parts, chunk, memory));
  if (out.dtype == DType::kFloat32) {
    return sum_records(records, scale, is_streaming(shape().numel), out.as<float>());
  }
  alignas(64) float values[kChunk];
  sum_records(records, scale, false, {values, out.numel});
  return cpu::narrow_finite({values, out.numel}, out, cpu::Caching::kNormal);
}

bool FixedFormat::encode_chunk(const Chunk& chunk, std::byte* record) const {
  const size_t numel = chunk.region.numel();
  alignas(64) float values[kChunk];
  alignas(64) float decoded_values[kChunk];
  const std::span<float> room(values, numel);
  const std::span<float> decoded(decoded_values, chunk.e_next.size());
  std::span<const float> x = room;
  if (chunk.g.dtype == DType::kFloat32) {
    x = chunk.g.as<float>();
  } else {
    cpu::widen(chunk.g, room);
  }
  if (!chunk.e.empty()) {
    cpu::add(x, chunk.e, room);
    x = room;
  }
  const bool finite = encode(x, chunk.region, chunk.draw, record, decoded);
  const bool in_place = chunk.e_next.data() == chunk.g.data;
  if (chunk.e_next.empty() || (in_place && !finite)) {
    return finite;
  }
  if (chunk.streaming) {
    cpu::subtract(x, decoded, decoded);
    cpu::copy_past_caches(decoded, chunk.e_next);
  } else {
    cpu::subtract(x, decoded, chunk.e_next);
  }
  return finite;
}

void FixedFormat::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                        const Work& work) {
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const size_t stride = record_bytes(kChunk);
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(g.numel), [&](size_t index) {
    const Region region = region_of(index);
    const Chunk chunk{.g = {static_cast<const std::byte*>(g.data) + region.begin * size_of(g.dtype),
                            region.numel(), g.dtype},
                      .e = e.empty() ? e : e.subspan(region.begin, region.numel()),
                      .e_next =
                          e_next.empty() ? e_next : e_next.subspan(region.begin, region.numel()),
                      .region = region,
                      .draw = {work.step, compress_stage(shape().rank)},
                      .streaming = is_streaming(g.numel) && e_next.data() != g.data};
    if (!encode_chunk(chunk, body + index * stride)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  write_header(out, whole(), finite ? 0 : kFlagNonFinite, capacity_for(whole()));
}

void FixedFormat::write_accumulated(Residual x, Payload out, const Work& work) {
  write(view_of(std::span<const float>(x)), {}, x, out, work);
  if ((read_header(out).flags & kFlagNonFinite) != 0) {
    add_back(out.data() + sizeof(PayloadHeader), x, work.pool);
  }
}

void FixedFormat::add_back(const std::byte* body, Residual x, ThreadPool& pool) const {
  cpu::for_each_chunk(pool, chunks_of(x.size()), [&](size_t index) {
    const Region region = region_of(index);
    alignas(64) float values[kChunk];
    const std::span<float> decoded(values, region.numel());
    const std::byte* const records[] = {body + index * record_bytes(kChunk)};
    sum_records(records, 1.0f, false, decoded);
    if (cpu::max_magnitude_bits(decoded) <= cpu::kFiniteBits) {  // else nothing was taken
      const Residual mine = x.subspan(region.begin, region.numel());
      cpu::add(mine, decoded, mine);
    }
  });
}

void FixedFormat::write_slice(const Part& part, Region region, Payload out) const {
  const size_t first = (region.begin - part.region.begin) / kChunk;
  const size_t bytes = body_bytes(region.numel());
  write_header(out, region, part.flags, sizeof(PayloadHeader) + bytes);
  std::copy_n(part.body.data() + first * record_bytes(kChunk), bytes,
              out.data() + sizeof(PayloadHeader));
}

void FixedFormat::write_merged(std::span<const Part> parts, const MergeInput& input,
                               Residual e_next, Payload out, const Work& work) const {
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const size_t first = input.region.begin / kChunk;
  uint8_t flags = 0;
  for (const Part& part : parts) {
    flags |= part.flags;
  }
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(input.region.numel()), [&](size_t i) {
    const Region region = region_of(first + i);
    alignas(64) float sum_values[kChunk];
    alignas(64) float scaled_values[kChunk];
    alignas(64) float decoded_values[kChunk];
    const std::span<float> sum(sum_values, region.numel());
    const std::span<float> scaled(scaled_values, region.numel());
    const std::span<float> decoded(decoded_values, region.numel());
    sum_chunk(parts, first + i, sum);
    cpu::multiply(sum, input.scale, scaled);
    bool all_finite = encode(scaled, region, {work.step, merge_stage(shape().rank, input.meeting)},
                             body + i * record_bytes(kChunk), decoded);
    if (!e_next.empty()) {
      const Residual kept = e_next.subspan(region.begin, region.numel());
      cpu::put_back(sum, decoded, input.scale, kept);
      all_finite = all_finite && cpu::all_finite(kept);  // else it would never be sent again
    }
    if (!all_finite) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  write_header(out, input.region, finite ? flags : flags | kFlagNonFinite,
               capacity_for(input.region));
}

}  // namespace gradwire
