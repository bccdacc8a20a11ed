#include "gradwire/kernels/compress/internal/chunked.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>

#include "gradwire/kernels/compress/internal/arguments.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

ChunkedCompressor::ChunkedCompressor(const CompressorSpec& spec, CompressorShape shape,
                                     Coding coding)
    : Compressor(spec, std::move(shape)),
      velocity_(keeps_velocity(spec) ? std::make_unique<Velocity>(this->shape().numel) : nullptr),
      coding_(coding),
      text_(to_string(spec)),
      fingerprint_(fingerprint(spec)) {}

void ChunkedCompressor::check_on_cpu(const Context& context) const {
  check(context.stream.device().type == DeviceType::kCpu, spec().name,
        ": the stream is a CUDA stream, must be a CPU stream");
  check(context.workspace.device().type == DeviceType::kCpu, spec().name,
        ": the workspace is of a GPU, must be of the CPU");
}

void ChunkedCompressor::check_covers(const Part& part, Region region) const {
  check(part.region.begin <= region.begin && region.end <= part.region.end, spec().name,
        ": region is [", region.begin, ", ", region.end, "), but the payload covers [",
        part.region.begin, ", ", part.region.end, ")");
}

Region ChunkedCompressor::region_of(size_t chunk) const {
  return {chunk * kChunk, std::min((chunk + 1) * kChunk, shape().numel)};
}

void ChunkedCompressor::check_region(Region region) const {
  const size_t numel = shape().numel;
  check(region.begin <= region.end && region.end <= numel, spec().name, ": region is [",
        region.begin, ", ", region.end, "), must lie within [0, ", numel, ")");
  check(region.begin % kChunk == 0 && (region.end % kChunk == 0 || region.end == numel),
        spec().name, ": region is [", region.begin, ", ", region.end,
        "), must begin and end on multiples of ", kChunk);
}

size_t ChunkedCompressor::slice_capacity_bytes(Region region) const {
  check_region(region);
  return capacity_for(region);
}

