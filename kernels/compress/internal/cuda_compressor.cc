#include "gradwire/kernels/compress/internal/cuda_compressor.h"

#include <algorithm>

#include "gradwire/kernels/compress/internal/arguments.h"
#include "gradwire/kernels/compress/internal/dgc.h"
#include "gradwire/kernels/compress/internal/rounding_numbers.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/ops/feedback_cuda.h"
#include "gradwire/kernels/ops/overflow_cuda.h"

namespace gradwire {
namespace {

/// e is written in the steps whose parity is 1, though each single step only reads it.
Residual writable(ConstResidual e) { return {const_cast<float*>(e.data()), e.size()}; }

}  // namespace

CudaCompressor::CudaCompressor(std::unique_ptr<ChunkedCompressor> on_cpu, CompressorShape shape)
    : Compressor(on_cpu->spec(), std::move(shape)),
      on_cpu_(std::move(on_cpu)),
      call_(sizeof(cuda::CallWords), this->shape().device) {
  if (keeps_velocity(spec())) {
    const double limit = spec().clip > 0 ? clip_limit(spec(), this->shape().world_size) : 0;
    velocity_.emplace(CudaVelocity::Options{.numel = this->shape().numel,
                                            .device = this->shape().device,
                                            .rates = velocity_rates(spec()),
                                            .limit = limit,
                                            .decay = static_cast<float>(spec().decay),
                                            .words = step_words()});
  }
}

cuda::CallWords* CudaCompressor::call_words() const {
  return reinterpret_cast<cuda::CallWords*>(call_.data());
}

Buffer CudaCompressor::upload(std::span<const std::byte> source) const {
  Buffer copy(source.size(), shape().device);
  write_memory(source, copy.bytes());
  return copy;
}

cuda::StepWords CudaCompressor::read_words() const {
  return shape().state->read(*cuda::make_stream(shape().device.index));
}

void CudaCompressor::read_memory(std::span<const std::byte> from, std::span<std::byte> to) const {
  const auto stream = cuda::make_stream(shape().device.index);
  copy_bytes(to, {}, from, shape().device, *stream);
  stream->wait();
}

void CudaCompressor::write_memory(std::span<const std::byte> from, std::span<std::byte> to) const {
  const auto stream = cuda::make_stream(shape().device.index);
  copy_bytes(to, shape().device, from, {}, *stream);
  stream->wait();
}

Buffer CudaCompressor::upload_segments() const {
  std::vector<cuda::RandomSegment> table;
  uint64_t end = 0;
  for (const Segment& segment : shape().segments) {
    end += segment.numel;
    table.push_back({end, segment.offset_in_parameter, segment.parameter});
  }
  return spec().rounding == Rounding::kStochastic ? upload(std::as_bytes(std::span(table)))
                                                  : Buffer();
}

cuda::RoundingSource CudaCompressor::rounding_source(const Buffer& segments,
                                                     uint32_t rank_stage) const {
  return {.segments = segments.as<const cuda::RandomSegment>(),
          .step = &step_words()->step,
          .seed = shape().seed,
          .rank_stage = rank_stage};
}

void CudaCompressor::commit() {
  throw DeviceError(concat(spec().name, ": commit() is of CPU compressors, on a GPU "
                                        "DeviceState::commit() commits on a stream"));
}

void CudaCompressor::set_step(uint32_t) {
  throw DeviceError(concat(spec().name, ": set_step() is of CPU compressors, on a GPU "
                                        "DeviceState::set_step() sets it on a stream"));
}

void CudaCompressor::read_velocity(Residual to, Context& context) {
  check_call(context);
  check_velocity(*this, "velocity to", to);
  cuda::read_velocity(velocity_->kept(), to, context.stream);
}

void CudaCompressor::write_velocity(ConstResidual from, Context& context) {
  check_call(context);
  check_velocity(*this, "velocity from", from);
  cuda::write_velocity(velocity_->kept(), from, context.stream);
}

void CudaCompressor::check_call(const Context& context) const {
  const Device expected = shape().device;
  check(context.stream.device() == expected, spec().name, ": the stream is of ",
        name_of(context.stream.device()), ", must be of ", name_of(expected));
  check(context.workspace.device() == expected, spec().name, ": the workspace is of ",
        name_of(context.workspace.device()), ", must be of ", name_of(expected));
}

size_t CudaCompressor::record_bytes() const {
  const Region first{0, std::min(shape().numel, kChunk)};
  return std::max<size_t>(on_cpu_->slice_capacity_bytes(first) - sizeof(PayloadHeader), 1);
}

cuda::ExpectedParts CudaCompressor::expected_parts(Region region, bool exactly) const {
  const size_t numel = shape().numel;
  cuda::ExpectedParts expected{.header = on_cpu_->header_of({}, 0, 0),
                               .last_variant = on_cpu_->last_variant(),
                               .group_numel = numel,
                               .region_begin = region.begin,
                               .region_end = region.end,
                               .region_exactly = exactly};
  if (has_records()) {
    expected.record_bytes = record_bytes();
    if (numel % kChunk != 0) {
      const Region tail{numel / kChunk * kChunk, numel};
      expected.tail_bytes = on_cpu_->slice_capacity_bytes(tail) - sizeof(PayloadHeader);
    }
  }
  return expected;
}

cuda::Seal CudaCompressor::seal_for(Region region, Payload out) const {
  return {.header = on_cpu_->header_of(region, 0, on_cpu_->slice_capacity_bytes(region)),
          .out = out.data(),
          .call = call_words(),
          .status = &step_words()->status};
}

void CudaCompressor::compress(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                              Context& context) {
  write(g, e, e_next, out, false, context);
}

void CudaCompressor::compress_second(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                                     Context& context) {
  if (rounds() != 2) {
    Compressor::compress_second(g, e, e_next, out, context);
  }
  write(g, e, e_next, out, true, context);
}

void CudaCompressor::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                           bool second, Context& context) {
  const ConstGradient given = g;
  check_call(context);
  check_gradient(*this, g);
  check_residuals(*this, e, e_next);
  check_room(*this, out, capacity_bytes());
  const Residual first = writable(e);
  const uint32_t* const parity = &step_words()->parity;
  const Region whole{0, shape().numel};
  cuda::ParitySpan committed(first, e_next, parity);
  const cuda::ParitySpan before = committed, next(e_next, first, parity);
  Workspace::Frame frame(context.workspace);
  const bool in_place = velocity_ && !e.empty() && encodes_in_place();
  std::span<float> x;
  if (velocity_ || (!e.empty() && (spec().decay != 1 || spec().ef21))) {
    x = frame.take<float>(in_place ? 0 : shape().numel);
    if (velocity_) {
      velocity_->accelerate({g, committed, in_place ? next : cuda::ParitySpan(x)}, context);
    } else {
      cuda::add_decayed({g, committed, static_cast<float>(spec().decay)}, x, context.stream);
    }
    g = {in_place ? nullptr : x.data(), shape().numel, DType::kFloat32, shape().device};
    committed = {};
  }
  const cuda::Seal seal = seal_for(whole, out);
  encode({.x = g,
          .given = given,
          .e = committed,
          .e_next = next,
          .put_back = {},
          .scale = 1.0f,
          .region = whole,
          .in_place = in_place,
          .second = second,
          .masked = velocity_ && !spec().ef21 ? velocity_->next() : cuda::ParitySpan(),
          .parts = {},
          .rank_stage = compress_stage(shape().rank),
          .seal = seal,
          .body = out.subspan(sizeof(PayloadHeader))},
         context);
  if (!e.empty() && spec().ef21 && second == (rounds() == 2)) {
    cuda::subtract_sent({x, before, next}, seal, context.stream);
  }
}

