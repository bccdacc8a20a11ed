// randomk: K elements of every chunk of 4096, of a shorter last one of len elements
// max(1, ceil(K * len / 4096)), chosen at random and by all ranks alike: no index travels, and
// payloads add up value by value. The choice follows from seed, step and the group's place in its
// parameters. Wangni et al., arXiv:1710.09854; with error feedback: Stich et al., arXiv:1809.07599.
//   with error feedback     D = x at the chosen elements, 0 elsewhere; e_next = (g + e) - D
//   without                 D = x * len / K there: the mean over all choices is x

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/drawn_group.h"
#include "gradwire/kernels/compress/internal/rounding_numbers.h"
#include "gradwire/kernels/compress/internal/value_run.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/draw.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/kept_in_chunk.h"
#include "gradwire/kernels/ops/sparse.h"

namespace gradwire {
namespace {

/// Room for the chosen elements of one chunk.
struct Room {
  uint16_t indices[kChunk];
  alignas(64) float values[kChunk];
  alignas(64) float decoded[kChunk];
};

class RandomK final : public ChunkedFormat {
 public:
  RandomK(const CompressorSpec& spec, CompressorShape shape)
      : ChunkedFormat(spec, std::move(shape), {PayloadFormat::kDrawn, spec.codec.values}),
        per_chunk_(static_cast<uint32_t>(kept_elements(spec.choice.density, kChunk))),
        run_(spec),
        numbers_(this->shape()) {}

  FormatTraits traits() const override {
    return {.combine = run_.has_scale() ? Combine::kGather : Combine::kSum, .fixed_length = true};
  }
  size_t capacity_for(Region region) const override {
    return sizeof(PayloadHeader) + body_bytes(region.numel());
  }
  uint32_t last_variant() const override { return std::numeric_limits<uint32_t>::max(); }

 protected:
  void open_body(Part& part, PartName name, Workspace::Frame& frame,
                 ThreadPool& pool) const override;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const override;
  bool write_sum(std::span<const Part> parts, size_t chunk, float scale,
                 Gradient out) const override;
  float most_in(const Part& part, size_t chunk) const override;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) override;
  void write_accumulated(Residual x, Payload out, const Work& work) override;
  void write_slice(const Part& part, Region region, Payload out) const override;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const override;

 private:
  /// The 32 bits that say which elements this group chooses in `step`.
  uint32_t draw_of(uint32_t step) const { return draw_in_step(drawn_group(shape()), step); }
  size_t kept(size_t numel) const {
    return kept_in_chunk(per_chunk_, static_cast<uint32_t>(numel));
  }
  size_t record_bytes(size_t numel) const {
    return (run_.has_scale() ? sizeof(bfloat16) : 0) + run_.bytes(kept(numel));
  }
  size_t body_bytes(size_t numel) const {
    const size_t tail = numel % kChunk;
    return numel / kChunk * record_bytes(kChunk) + (tail > 0 ? record_bytes(tail) : 0);
  }
  /// Which elements of `chunk` (of the group) the draw chooses.
  std::span<const uint16_t> choose(uint32_t draw, size_t chunk, Room& room) const {
    const size_t numel = region_of(chunk).numel();
    const std::span<uint16_t> chosen(room.indices, kept(numel));
    cpu::draw_in_chunk(draw, static_cast<uint32_t>(chunk), numel, chosen);
    return chosen;
  }
  const std::byte* record_of(const Part& part, size_t chunk) const {
    return part.body.data() + (chunk - part.region.begin / kChunk) * record_bytes(kChunk);
  }
  /// Where values come from, and which random numbers round them.
  struct Choice {
    size_t chunk;  // of the group
    std::span<const uint16_t> indices;
    Draw draw;
  };
  /// Values that are not finite, which a flag must tell, are sent as zeros.
  std::span<const float> encode(std::span<float> values, Choice choice, std::byte* record,
                                std::span<float> decoded) const;
  std::span<const float> decode(const std::byte* record, std::span<float> values) const;
  std::span<const float> values_of(const Part& part, size_t chunk, std::span<float> room) const {
    return decode(record_of(part, chunk), room.first(kept(region_of(chunk).numel())));
  }
  /// Makes an estimate of the whole chunk of what is sent without feedback.
  void scale_up(size_t numel, std::span<float> values) const;

