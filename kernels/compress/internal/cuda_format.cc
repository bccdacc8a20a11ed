#include "gradwire/kernels/compress/internal/cuda_format.h"

#include <algorithm>

#include "gradwire/kernels/compress/internal/rounding_numbers.h"
#include "gradwire/kernels/compress/internal/velocity.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/ops/feedback_cuda.h"
#include "gradwire/kernels/ops/overflow_cuda.h"

namespace gradwire {
namespace {

/// e is written in the steps whose parity is 1, though each single step only reads it.
Residual writable(ConstResidual e) { return {const_cast<float*>(e.data()), e.size()}; }

}  // namespace

CudaFormat::CudaFormat(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape)
    : Format(on_cpu->spec(), std::move(shape)),
      on_cpu_(std::move(on_cpu)),
      call_(sizeof(cuda::CallWords), this->shape().device) {}

cuda::CallWords* CudaFormat::call_words() const {
  return reinterpret_cast<cuda::CallWords*>(call_.data());
}

Buffer CudaFormat::upload(std::span<const std::byte> source) const {
  Buffer copy(source.size(), shape().device);
  write_memory(source, copy.bytes());
  return copy;
}

cuda::StepWords CudaFormat::read_words() const {
  return shape().state->read(*cuda::make_stream(shape().device.index));
}

void CudaFormat::read_memory(std::span<const std::byte> from, std::span<std::byte> to) const {
  const auto stream = cuda::make_stream(shape().device.index);
  copy_bytes(to, {}, from, shape().device, *stream);
  stream->wait();
}

void CudaFormat::write_memory(std::span<const std::byte> from, std::span<std::byte> to) const {
  const auto stream = cuda::make_stream(shape().device.index);
  copy_bytes(to, shape().device, from, {}, *stream);
  stream->wait();
}

Buffer CudaFormat::upload_segments() const {
  std::vector<cuda::RandomSegment> table;
  uint64_t end = 0;
  for (const Segment& segment : shape().segments) {
    end += segment.numel;
    table.push_back({end, segment.offset_in_parameter, segment.parameter});
  }
  return spec().codec.rounding == Rounding::kStochastic ? upload(std::as_bytes(std::span(table)))
                                                        : Buffer();
}

cuda::RoundingSource CudaFormat::rounding_source(const Buffer& segments,
                                                 uint32_t rank_stage) const {
  return {.segments = segments.as<const cuda::RandomSegment>(),
          .step = &step_words()->step,
          .seed = shape().seed,
          .rank_stage = rank_stage};
}

void CudaFormat::take_first(std::span<const ConstPayload>, float, Context&) {
  throw InvalidArgument(concat(to_string(spec()),
                               ": has two rounds, and no way to take the first payloads on a GPU"));
}

size_t CudaFormat::record_bytes() const {
  const Region first{0, std::min(shape().numel, kChunk)};
  return std::max<size_t>(on_cpu_->capacity_for(first) - sizeof(PayloadHeader), 1);
}

cuda::ExpectedParts CudaFormat::expected_parts(Region region, bool exactly) const {
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
      expected.tail_bytes = on_cpu_->capacity_for(tail) - sizeof(PayloadHeader);
    }
  }
  return expected;
}

cuda::Seal CudaFormat::seal_for(Region region, Payload out) const {
  return {.header = on_cpu_->header_of(region, 0, on_cpu_->capacity_for(region)),
          .out = out.data(),
          .call = call_words(),
          .status = &step_words()->status};
}

