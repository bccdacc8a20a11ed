#include "gradwire/comm/internal/residuals.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/host_floats.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/cast_cuda.h"

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

bool on_gpu(const ResidualPlace& place) { return place.device.type == DeviceType::kCuda; }

bool on_host_of_gpu(const ResidualPlace& place) {
  return on_gpu(place) && place.memory == ResidualMemory::kHost;
}

}  // namespace

Residuals::Residuals(std::span<const PlanGroup> groups, const ResidualPlace& place)
    : place_(place) {
  size_t bytes = 0;
  for (const PlanGroup& group : groups) {
    dtypes_.push_back(group.spec.residual);
    numels_.push_back(group.spec.error_feedback ? group.numel : 0);
    offsets_.push_back(bytes);
    bytes += room_of(numels_.back() * size_of(dtypes_.back()));
  }
  if (on_host_of_gpu(place)) {
    pinned_ = {PinnedBuffer(bytes), PinnedBuffer(bytes)};
  } else {
    buffers_ = {Buffer(bytes, place.device), Buffer(bytes, place.device)};
  }
}

TensorView Residuals::kept(size_t g, Region region, size_t parity) const {
  const bool pinned = on_host_of_gpu(place_);
  const Device device = pinned ? Device{} : place_.device;
  if (numels_[g] == 0) {
    return {nullptr, 0, dtypes_[g], device};
  }
  std::byte* const data = pinned ? pinned_[parity].bytes().data() : buffers_[parity].data();
  return TensorView{data + offsets_[g], numels_[g], dtypes_[g], device}.subview(region.begin,
                                                                                region.numel());
}

std::vector<float> Residuals::read(size_t g, Region region, size_t parity) const {
  return read_floats(kept(g, region, parity), place_.stream);
}

void Residuals::write(size_t g, size_t begin, ConstResidual values, size_t parity) const {
  write_floats(values, kept(g, {begin, begin + values.size()}, parity), place_.stream);
}

bool Residuals::copy(size_t g, Region region, std::span<float> to, Stream& stream) const {
  const TensorView first = kept(g, region, 0), second = kept(g, region, 1);
  if (first.numel == 0) {
    return false;
  }
  cuda::cast(kept_of(first, second),
             TensorView{to.data(), to.size(), DType::kFloat32, place_.device}, stream);
  return true;
}

bool Residuals::is_worked_on_in_place(size_t g) const {
  return dtypes_[g] == DType::kFloat32 && !on_host_of_gpu(place_);
}

cuda::ParityView Residuals::kept_of(const TensorView& first, const TensorView& second) const {
  return {first, second, place_.parity, on_host_of_gpu(place_)};
}

cuda::ParityView Residuals::lent_of(Residual first, Residual second) const {
  const auto view = [this](Residual values) {
    return TensorView{values.data(), values.size(), DType::kFloat32, place_.device};
  };
  return {view(first), view(second), place_.parity, false};
}

Residuals::Lent Residuals::lend(size_t g, Region region, size_t parity, Holding holding,
                                Workspace::Frame& frame, Context& context) const {
  const TensorView committed = kept(g, region, parity), next = kept(g, region, 1 - parity);
  if (committed.numel == 0) {
    return {};
  }
  if (is_worked_on_in_place(g)) {
    return {committed.as<float>(), next.as<float>()};
  }
  const bool with_committed = holding != Holding::kNext, with_next = holding != Holding::kCommitted;
  Lent lent{.e = {}, .e_next = frame.take<float>(next.numel)};
  if (with_committed || on_gpu(place_)) {
    lent.e = frame.take<float>(committed.numel);
  }
  if (on_gpu(place_)) {
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

void Residuals::take_back(size_t g, Region region, size_t parity, const Lent& lent,
                          Context& context) const {
  if (is_worked_on_in_place(g) || lent.e_next.empty()) {
    return;
  }
  const TensorView committed = kept(g, region, parity), next = kept(g, region, 1 - parity);
  if (on_gpu(place_)) {
    cuda::cast(lent_of(lent.e_next, lent.e), kept_of(next, committed), context.stream);
  } else {
    narrow(lent.e_next, next, context);
  }
}

}  // namespace gradwire