  const uint32_t per_chunk_;
  const ValueRun run_;
  const RoundingNumbers numbers_;
};

bool covers(const Part& part, size_t chunk) {
  return chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end;
}

void RandomK::scale_up(size_t numel, std::span<float> values) const {
  if (spec().feedback.on) {
    return;
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float factor = static_cast<float>(numel) / static_cast<float>(values.size());
  for (float& value : values) {  // as casts do: what is finite stays finite, infinity stays
    const float scaled = value * factor;
    value =
        value >= -kLargest && value <= kLargest ? std::clamp(scaled, -kLargest, kLargest) : value;
  }
}

std::span<const float> RandomK::encode(std::span<float> values, Choice choice, std::byte* record,
                                       std::span<float> decoded) const {
  if (!cpu::all_finite(values)) {
    std::ranges::fill(values, 0.0f);
  }
  const size_t scale_bytes = run_.has_scale() ? sizeof(bfloat16) : 0;
  const std::span<float> sent = decoded.first(values.size());
  uint16_t random_memory[kChunk];
  const std::span<uint16_t> random(random_memory, run_.draws() ? values.size() : 0);
  if (run_.draws()) {
    numbers_.fill_chosen(region_of(choice.chunk), choice.indices, choice.draw, random);
  }
  const bfloat16 scale = run_.write(values, random, sent, record + scale_bytes);
  std::memcpy(record, &scale, scale_bytes);
  return sent;
}

std::span<const float> RandomK::decode(const std::byte* record, std::span<float> values) const {
  bfloat16 scale{0};
  const size_t scale_bytes = run_.has_scale() ? sizeof scale : 0;
  std::memcpy(&scale, record, scale_bytes);
  run_.read(record + scale_bytes, scale, values);
  return values;
}

void RandomK::open_body(Part& part, PartName name, Workspace::Frame&, ThreadPool&) const {
  const size_t expected = body_bytes(part.region.numel());
  check(part.body.size() == expected, name, ": body is ", part.body.size(), " bytes, must be ",
        expected);
  const size_t first = part.region.begin / kChunk;
  for (size_t i = 0; run_.has_scale() && i < chunks_of(part.region.numel()); ++i) {
    bfloat16 scale;
    std::memcpy(&scale, record_of(part, first + i), sizeof scale);
    check(scale.bits < 0x7F80, name, ": scale of chunk ", first + i, " is ", to_float(scale),
          ", must be finite and not negative");
  }
}

void RandomK::add_chunk(const Part& part, size_t chunk, std::span<float> sum) const {
  Room room;
  cpu::accumulate(values_of(part, chunk, room.values), choose(part.variant, chunk, room), sum);
}

float RandomK::most_in(const Part& part, size_t chunk) const {
  const std::byte* const record = record_of(part, chunk);
  bfloat16 scale{0};
  const size_t scale_bytes = run_.has_scale() ? sizeof scale : 0;
  std::memcpy(&scale, record, scale_bytes);
  return run_.most(record + scale_bytes, scale, kept(region_of(chunk).numel()));
}

// Values of one choice add up before they are put in their places.
bool RandomK::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                        Gradient out) const {
  std::optional<uint32_t> draw;
  for (const Part& part : parts) {
    if (covers(part, chunk) && draw.value_or(part.variant) != part.variant) {
      return ChunkedFormat::write_sum(parts, chunk, scale, out);
    }
    if (covers(part, chunk)) {
      draw = part.variant;
    }
  }
  alignas(64) float dense[kChunk];
  const bool in_place = out.dtype == DType::kFloat32;
  const std::span<float> total = in_place ? out.as<float>() : std::span(dense, out.numel);
  std::ranges::fill(total, 0.0f);
  bool finite = true;
  if (draw) {
    Room room;
    const std::span<const uint16_t> chosen = choose(*draw, chunk, room);
    const std::span<float> sum(room.values, chosen.size());
    std::ranges::fill(sum, 0.0f);
    for (const Part& part : parts) {
      if (covers(part, chunk)) {
        cpu::add(sum, values_of(part, chunk, room.decoded), sum);
      }
    }
    cpu::multiply(sum, scale, sum);
    finite = cpu::all_finite(sum);
    for (size_t j = 0; j < chosen.size(); ++j) {
      total[chosen[j]] = sum[j];
    }
  }
  if (!in_place) {
    cpu::narrow(total, out);
  }
  return finite;
}

void RandomK::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                    const Work& work) {
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const uint32_t draw = draw_of(work.step);
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(g.numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    alignas(64) float dense[kChunk];
    const ConstGradient mine = g.subview(region.begin, region.numel());
    const std::span<float> x = e_next.empty() ? std::span(dense, region.numel())
                                              : e_next.subspan(region.begin, region.numel());
    cpu::widen(mine, x);
    if (!e.empty()) {
      cpu::add(x, e.subspan(region.begin, region.numel()), x);
    }
    if (!cpu::all_finite(x)) {
      finite.store(false, std::memory_order_relaxed);
    }
    Room room;
    const std::span<const uint16_t> chosen = choose(draw, chunk, room);
    const std::span<float> values(room.values, chosen.size());
    cpu::gather(x, chosen, values);
    scale_up(region.numel(), values);
    const Choice choice{chunk, chosen, {work.step, compress_stage(shape().rank)}};
    const auto sent = encode(values, choice, body + chunk * record_bytes(kChunk), room.decoded);
    for (size_t j = 0; j < sent.size() && !e_next.empty(); ++j) {
      x[chosen[j]] -= sent[j];
    }
    for (size_t j = 0; j < sent.size() && !work.masked.empty(); ++j) {
      work.masked[region.begin + chosen[j]] = 0.0f;
    }
  });
  write_header(out, whole(), finite ? 0 : kFlagNonFinite, capacity_for(whole()), draw);
}