PayloadHeader ChunkedCompressor::header_of(Region region, uint8_t flags, size_t bytes,
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

void ChunkedCompressor::write_header(Payload out, Region region, uint8_t flags, size_t bytes,
                                     uint32_t variant) const {
  const PayloadHeader header = header_of(region, flags, bytes, variant);
  std::memcpy(out.data(), &header, sizeof header);
}

void ChunkedCompressor::flag_overflow(bool finite, Payload out) {
  if (!finite) {
    out[offsetof(PayloadHeader, flags)] |= std::byte{kFlagNonFinite};
  }
}

Part ChunkedCompressor::open(ConstPayload payload, PartName name, Workspace::Frame& frame,
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

std::span<const Part> ChunkedCompressor::open_all(std::span<const ConstPayload> payloads,
                                                  Workspace::Frame& frame, ThreadPool& pool) const {
  const std::span<Part> parts = frame.take<Part>(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    std::construct_at(&parts[i], open(payloads[i], PartName{i}, frame, pool));
  }
  return parts;
}

void ChunkedCompressor::compress(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                                 Context& context) {
  enqueue_write(g, e, e_next, out, false, context);
}

void ChunkedCompressor::compress_second(ConstGradient g, ConstResidual e, Residual e_next,
                                        Payload out, Context& context) {
  if (rounds() != 2) {
    Compressor::compress_second(g, e, e_next, out, context);
  }
  enqueue_write(g, e, e_next, out, true, context);
}

void ChunkedCompressor::take_first(std::span<const ConstPayload> parts, float scale,
                                   Context& context) {
  if (rounds() != 2) {
    Compressor::take_first(parts, scale, context);
  }
  check_on_cpu(context);
  check_scale(*this, scale);
  check_payloads(*this, parts);
  context.stream.enqueue([this, parts, scale, &stream = context.stream,
                          &workspace = context.workspace, step = step()] {
    Workspace::Frame frame(workspace);
    write_first(open_all(parts, frame, stream.pool()), scale, {stream.pool(), workspace, step});
  });
}

void ChunkedCompressor::check_first(ConstPayload part, Context& context) {
  if (rounds() != 2) {
    Compressor::check_first(part, context);
  }
  with_part(part, context,
            [this](const Part& opened, const Work& work) { check_first_part(opened, work.step); });
}

void ChunkedCompressor::enqueue_write(ConstGradient g, ConstResidual e, Residual e_next,
                                      Payload out, bool second, Context& context) {
  check_on_cpu(context);
  check_gradient(*this, g);
  check_residuals(*this, e, e_next);
  check_room(*this, out, capacity_bytes());
  context.stream.enqueue(
      [this, g, e, e_next, out, second, &stream = context.stream, &workspace = context.workspace,
       step = step()] {
        const Work work{stream.pool(), workspace, step, second, &g};
        const ConstGradient x = velocity_ == nullptr ? g : accelerate(g, work);
        if (e.empty() || (spec().decay == 1 && !spec().ef21)) {
          write(x, e, e_next, out, work);
        } else {
          write_apart(x, e, e_next, out, work);
        }
      });
}

void ChunkedCompressor::commit() {
  Compressor::commit();
  if (velocity_ != nullptr) {
    velocity_->commit();
  }
}

void ChunkedCompressor::set_step(uint32_t step) {
  Compressor::set_step(step);
  if (velocity_ != nullptr) {
    velocity_->clear();
  }
}

std::span<float> ChunkedCompressor::velocity() {
  return velocity_ == nullptr ? std::span<float>{} : velocity_->committed();
}

void ChunkedCompressor::read_velocity(Residual to, Context& context) {
  check_on_cpu(context);
  check_velocity(*this, "velocity to", to);
  context.stream.enqueue([this, to] { std::ranges::copy(velocity(), to.begin()); });
}

void ChunkedCompressor::write_velocity(ConstResidual from, Context& context) {
  check_on_cpu(context);
  check_velocity(*this, "velocity from", from);
  context.stream.enqueue([this, from] { std::ranges::copy(from, velocity().begin()); });
}

size_t ChunkedCompressor::kept_bytes() const {
  return velocity_ == nullptr ? 0 : 2 * shape().numel * sizeof(float);
}

std::span<float> ChunkedCompressor::velocity_to_mask() {
  return velocity_ == nullptr || spec().ef21 ? std::span<float>{} : velocity_->next();
}

ConstGradient ChunkedCompressor::accelerate(ConstGradient g, const Work& work) {
  VelocityRates rates = velocity_rates(spec());
  rates.taken *= gradient_factor(g, work);
  velocity_->advance(g, rates, work.pool);
  return view_of(std::span<const float>(velocity_->next()));
}

// The sum goes where the next residual belongs, and the payload is taken from it there.
void ChunkedCompressor::write_apart(ConstGradient g, ConstResidual e, Residual e_next,
                                    Payload out, const Work& work) {
  const auto decay = static_cast<float>(spec().decay);
  cpu::for_each_chunk(work.pool, chunks_of(g.numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    const Residual x = e_next.subspan(region.begin, region.numel());
    cpu::widen(g.subview(region.begin, region.numel()), x);
    cpu::add_scaled(x, decay, e.subspan(region.begin, region.numel()), x);
  });
  write_accumulated(e_next, out, work);
  if (!spec().ef21) {
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

void ChunkedCompressor::add_part(const Part& part, Residual x, const Work& work) {
  const size_t first = part.region.begin / kChunk;
  cpu::for_each_chunk(work.pool, chunks_of(part.region.numel()), [&](size_t i) {
    const Region region = region_of(first + i);
    add_chunk(part, first + i, x.subspan(region.begin, region.numel()));
  });
}

void ChunkedCompressor::compress_accumulated(Residual x, Payload out, Context& context) {
  check_on_cpu(context);
  check_accumulated(*this, x);
  check_room(*this, out, capacity_bytes());
  context.stream.enqueue([this, x, out, &stream = context.stream, &workspace = context.workspace,
                          step = step()] {
    write_accumulated(x, out, {stream.pool(), workspace, step});
  });
}

void ChunkedCompressor::restore(ConstPayload payload, Residual x, Context& context) {
  check_accumulated(*this, x);
  with_part(payload, context, [this, x](const Part& part, const Work& work) {
    if ((part.flags & kFlagNonFinite) != 0) {
      return;
    }
    add_part(part, x, work);
  });
}

void ChunkedCompressor::slice(ConstPayload payload, Region region, Payload out, Context& context) {
  check_room(*this, out, slice_capacity_bytes(region));
  with_part(payload, context, [this, region, out](const Part& part, const Work&) {
    check_covers(part, region);
    write_slice(part, region, out);
  });
}

void ChunkedCompressor::merge(const MergeInput& input, Residual e_next, Payload out,
                              Context& context) {
  check_on_cpu(context);
  check_room(*this, out, input.most_entries == 0
                             ? slice_capacity_bytes(input.region)
                             : capacity_for_entries(input.region, input.most_entries));
  check_scale(*this, input.scale);
  check_residual(*this, "residual e_next", e_next);
  check_payloads(*this, input.slices);
  context.stream.enqueue([this, input, e_next, out, &stream = context.stream,
                          &workspace = context.workspace, step = step()] {
    Workspace::Frame frame(workspace);
    const std::span<const Part> parts = open_all(input.slices, frame, stream.pool());
    for (size_t i = 0; i < parts.size(); ++i) {
      check(parts[i].region == input.region, PartName{i}, ": covers [", parts[i].region.begin, ", ",
            parts[i].region.end, "), must cover [", input.region.begin, ", ", input.region.end,
            ")");
    }
    write_merged(parts, input, e_next, out, {stream.pool(), workspace, step});
  });
}

}  // namespace gradwire