std::span<cuda::DevicePart> CudaCompressor::open_any(std::span<const ConstPayload> payloads,
                                                     float scale, Workspace::Frame& frame,
                                                     Context& context) const {
  check_call(context);
  check_scale(*this, scale);
  check_payloads(*this, payloads);
  const auto table = frame.take<cuda::DevicePart>(payloads.size());
  cuda::open_parts(payloads, expected_parts({shape().numel, 0}, false), table, faults_of_parts(),
                   context.stream);
  return table;
}

void CudaCompressor::hold(std::span<const ConstPayload> payloads, float scale, const Holding& to,
                          Context& context) const {
  check_call(context);
  check_scale(*this, scale);
  check_payloads(*this, payloads);
  cuda::open_parts(payloads, expected_parts({shape().numel, 0}, false), to.table,
                   {to.words, &to.words->status}, context.stream);
  cuda::hold_payloads({.parts = to.table,
                       .numel = shape().numel,
                       .scale = scale,
                       .workspace = to.workspace,
                       .words = to.words,
                       .faults = faults_of_parts()},
                      *read_format(), to.source, context.stream);
}

void CudaCompressor::decompress_region(const RegionSum& what, Context& context) {
  // Throws where the region is none of whole chunks.
  static_cast<void>(on_cpu_->slice_capacity_bytes(what.region));
  check_elements(*this, what.sum, what.region.numel());
  check_call(context);
  Workspace::Frame frame(context.workspace);
  add_up({.parts = open_any(what.parts, what.scale, frame, context),
          .scale = what.scale,
          .region = what.region,
          .sum = what.sum,
          .overflow = faults_of_sum(&step_words()->status)},
         context);
}

void CudaCompressor::compress_accumulated(Residual x, Payload out, Context& context) {
  check_call(context);
  check_accumulated(*this, x);
  check_room(*this, out, capacity_bytes());
  const Region whole{0, shape().numel};
  encode({.x = {x.data(), x.size(), DType::kFloat32, shape().device},
          .e = {},
          .e_next = x,
          .put_back = {},
          .scale = 1.0f,
          .region = whole,
          .parts = {},
          .rank_stage = compress_stage(shape().rank),
          .seal = seal_for(whole, out),
          .body = out.subspan(sizeof(PayloadHeader))},
         context);
  // What was taken beside a value that is not finite; a selection takes nothing then.
  if (has_records()) {
    add_back(out.first(capacity_bytes()), cuda::PartsWanted::kFlagged, x, context);
  }
}