void CudaFormat::compress(const Pass& pass, Payload out, Context& context) {
  if (pass.accumulated()) {
    write_accumulated(pass.e_next, out, context);
    return;
  }
  const auto [given, e, e_next, velocity, second] = pass;
  ConstGradient g = given;
  const Residual first = writable(e);
  const uint32_t* const parity = &step_words()->parity;
  cuda::ParitySpan committed(first, e_next, parity);
  const cuda::ParitySpan before = committed, next(e_next, first, parity);
  Workspace::Frame frame(context.workspace);
  const bool in_place = velocity != nullptr && !e.empty() && encodes_in_place();
  std::span<float> x;
  if (velocity != nullptr || (!e.empty() && (spec().feedback.decay != 1 || spec().feedback.ef21))) {
    x = frame.take<float>(in_place ? 0 : shape().numel);
    if (velocity != nullptr) {
      velocity->advance({g, committed, in_place ? next : cuda::ParitySpan(x)}, context);
    } else {
      cuda::add_decayed({g, committed, static_cast<float>(spec().feedback.decay)}, x,
                        context.stream);
    }
    g = {in_place ? nullptr : x.data(), shape().numel, DType::kFloat32, shape().device};
    committed = {};
  }
  const cuda::Seal seal = seal_for(whole(), out);
  encode({.x = g,
          .given = given,
          .e = committed,
          .e_next = next,
          .put_back = {},
          .scale = 1.0f,
          .region = whole(),
          .in_place = in_place,
          .second = second,
          .masked =
              velocity != nullptr && !spec().feedback.ef21 ? velocity->next() : cuda::ParitySpan(),
          .parts = {},
          .rank_stage = compress_stage(shape().rank),
          .seal = seal,
          .body = out.subspan(sizeof(PayloadHeader))},
         context);
  if (!e.empty() && spec().feedback.ef21 && second == (traits().rounds() == 2)) {
    cuda::subtract_sent({x, before, next}, seal, context.stream);
  }
}

std::span<cuda::DevicePart> CudaFormat::open_any(std::span<const ConstPayload> payloads,
                                                 Workspace::Frame& frame, Context& context) const {
  const auto table = frame.take<cuda::DevicePart>(payloads.size());
  cuda::open_parts(payloads, expected_parts({shape().numel, 0}, false), table, faults_of_parts(),
                   context.stream);
  return table;
}

void CudaFormat::hold(std::span<const ConstPayload> payloads, float scale, const Holding& to,
                      Context& context) const {
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

void CudaFormat::decompress(std::span<const ConstPayload> parts, const Sum& what,
                            Context& context) {
  Workspace::Frame frame(context.workspace);
  add_up({.parts = open_any(parts, frame, context),
          .scale = what.scale,
          .region = whole(),
          .sum = what.sum,
          .overflow = faults_of_sum(&step_words()->status)},
         context);
}

void CudaFormat::write_accumulated(Residual x, Payload out, Context& context) {
  encode({.x = {x.data(), x.size(), DType::kFloat32, shape().device},
          .e = {},
          .e_next = x,
          .put_back = {},
          .scale = 1.0f,
          .region = whole(),
          .parts = {},
          .rank_stage = compress_stage(shape().rank),
          .seal = seal_for(whole(), out),
          .body = out.subspan(sizeof(PayloadHeader))},
         context);
  // What was taken beside a value that is not finite; a selection takes nothing then.
  if (has_records()) {
    add_back(out.first(capacity_for(whole())), cuda::PartsWanted::kFlagged, x, context);
  }
}

void CudaFormat::restore(ConstPayload payload, Residual x, Context& context) {
  add_back(payload, cuda::PartsWanted::kFinite, x, context);
}

void CudaFormat::add_back(ConstPayload payload, cuda::PartsWanted wanted, Residual x,
                          Context& context) {
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(1);
  cuda::ExpectedParts expected = expected_parts({shape().numel, 0}, false);
  expected.wanted = wanted;
  cuda::open_parts({&payload, 1}, expected, table, faults_of_parts(), context.stream);
  add_up({.parts = table,
          .scale = 1.0f,
          .region = whole(),
          .sum = {x.data(), x.size(), DType::kFloat32, shape().device},
          .onto = true},
         context);
}

void CudaFormat::slice(const SliceInput& input, Residual, Payload out, Context& context) {
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(1);
  cuda::open_parts({&input.payload, 1}, expected_parts(input.region, false), table,
                   faults_of_parts(), context.stream);
  copy_slice({table, input.region, out}, context);
}

void CudaFormat::copy_slice(const Slicing& what, Context& context) {
  const size_t bytes = capacity_for(what.region);
  cuda::slice_records({.table = what.table,
                       .record_bytes = record_bytes(),
                       .header = on_cpu_->header_of(what.region, 0, bytes),
                       .out = what.out.data()},
                      context.stream);
}

void CudaFormat::merge(const MergeInput& input, Residual e_next, Payload out, Context& context) {
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

std::unique_ptr<Format> make_cuda_format(const CompressorRow& row, const CompressorSpec& spec,
                                         CompressorShape shape) {
  if (row.on_gpu == nullptr) {
    throw DeviceError(concat(spec.name,
                             ": the shape's device is a GPU, but its row names no form "
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
  return row.on_gpu(row.make(spec, std::move(twin)), std::move(shape));
}

}  // namespace gradwire
