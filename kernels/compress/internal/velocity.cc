#include "gradwire/kernels/compress/internal/velocity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/clip.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire {

Velocity::Velocity(const CompressorSpec& spec, const CompressorShape& shape)
    : numel_(shape.numel),
      kept_(
          static_cast<float>(spec.feedback.ef21 ? 1 - spec.feedback.eta : spec.feedback.momentum)),
      taken_(spec.feedback.ef21 ? static_cast<float>(spec.feedback.eta) : 1.0f),
      limit_(spec.feedback.clip > 0
                 ? spec.feedback.clip / std::sqrt(static_cast<double>(shape.world_size))
                 : 0.0),
      decay_(static_cast<float>(spec.feedback.decay)),
      words_(shape.state == nullptr ? nullptr : shape.state->words()) {
  if (on_gpu()) {
    make_room(shape.device);
    slots_ = Buffer(2 * sizeof(cuda::VelocitySlot), shape.device);
    factor_ = Buffer(sizeof(float), shape.device);
  }
}

void Velocity::make_room(Device device) {
  for (Buffer& buffer : buffers_) {
    if (buffer.size_bytes() == 0) {
      buffer = Buffer(numel_ * sizeof(float), device);
    }
  }
}

std::span<float> Velocity::advance(ConstGradient g, Workspace& workspace, ThreadPool& pool) {
  make_room({});
  const size_t chunks = (numel_ + kChunk - 1) / kChunk;
  float taken = taken_;
  if (limit_ > 0) {
    Workspace::Frame frame(workspace);
    taken *= cpu::clip_factor(g, limit_, frame.take<double>(chunks), pool);
  }
  pending_ = true;  // behind what can fail
  const std::span<float> committed = kept(parity_), next = kept(1 - parity_);
  cpu::for_each_chunk(pool, chunks, [&](size_t chunk) {
    const size_t begin = chunk * kChunk, numel = std::min(kChunk, numel_ - begin);
    alignas(64) float values[kChunk];
    const std::span<float> x(values, numel), u_next = next.subspan(begin, numel);
    cpu::widen(g.subview(begin, numel), x);
    cpu::multiply(x, taken, x);
    cpu::multiply(committed.subspan(begin, numel), kept_, u_next);
    cpu::add(u_next, x, u_next);
  });
  return next;
}

cuda::KeptVelocity Velocity::on_device() const {
  return {.u = {kept(0), kept(1), parity()},
          .slots = slots_.as<cuda::VelocitySlot>().data(),
          .step = words_};
}

void Velocity::advance(const Step& step, Context& context) {
  float* const factor = limit_ > 0 ? factor_.as<float>().data() : nullptr;
  if (factor != nullptr) {
    Workspace::Frame frame(context.workspace);
    cuda::clip_factor(step.g, limit_, frame.take<double>(cuda::clip_runs(numel_)), factor,
                      context.stream);
  }
  cuda::accelerate({.g = step.g,
                    .velocity = on_device(),
                    .e = step.e,
                    .kept = kept_,
                    .taken = taken_,
                    .factor = factor,
                    .decay = decay_},
                   {.u_next = next(), .x = step.x}, context.stream);
}

void Velocity::commit() {
  if (std::exchange(pending_, false)) {
    parity_ = 1 - parity_;
  }
}

void Velocity::clear() {
  std::ranges::fill(kept(parity_), 0.0f);
  pending_ = false;
}

std::span<float> Velocity::committed() {
  if (on_gpu()) {
    return {};
  }
  make_room({});
  return kept(parity_);
}

void Velocity::read(Residual to, Context& context) {
  if (on_gpu()) {
    cuda::read_velocity(on_device(), to, context.stream);
  } else {
    context.stream.enqueue([this, to] { std::ranges::copy(committed(), to.begin()); });
  }
}

void Velocity::write(ConstResidual from, Context& context) {
  if (on_gpu()) {
    cuda::write_velocity(on_device(), from, context.stream);
  } else {
    context.stream.enqueue([this, from] { std::ranges::copy(from, committed().begin()); });
  }
}

}  // namespace gradwire
