#include "gradwire/comm/internal/residuals.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
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
  if (from.device.type == DeviceType::kCuda) {
    cuda::widen(from, to, context.stream);
    return;
  }
  for_runs(to.size(), context, [&](size_t begin, size_t count) {
    cpu::widen(from.subview(begin, count), to.subspan(begin, count));
  });
}

void narrow(ConstResidual from, TensorView to, Context& context) {
  if (to.device.type == DeviceType::kCuda) {
    cuda::narrow(from, to, context.stream);
    return;
  }
  for_runs(from.size(), context, [&](size_t begin, size_t count) {
    cpu::narrow(from.subspan(begin, count), to.subview(begin, count));
  });
}

bool is_float(const TensorView& kept) { return kept.dtype == DType::kFloat32; }

}  // namespace

Residuals::Residuals(std::span<const PlanGroup> groups, Device device) {
  size_t bytes = 0;
  for (const PlanGroup& group : groups) {
    dtypes_.push_back(group.spec.residual);
    numels_.push_back(group.spec.error_feedback ? group.numel : 0);
    offsets_.push_back(bytes);
    bytes += room_of(numels_.back() * size_of(dtypes_.back()));
  }
  buffers_ = {Buffer(bytes, device), Buffer(bytes, device)};
}

TensorView Residuals::kept(size_t g, Region region, size_t parity) const {
  const Buffer& buffer = buffers_[parity];
  return numels_[g] == 0
             ? TensorView{nullptr, 0, dtypes_[g], buffer.device()}
             : TensorView{buffer.data() + offsets_[g], numels_[g], dtypes_[g], buffer.device()}
                   .subview(region.begin, region.numel());
}

std::vector<float> Residuals::read(size_t g, Region region, size_t parity) const {
  const TensorView from = kept(g, region, parity);
  std::vector<float> values(from.numel);
  cpu::widen(from, values);
  return values;
}

void Residuals::write(size_t g, size_t begin, ConstResidual values, size_t parity) const {
  cpu::narrow(values, kept(g, {begin, begin + values.size()}, parity));
}

Residuals::Lent Residuals::lend(size_t g, Region region, size_t parity, Holding holding,
                                Workspace::Frame& frame, Context& context) const {
  const TensorView committed = kept(g, region, parity), next = kept(g, region, 1 - parity);
  if (is_float(committed)) {
    return {committed.as<float>(), next.as<float>()};
  }
  const bool unknown = committed.device.type == DeviceType::kCuda;
  Lent lent{.e = {}, .e_next = frame.take<float>(next.numel)};
  if (holding != Holding::kNext || unknown) {
    lent.e = frame.take<float>(committed.numel);
    widen(committed, lent.e, context);
  }
  if (holding != Holding::kCommitted || unknown) {
    widen(next, lent.e_next, context);
  }
  return lent;
}

void Residuals::take_back(size_t g, Region region, size_t parity, const Lent& lent,
                          Context& context) const {
  const TensorView committed = kept(g, region, parity), next = kept(g, region, 1 - parity);
  if (is_float(committed)) {
    return;
  }
  narrow(lent.e_next, next, context);
  if (committed.device.type == DeviceType::kCuda) {
    narrow(lent.e, committed, context);  // either may be the one that was written
  }
}

}  // namespace gradwire
