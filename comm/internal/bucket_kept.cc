// What a bucket keeps between steps, as elements: residuals, estimates, velocities, and what waits
// for the next gradient.

#include <algorithm>
#include <functional>

#include "gradwire/comm/internal/bucket.h"

namespace gradwire {
namespace {

// gradient += values, rounded to its dtype.
void add_to(Gradient gradient, ConstResidual values) {
  dispatch(gradient.dtype, [&]<class T>() {
    const std::span<T> elements = gradient.as<T>();
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = from_float<T>(to_float(elements[i]) + values[i]);
    }
  });
}

}  // namespace

Residual Bucket::residual(size_t offset, size_t numel, size_t parity) const {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.error_feedback) {
    return {};
  }
  const size_t begin = residual_offsets_[g] + offset - groups_[g].offset;
  return residuals_[parity].as<float>().subspan(begin, numel);
}

ConstResidual Bucket::kept(size_t offset, size_t numel, size_t parity) const {
  const ConstResidual own = residual(offset, numel, parity);
  return own.empty() ? carried(offset, numel) : own;
}

void Bucket::set_kept(size_t offset, ConstResidual values, size_t parity) {
  if (values.empty()) {
    return;
  }
  stray_[parity] = by_node_;
  const Residual place = place_of_waiting(offset, values.size(), parity);
  std::copy(values.begin(), values.end(), place.begin());
}

// What EF21 keeps is no pending sum.
Residual Bucket::place_of_waiting(size_t offset, size_t numel, size_t parity) {
  const Residual place = residual(offset, numel, parity);
  if (!place.empty() && !groups_[group_at(offset)].spec.ef21) {
    return place;
  }
  carried_.resize(gradient_.numel);
  return std::span(carried_).subspan(offset, numel);
}

std::vector<float> Bucket::velocity(size_t offset, size_t numel) const {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  const std::span<const float> own = compressors_[g]->velocity();
  if (!keeps_velocity(groups_[g].spec)) {
    return {};
  }
  std::vector<float> values(numel);
  const size_t from = std::max(begin, shares_[g].begin);
  const size_t to = std::min(begin + numel, shares_[g].end);
  for (size_t i = from; i < to; ++i) {
    values[i - begin] = own[i - shares_[g].begin];
  }
  return values;
}

void Bucket::set_velocity(size_t offset, ConstResidual values, size_t parity) {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (values.empty() || !keeps_velocity(groups_[g].spec) || groups_[g].spec.ef21) {
    return;
  }
  const std::span<float> own = compressors_[g]->velocity();
  const auto momentum = static_cast<float>(groups_[g].spec.momentum);
  std::vector<float> elsewhere(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = begin + i;
    if (at >= shares_[g].begin && at < shares_[g].end) {
      own[at - shares_[g].begin] = values[i];
    } else {
      elsewhere[i] = momentum * values[i];
    }
  }
  carry_over(offset, elsewhere, parity);
}

void Bucket::set_average(size_t offset, size_t numel, ConstResidual values, size_t parity) {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.ef21 || !keeps_velocity(groups_[g].spec)) {
    return;
  }
  const auto own = compressors_[g]->velocity().subspan(offset - groups_[g].offset, numel);
  if (values.empty()) {
    std::ranges::transform(residual(offset, numel, parity), own.begin(), std::negate<>());
  } else {
    std::ranges::copy(values, own.begin());
  }
}

ConstResidual Bucket::estimate(size_t offset, size_t numel, size_t parity) const {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.ef21) {
    return {};
  }
  return estimates_[parity].as<float>().subspan(estimate_offsets_[g] + offset - groups_[g].offset,
                                                numel);
}

void Bucket::set_estimate(size_t offset, ConstResidual own, ConstResidual of_all, size_t parity) {
  const size_t g = group_at(offset), begin = estimate_offsets_[g] + offset - groups_[g].offset;
  std::ranges::copy(own, residual(offset, own.size(), parity).begin());
  std::ranges::copy(of_all, estimates_[parity].as<float>().subspan(begin).begin());
}

// Of the residual of a group by node this rank keeps a share. What was carried over or loaded
// outside of it goes into the gradient, and from there to the rank whose share it is.
void Bucket::add_strays(Gradient gradient, size_t parity) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PlanGroup& group = groups_[g];
    for (const Region outside :
         {Region{0, shares_[g].begin}, Region{shares_[g].end, group.numel}}) {
      if (outside.numel() == 0) {
        continue;
      }
      const size_t begin = group.offset + outside.begin;
      const Residual now = residual(begin, outside.numel(), parity);
      const Residual next = residual(begin, outside.numel(), 1 - parity);
      if (stray_[parity]) {
        add_to(gradient.subview(begin, now.size()), now);
      }
      if (stray_[1 - parity]) {
        std::ranges::fill(next, 0.0f);
      }
    }
  }
  stray_[1 - parity] = false;
}

Residual Bucket::share_of_residual(size_t g, size_t parity) const {
  const Residual all = residual(groups_[g].offset, groups_[g].numel, parity);
  return all.empty() ? all : all.subspan(shares_[g].begin, shares_[g].numel());
}

void Bucket::carry_over(size_t offset, ConstResidual values, size_t parity) {
  if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; })) {
    return;
  }
  stray_[parity] = by_node_;
  const Residual place = place_of_waiting(offset, values.size(), parity);
  std::transform(place.begin(), place.end(), values.begin(), place.begin(), std::plus<>());
}

ConstResidual Bucket::carried(size_t offset, size_t numel) const {
  return carried_.empty() ? ConstResidual{} : std::span(carried_).subspan(offset, numel);
}

void Bucket::add_carried(Gradient gradient) const {
  if (!carried_.empty()) {
    add_to(gradient, carried_);
  }
}

}  // namespace gradwire