void CudaCompressor::restore(ConstPayload payload, Residual x, Context& context) {
  check_call(context);
  check_accumulated(*this, x);
  check_payloads(*this, {&payload, 1});
  add_back(payload, cuda::PartsWanted::kFinite, x, context);
}

void CudaCompressor::add_back(ConstPayload payload, cuda::PartsWanted wanted, Residual x,
                              Context& context) {
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(1);
  const size_t numel = shape().numel;
  cuda::ExpectedParts expected = expected_parts({numel, 0}, false);
  expected.wanted = wanted;
  cuda::open_parts({&payload, 1}, expected, table, faults_of_parts(), context.stream);
  add_up({.parts = table,
          .scale = 1.0f,
          .region = {0, numel},
          .sum = {x.data(), numel, DType::kFloat32, shape().device},
          .onto = true},
         context);
}

void CudaCompressor::slice(ConstPayload payload, Region region, Payload out, Context& context) {
  check_call(context);
  check_room(*this, out, slice_capacity_bytes(region));
  check_payloads(*this, {&payload, 1});
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(1);
  cuda::open_parts({&payload, 1}, expected_parts(region, false), table, faults_of_parts(),
                   context.stream);
  copy_slice({table, region, out}, context);
}

void CudaCompressor::copy_slice(const Slicing& what, Context& context) {
  const size_t bytes = slice_capacity_bytes(what.region);
  cuda::slice_records({.table = what.table,
                       .record_bytes = record_bytes(),
                       .header = on_cpu_->header_of(what.region, 0, bytes),
                       .out = what.out.data()},
                      context.stream);
}

void CudaCompressor::check_merge(const MergeInput& input, Residual e_next, Payload out,
                                 const Context& context) const {
  check_call(context);
  check(input.most_entries == 0, spec().name, ": most_entries is ", input.most_entries,
        ", must be 0 on a GPU");
  check_room(*this, out, slice_capacity_bytes(input.region));
  check_scale(*this, input.scale);
  check_residual(*this, "residual e_next", e_next);
  if (!input.e.empty()) {
    check_residuals(*this, input.e, e_next);
  }
  check_payloads(*this, input.slices);
}

void CudaCompressor::merge(const MergeInput& input, Residual e_next, Payload out,
                           Context& context) {
  check_merge(input, e_next, out, context);
  const Region region = input.region;
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(input.slices.size());
  const auto sum = frame.take<float>(region.numel());
  // The parts' flags go into the call's, and from there into the header that is written.
  cuda::open_parts(input.slices, expected_parts(region, true), table,
                   {step_words(), &call_words()->flags}, context.stream);
  const TensorView view{sum.data(), sum.size(), DType::kFloat32, shape().device};
  add_up({.parts = table,
          .scale = 1.0f,
          .region = region,
          .sum = view,
          .overflow = faults_of_sum(&call_words()->flags)},
         context);
  cuda::ParitySpan put_back(e_next);
  if (!input.e.empty()) {
    put_back = {e_next, writable(input.e), &step_words()->parity};
  }
  if (!e_next.empty()) {
    put_back = put_back.subspan(region.begin, region.numel());
  }
  const cuda::Seal seal = seal_for(region, out);
  encode({.x = view,
          .e = {},
          .e_next = {},
          .put_back = put_back,
          .scale = input.scale,
          .region = region,
          .merging = true,
          .parts = table,
          .rank_stage = merge_stage(shape().rank, input.meeting),
          .seal = seal,
          .body = out.subspan(sizeof(PayloadHeader))},
         context);
  if (!put_back.empty()) {  // what overflows there would never be sent again
    cuda::flag_overflow(put_back, seal, context.stream);
  }
}

std::unique_ptr<Compressor> make_cuda_compressor(const CompressorRow& row,
                                                 const CompressorSpec& spec,
                                                 CompressorShape shape) {
  if (row.on_gpu == nullptr) {
    throw DeviceError(concat(spec.name, ": the shape's device is a GPU, but its row names no form "
                                        "for GPUs (CompressorRow::on_gpu)"));
  }
  const int count = cuda::device_count();
  if (count == 0) {
    throw DeviceError(concat(spec.name, ": the shape's device is a GPU, but there is none: ",
                             cuda::unavailable_reason()));
  }
  check(shape.device.index >= 0 && shape.device.index < count, spec.name,
        ": the shape's device is GPU ", shape.device.index, ", must be in [0, ", count, ")");
  if (shape.state == nullptr) {
    shape.state = std::make_shared<DeviceState>(shape.device);
  }
  check(shape.state->device() == shape.device, "compressor shape: state is of GPU ",
        shape.state->device().index, ", must be of GPU ", shape.device.index);
  CompressorShape twin = shape;
  twin.device = {};
  twin.state = nullptr;
  // Every row makes one: what is not made of chunks has no regions either.
  std::unique_ptr<ChunkedCompressor> on_cpu(
      static_cast<ChunkedCompressor*>(row.make(spec, std::move(twin)).release()));
  return row.on_gpu(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