void RandomK::write_accumulated(Residual x, Payload out, const Work& work) {
  write(view_of(std::span<const float>(x)), {}, {}, out, work);
  if ((read_header(out).flags & kFlagNonFinite) != 0) {
    return;
  }
  const uint32_t draw = draw_of(work.step);
  const std::byte* const body = out.data() + sizeof(PayloadHeader);
  cpu::for_each_chunk(work.pool, chunks_of(x.size()), [&](size_t chunk) {
    Room room;
    const std::span<const uint16_t> chosen = choose(draw, chunk, room);
    const auto sent = decode(body + chunk * record_bytes(kChunk), {room.values, chosen.size()});
    for (size_t j = 0; j < sent.size(); ++j) {
      x[chunk * kChunk + chosen[j]] -= sent[j];
    }
  });
}

void RandomK::write_slice(const Part& part, Region region, Payload out) const {
  const size_t bytes = body_bytes(region.numel());
  write_header(out, region, part.flags, sizeof(PayloadHeader) + bytes, part.variant);
  if (bytes > 0) {
    std::copy_n(record_of(part, region.begin / kChunk), bytes, out.data() + sizeof(PayloadHeader));
  }
}

void RandomK::write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                           Payload out, const Work& work) const {
  const uint32_t draw = parts.empty() ? draw_of(work.step) : parts.front().variant;
  uint8_t flags = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    check(parts[i].variant == draw, PartName{i}, ": variant is ", parts[i].variant, ", must be ",
          draw, " as of payload part 0: the same elements");
    flags |= parts[i].flags;
  }
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const size_t first = input.region.begin / kChunk;
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(input.region.numel()), [&](size_t i) {
    const Region region = region_of(first + i);
    Room room;
    const size_t count = kept(region.numel());
    alignas(64) float sum_values[kChunk];
    const std::span<float> sum(sum_values, count);
    std::ranges::fill(sum, 0.0f);
    for (const Part& part : parts) {
      cpu::add(sum, values_of(part, first + i, room.values), sum);
    }
    const std::span<float> scaled(room.values, count);
    cpu::multiply(sum, input.scale, scaled);
    if (!cpu::all_finite(scaled)) {
      finite.store(false, std::memory_order_relaxed);
    }
    const std::span<const uint16_t> chosen = choose(draw, first + i, room);
    const Choice choice{first + i, chosen, {work.step, merge_stage(shape().rank, input.meeting)}};
    const auto sent = encode(scaled, choice, body + i * record_bytes(kChunk), room.decoded);
    if (e_next.empty()) {
      return;
    }
    const std::span<float> left(room.values, count);
    const auto residual = e_next.subspan(region.begin, region.numel());
    cpu::gather(residual, chosen, left);
    cpu::put_back(sum, sent, input.scale, left);
    if (!cpu::all_finite(left)) {  // it would never be sent again
      finite.store(false, std::memory_order_relaxed);
    }
    for (size_t j = 0; j < count; ++j) {
      residual[chosen[j]] = left[j];
    }
  });
  write_header(out, input.region, finite ? flags : flags | kFlagNonFinite,
               capacity_for(input.region), draw);
}

}  // namespace

std::unique_ptr<ChunkedFormat> make_randomk(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<RandomK>(spec, std::move(shape));
}

}  // namespace gradwire
