#include "gradwire/kernels/compress/internal/chunked.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>

#include "gradwire/kernels/compress/internal/velocity.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

ChunkedFormat::ChunkedFormat(const CompressorSpec& spec, CompressorShape shape, Coding coding)
    : Format(spec, std::move(shape)),
      coding_(coding),
      text_(to_string(spec)),
      fingerprint_(fingerprint(spec)) {}

Region ChunkedFormat::region_of(size_t chunk) const {
  return {chunk * kChunk, std::min((chunk + 1) * kChunk, shape().numel)};
}

PayloadHeader ChunkedFormat::header_of(Region region, uint8_t flags, size_t bytes,
                                       uint32_t variant) const {
  return {.format = coding_.format,
          .values = static_cast<uint8_t>(coding_.values),
          .flags = flags,
          .spec_fingerprint = fingerprint_,
          .first_chunk = static_cast<uint32_t>(region.begin / kChunk),
          .numel = static_cast<uint32_t>(region.numel()),
          .variant = variant,
          .bytes = bytes};
}

void ChunkedFormat::write_header(Payload out, Region region, uint8_t flags, size_t bytes,
                                 uint32_t variant) const {
  const PayloadHeader header = header_of(region, flags, bytes, variant);
  std::memcpy(out.data(), &header, sizeof header);
}

void ChunkedFormat::flag_overflow(bool finite, Payload out) {
  if (!finite) {
    out[offsetof(PayloadHeader, flags)] |= std::byte{kFlagNonFinite};
  }
}

Part ChunkedFormat::open(ConstPayload payload, PartName name, Workspace::Frame& frame,
                         ThreadPool& pool) const {
  PayloadHeader header;
  try {
    header = read_header(payload);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(name, ": ", error.what()));
  }
  check(header.format == coding_.format, name, ": format is ", static_cast<int>(header.format),
        ", must be ", static_cast<int>(coding_.format));
  check(header.values == static_cast<uint8_t>(coding_.values), name, ": value codec is ",
        int{header.values}, ", must be ", static_cast<int>(coding_.values));
  check((header.flags & ~kFlagNonFinite) == 0, name, ": flags are ", int{header.flags},
        ", must be 0 or ", int{kFlagNonFinite});
  check(header.spec_fingerprint == fingerprint_, name, ": spec fingerprint is ",
        header.spec_fingerprint, ", must be ", fingerprint_, " (", text_, ")");
  check(header.variant <= last_variant(), name, ": variant is ", header.variant,
        ", must be at most ", last_variant());
  const size_t begin = size_t{header.first_chunk} * kChunk;
  const size_t numel = shape().numel;
  check(begin <= numel && header.numel <= numel - begin, name, ": covers ", header.numel,
        " elements from ", begin, " on, must lie within ", numel);
  const Region region{begin, begin + header.numel};
  check(region.end % kChunk == 0 || region.end == numel, name, ": ends at element ", region.end,
        ", must end on a multiple of ", kChunk, " or at ", numel);
  check(header.bytes <= capacity_for(region), name, ": length is ", header.bytes,
        " bytes, must be at most ", capacity_for(region));
  Part part{region, header.flags, header.variant,
            payload.subspan(sizeof header, header.bytes - sizeof header), {}};
  open_body(part, name, frame, pool);
  return part;
}

std::span<const Part> ChunkedFormat::open_all(std::span<const ConstPayload> payloads,
                                              Workspace::Frame& frame, ThreadPool& pool) const {
  const std::span<Part> parts = frame.take<Part>(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    std::construct_at(&parts[i], open(payloads[i], PartName{i}, frame, pool));
  }
  return parts;
}

void ChunkedFormat::compress(const Pass& pass, Payload out, Context& context) {
  enqueue(context, [this, pass, out](Work work) {
    if (pass.accumulated()) {
      write_accumulated(pass.e_next, out, work);
      return;
    }
    work.second = pass.second;
    work.given = &pass.g;
    ConstGradient x = pass.g;
    if (pass.velocity != nullptr) {
      const std::span<float> next = pass.velocity->advance(pass.g, work.workspace, work.pool);
      x = view_of(std::span<const float>(next));
      work.masked = spec().feedback.ef21 ? std::span<float>{} : next;
    }
    if (pass.e.empty() || (spec().feedback.decay == 1 && !spec().feedback.ef21)) {
      write(x, pass.e, pass.e_next, out, work);
    } else {
      write_apart(x, pass.e, pass.e_next, out, work);
    }
  });
}

