#include "gradwire/kernels/compress/feedback.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/elementwise_cuda.h"
#include "gradwire/kernels/ops/feedback_cuda.h"
#include "gradwire/kernels/ops/host_floats.h"

namespace gradwire {
namespace {

constexpr size_t kRun = size_t{1} << 15;  // elements a thread takes at once

/// Calls body(begin, count) for runs of `numel` elements on the stream's threads.
template <class Body>
void for_runs(size_t numel, Context& context, const Body& body) {
  context.stream.pool().parallel_for((numel + kRun - 1) / kRun, [&](size_t run) {
    body(run * kRun, std::min(kRun, numel - run * kRun));
  });
}

void widen(ConstTensorView from, Residual to, Context& context) {
  for_runs(to.size(), context, [&](size_t begin, size_t count) {
    cpu::widen(from.subview(begin, count), to.subspan(begin, count));
  });
}

void narrow(ConstResidual from, TensorView to, Context& context) {
  for_runs(from.size(), context, [&](size_t begin, size_t count) {
    cpu::narrow(from.subspan(begin, count), to.subview(begin, count));
  });
}

TensorView view_on(Device device, std::span<float> values) {
  return {values.data(), values.size(), DType::kFloat32, device};
}

}  // namespace

Feedback::Feedback(const CompressorSpec& spec, size_t numel, Place place)
    : place_(std::move(place)),
      numel_(numel),
      dtype_(spec.feedback.residual),
      keeps_residual_(spec.feedback.on),
      ef21_(spec.feedback.ef21) {
  const size_t bytes = keeps_residual_ ? numel * size_of(dtype_) : 0;
  if (residual_on_host()) {
    pinned_ = {PinnedBuffer(bytes), PinnedBuffer(bytes)};
  } else {
    residuals_ = {Buffer(bytes, device()), Buffer(bytes, device())};
  }
  const size_t estimate = ef21_ ? numel * sizeof(float) : 0;
  estimates_ = {Buffer(estimate, device()), Buffer(estimate, device())};
}

TensorView Feedback::kept(Region region, size_t buffer) const {
  const Device where = residual_on_host() ? Device{} : device();
  if (!keeps_residual_) {
    return {nullptr, 0, dtype_, where};
  }
  std::byte* const data =
      residual_on_host() ? pinned_[buffer].bytes().data() : residuals_[buffer].data();
  return TensorView{data, numel_, dtype_, where}.subview(region.begin, region.numel());
}

cuda::ParityView Feedback::kept_of(const TensorView& first, const TensorView& second) const {
  return {first, second, parity(), residual_on_host()};
}

cuda::ParityView Feedback::lent_of(Residual first, Residual second) const {
  return {view_on(device(), first), view_on(device(), second), parity(), false};
}

Feedback::Lent Feedback::lend(Region region, Holding holding, Workspace::Frame& frame,
                              Context& context) const {
  if (!keeps_residual_) {
    return {};
  }
  const TensorView committed = kept(region, reads()), next = kept(region, 1 - reads());
  if (is_used_in_place()) {
    return {committed.as<float>(), next.as<float>()};
  }
  const bool with_committed = holding != Holding::kNext, with_next = holding != Holding::kCommitted;
  Lent lent{.e = {}, .e_next = frame.take<float>(next.numel)};
  if (with_committed || on_gpu()) {
    lent.e = frame.take<float>(committed.numel);
  }
  if (on_gpu()) {
    if (with_committed) {
      cuda::cast(kept_of(committed, next), lent_of(lent.e, lent.e_next), context.stream);
    }
    if (with_next) {
      cuda::cast(kept_of(next, committed), lent_of(lent.e_next, lent.e), context.stream);
    }
    return lent;
  }
  if (with_committed) {
    widen(committed, lent.e, context);
  }
  if (with_next) {
    widen(next, lent.e_next, context);
  }
  return lent;
}

void Feedback::take_back(Region region, const Lent& lent, Context& context) const {
  if (is_used_in_place() || lent.e_next.empty()) {
    return;
  }
  const TensorView committed = kept(region, reads()), next = kept(region, 1 - reads());
  if (on_gpu()) {
    cuda::cast(lent_of(lent.e_next, lent.e), kept_of(next, committed), context.stream);
  } else {
    narrow(lent.e_next, next, context);
  }
}

void Feedback::add_estimate(std::span<float> mean, Stream& stream) {
  if (!ef21_) {
    return;
  }
  const std::span<float> now = estimates_[reads()].as<float>();
  const std::span<float> next = estimates_[1 - reads()].as<float>();
  if (on_gpu()) {
    cuda::add_estimate({.estimate = {now, next, parity()},
                        .next = {next, now, parity()},
                        .mean = mean,
                        .status = &place_.state->words()->status},
                       stream);
    return;
  }
  cpu::add(now, mean, mean);
  std::ranges::copy(mean, next.begin());
  overflows_ = !cpu::all_finite(next);
}

void Feedback::add_waiting(Gradient gradient, Stream& stream) const {
  if (waiting_on_gpu_.size_bytes() > 0) {
    cuda::add_until_committed(place_.state->words(), place_.committed_steps,
                              waiting_on_gpu_.as<float>(), gradient, stream);
  } else if (!on_gpu() && !waiting_.empty()) {
    add_floats(waiting_, 1.0f, gradient);
  }
}

TensorView Feedback::stored(Region region) const { return kept(region, committed()); }

std::vector<float> Feedback::residual(Region region) const {
  return read_floats(stored(region), place_.stream);
}

void Feedback::set_residual(size_t begin, ConstResidual values) {
  write_floats(values, stored({begin, begin + values.size()}), place_.stream);
}

void Feedback::clear_next(Region region) {
  const TensorView next = kept(region, 1 - reads());
  std::memset(next.data, 0, next.size_bytes());
}

void Feedback::release_next() const {
  if (!on_gpu()) {
    residuals_[1 - reads()].release_pages();
    estimates_[1 - reads()].release_pages();
  }
}

bool Feedback::copy_residual(Region region, std::span<float> to, Stream& stream) const {
  if (!keeps_residual_) {
    return false;
  }
  cuda::cast(kept_of(kept(region, 0), kept(region, 1)), view_on(device(), to), stream);
  return true;
}

std::vector<float> Feedback::estimate(Region region) const {
  if (!ef21_) {
    return {};
  }
  const auto all = estimates_[committed()].as<float>();
  return read_floats(view_on(device(), all.subspan(region.begin, region.numel())), place_.stream);
}

void Feedback::set_estimate(size_t begin, ConstResidual values) {
  const auto all = estimates_[committed()].as<float>();
  write_floats(values, view_on(device(), all.subspan(begin, values.size())), place_.stream);
}

void Feedback::wait_with(size_t begin, ConstResidual values, Waiting how) {
  const bool nothing = std::ranges::all_of(values, [](float value) { return value == 0.0f; });
  if (nothing && (on_gpu() || how == Waiting::kMore)) {
    return;
  }
  waiting_.resize(numel_);
  const std::span<float> place = std::span(waiting_).subspan(begin, values.size());
  if (how == Waiting::kMore) {
    std::ranges::transform(place, values, place.begin(), std::plus<>());
  } else {
    std::ranges::copy(values, place.begin());
  }
}

// Whether the step it went into has been committed only a GPU knows there.
ConstResidual Feedback::waiting(Region region) const {
  const bool waits = !waiting_.empty() &&
                     (!on_gpu() || place_.state->read(*place_.stream).step == place_.committed_steps);
  return waits ? std::span(waiting_).subspan(region.begin, region.numel()) : ConstResidual{};
}

void Feedback::place_waiting() {
  if (on_gpu() && !waiting_.empty()) {
    waiting_on_gpu_ = Buffer(waiting_.size() * sizeof(float), *place_.stream);
    write_floats(waiting_, view_on(device(), waiting_on_gpu_.as<float>()), place_.stream);
  }
}

// Kernels that are still to run read the count of steps first, and then nothing of it.
void Feedback::forget_waiting(uint32_t committed_steps) {
  if (committed_steps != place_.committed_steps) {
    waiting_ = {};
    waiting_on_gpu_ = {};
  }
}

}  // namespace gradwire