void ChunkedFormat::take_first(std::span<const ConstPayload> parts, float scale, Context& context) {
  enqueue(context, [this, parts, scale](const Work& work) {
    Workspace::Frame frame(work.workspace);
    write_first(open_all(parts, frame, work.pool), scale, work);
  });
}

void ChunkedFormat::check_first(ConstPayload part, Context& context) {
  with_part(part, context,
            [this](const Part& opened, const Work& work) { check_first_part(opened, work.step); });
}

// The sum goes where the next residual belongs, and the payload is taken from it there.
void ChunkedFormat::write_apart(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                                const Work& work) {
  const auto decay = static_cast<float>(spec().feedback.decay);
  cpu::for_each_chunk(work.pool, chunks_of(g.numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    const Residual x = e_next.subspan(region.begin, region.numel());
    cpu::widen(g.subview(region.begin, region.numel()), x);
    cpu::add_scaled(x, decay, e.subspan(region.begin, region.numel()), x);
  });
  write_accumulated(e_next, out, work);
  if (!spec().feedback.ef21) {
    return;
  }
  // D is what is missing there: x - (x - D).
  std::atomic<bool> finite{true};
  large_estimate_ = false;
  cpu::for_each_chunk(work.pool, chunks_of(g.numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    const ConstResidual before = e.subspan(region.begin, region.numel());
    const Residual left = e_next.subspan(region.begin, region.numel());
    alignas(64) float values[kChunk];
    const std::span<float> sent(values, region.numel());
    cpu::widen(g.subview(region.begin, region.numel()), sent);
    cpu::add(sent, before, sent);
    cpu::subtract(sent, left, sent);
    cpu::subtract(before, sent, left);
    const uint32_t most = cpu::max_magnitude_bits(left);
    if (most > cpu::kFiniteBits) {
      finite.store(false, std::memory_order_relaxed);
    }
    if (most > std::bit_cast<uint32_t>(0x1p126f)) {
      large_estimate_.store(true, std::memory_order_relaxed);
    }
  });
  flag_overflow(finite, out);
}

void ChunkedFormat::add_part(const Part& part, Residual x, const Work& work) {
  const size_t first = part.region.begin / kChunk;
  cpu::for_each_chunk(work.pool, chunks_of(part.region.numel()), [&](size_t i) {
    const Region region = region_of(first + i);
    add_chunk(part, first + i, x.subspan(region.begin, region.numel()));
  });
}

void ChunkedFormat::restore(ConstPayload payload, Residual x, Context& context) {
  with_part(payload, context, [this, x](const Part& part, const Work& work) {
    if ((part.flags & kFlagNonFinite) == 0) {
      add_part(part, x, work);
    }
  });
}

void ChunkedFormat::slice(const SliceInput& input, Residual e_next, Payload out, Context& context) {
  with_part(input.payload, context, [this, input, e_next, out](const Part& part, const Work& work) {
    const Region region = input.region;
    check(part.region.begin <= region.begin && region.end <= part.region.end, spec().name,
          ": region is [", region.begin, ", ", region.end, "), but the payload covers [",
          part.region.begin, ", ", part.region.end, ")");
    if (input.most_entries == 0) {
      write_slice(part, region, out);
    } else {
      write_slice_at_most(part, input, e_next, out, work);
    }
  });
}

void ChunkedFormat::merge(const MergeInput& input, Residual e_next, Payload out, Context& context) {
  enqueue(context, [this, input, e_next, out](const Work& work) {
    Workspace::Frame frame(work.workspace);
    const std::span<const Part> parts = open_all(input.slices, frame, work.pool);
    for (size_t i = 0; i < parts.size(); ++i) {
      check(parts[i].region == input.region, PartName{i}, ": covers [", parts[i].region.begin, ", ",
            parts[i].region.end, "), must cover [", input.region.begin, ", ", input.region.end,
            ")");
    }
    write_merged(parts, input, e_next, out, work);
  });
}

}  // namespace gradwire
