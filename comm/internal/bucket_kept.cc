// What a bucket keeps between steps, as elements: residuals, estimates, velocities, and what waits
// for the next gradient.

#include <algorithm>
#include <functional>

#include "gradwire/comm/internal/bucket.h"
#include "gradwire/comm/internal/host_floats.h"
#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/ops/elementwise_cuda.h"

namespace gradwire {
namespace {

// gradient += factor * values, the product rounded, the sum rounded to its dtype.
void add_to(Gradient gradient, ConstResidual values, float factor = 1.0f) {
  dispatch(gradient.dtype, [&]<class T>() {
    const std::span<T> elements = gradient.as<T>();
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = from_float<T>(to_float(elements[i]) + factor * values[i]);
    }
  });
}

}  // namespace

Region Bucket::in_group(size_t g, size_t offset, size_t numel) const {
  return {offset - groups_[g].offset, offset - groups_[g].offset + numel};
}

TensorView Bucket::stored_residual(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  return residuals_.kept(g, in_group(g, offset, numel), committed());
}

std::vector<float> Bucket::residual(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  return residuals_.read(g, in_group(g, offset, numel), committed());
}

std::vector<float> Bucket::kept(size_t offset, size_t numel) const {
  std::vector<float> own = residual(offset, numel);
  const ConstResidual waiting = carried(offset, numel);
  return own.empty() ? std::vector(waiting.begin(), waiting.end()) : own;
}

void Bucket::set_kept(size_t offset, ConstResidual values) {
  const size_t parity = committed();
  stray_[parity] = by_node_;
  if (values.empty()) {
    return;
  }
  const size_t g = group_at(offset);
  if (waits_in_residual(g)) {
    residuals_.write(g, offset - groups_[g].offset, values, parity);
    return;
  }
  if (stream_ == nullptr || std::ranges::any_of(values, [](float x) { return x != 0; })) {
    std::ranges::copy(values, place_to_carry(offset, values.size()).begin());
  }
}

// What EF21 keeps is no pending sum.
bool Bucket::waits_in_residual(size_t g) const {
  return groups_[g].spec.error_feedback && !groups_[g].spec.ef21;
}

std::span<float> Bucket::place_to_carry(size_t offset, size_t numel) {
  carried_.resize(numel_);
  return std::span(carried_).subspan(offset, numel);
}

std::vector<float> Bucket::velocity(size_t offset, size_t numel) const {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (!keeps_velocity(groups_[g].spec)) {
    return {};
  }
  std::vector<float> values(numel);
  if (!velocity_elsewhere_.empty()) {
    std::ranges::copy(std::span(velocity_elsewhere_).subspan(offset, numel), values.begin());
  }
  const size_t from = std::max(begin, shares_[g].begin);
  const size_t to = std::min(begin + numel, shares_[g].end);
  if (from < to) {
    const Region part{from - shares_[g].begin, to - shares_[g].begin};
    std::ranges::copy(read_velocity(g, part), values.begin() + static_cast<ptrdiff_t>(from - begin));
  }
  return values;
}

// On a GPU it is read and written as a whole.
std::vector<float> Bucket::read_velocity(size_t g, Region part) const {
  if (stream_ == nullptr) {
    const auto own = compressors_[g]->velocity().subspan(part.begin, part.numel());
    return {own.begin(), own.end()};
  }
  const Buffer copy(shares_[g].numel() * sizeof(float), *stream_);
  Workspace workspace(*stream_);
  Context context{*stream_, workspace};
  compressors_[g]->read_velocity(copy.as<float>(), context);
  return read_floats({copy.as<float>().data() + part.begin, part.numel(), DType::kFloat32,
                      copy.device()},
                     stream_);
}

void Bucket::write_velocity(size_t g, size_t begin, ConstResidual values) {
  if (stream_ == nullptr) {
    std::ranges::copy(values, compressors_[g]->velocity().subspan(begin).begin());
    return;
  }
  std::vector<float> whole = read_velocity(g, {0, shares_[g].numel()});
  std::ranges::copy(values, whole.begin() + static_cast<ptrdiff_t>(begin));
  const Buffer copy(whole.size() * sizeof(float), *stream_);
  write_floats(whole, {copy.data(), whole.size(), DType::kFloat32, copy.device()}, stream_);
  Workspace workspace(*stream_);
  Context context{*stream_, workspace};
  compressors_[g]->write_velocity(copy.as<float>(), context);
  stream_->wait();
}

void Bucket::set_velocity(size_t offset, ConstResidual values) {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (values.empty() || !keeps_velocity(groups_[g].spec) || groups_[g].spec.ef21) {
    return;
  }
  const Region share = shares_[g];
  if (share.numel() < groups_[g].numel) {
    velocity_elsewhere_.resize(numel_);
  }
  const size_t end = begin + values.size();
  const size_t from = std::clamp(share.begin, begin, end), to = std::clamp(share.end, from, end);
  if (from < to) {
    write_velocity(g, from - share.begin, values.subspan(from - begin, to - from));
  }
  const auto elsewhere = [&](Region part) {
    for (size_t at = part.begin; at < part.end; ++at) {
      velocity_elsewhere_[groups_[g].offset + at] = values[at - begin];
    }
  };
  elsewhere({begin, from});
  elsewhere({to, end});
}

void Bucket::set_average(size_t offset, size_t numel, ConstResidual values) {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.ef21 || !keeps_velocity(groups_[g].spec)) {
    return;
  }
  std::vector<float> average(values.begin(), values.end());
  if (values.empty()) {
    average = residual(offset, numel);
    std::ranges::transform(average, average.begin(), std::negate<>());
  }
  write_velocity(g, offset - groups_[g].offset, average);
}

std::span<float> Bucket::estimates_of(size_t g, size_t parity) const {
  return estimates_[parity].as<float>().subspan(estimate_offsets_[g], groups_[g].numel);
}

std::vector<float> Bucket::estimate(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.ef21) {
    return {};
  }
  const auto own = estimates_of(g, committed()).subspan(offset - groups_[g].offset, numel);
  return read_floats({own.data(), own.size(), DType::kFloat32, gradient_.device}, stream_);
}

void Bucket::set_estimate(size_t offset, ConstResidual own, ConstResidual of_all) {
  const size_t parity = committed(), g = group_at(offset), begin = offset - groups_[g].offset;
  residuals_.write(g, begin, own, parity);
  const auto estimates = estimates_of(g, parity).subspan(begin, of_all.size());
  write_floats(of_all, {estimates.data(), estimates.size(), DType::kFloat32, gradient_.device},
               stream_);
}

// Of the residual of a group by node this rank keeps a share. What was carried over or loaded
// outside of it goes to the rank whose share it is, as residual: in the gradient it would enter
// velocities, and count again in every step.
void Bucket::lend_strays(Workspace::Frame& frame) {
  const size_t parity = reads();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PlanGroup& group = groups_[g];
    slots_[g].strays = {};
    if (!waits_in_residual(g) || !shares_out_) {  // the same on all ranks: they exchange strays
      continue;
    }
    const std::array outsides{Region{0, shares_[g].begin}, Region{shares_[g].end, group.numel}};
    if (stray_[parity]) {
      const auto strays = frame.take<float>(group.numel);
      std::ranges::fill(strays, 0.0f);
      for (const Region outside : outsides) {
        std::ranges::copy(residuals_.read(g, outside, parity),
                          strays.subspan(outside.begin).begin());
      }
      slots_[g].strays = strays;
    }
    for (const Region outside : outsides) {
      if (stray_[1 - parity]) {
        residuals_.write(g, outside.begin, std::vector<float>(outside.numel()), 1 - parity);
      }
    }
  }
  stray_[1 - parity] = false;
}

void Bucket::carry_over(size_t offset, ConstResidual values) {
  const size_t parity = committed();
  stray_[parity] = by_node_;
  if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; })) {
    return;
  }
  const size_t g = group_at(offset);
  if (waits_in_residual(g)) {
    std::vector<float> sum = residual(offset, values.size());
    std::ranges::transform(sum, values, sum.begin(), std::plus<>());
    residuals_.write(g, offset - groups_[g].offset, sum, parity);
  } else {
    const std::span<float> place = place_to_carry(offset, values.size());
    std::ranges::transform(place, values, place.begin(), std::plus<>());
  }
}

// Whether the step it went into has been committed only a GPU knows there.
ConstResidual Bucket::carried(size_t offset, size_t numel) const {
  const bool waits =
      !carried_.empty() && (stream_ == nullptr || state_->read(*stream_).step == began_at_);
  return waits ? std::span(carried_).subspan(offset, numel) : ConstResidual{};
}

void Bucket::place_carried() {
  if (carried_.empty()) {
    return;
  }
  carried_on_gpu_ = Buffer(carried_.size() * sizeof(float), *stream_);
  write_floats(carried_,
               {carried_on_gpu_.data(), carried_.size(), DType::kFloat32, gradient_.device},
               stream_);
}

// Kernels that are still to run read the count of steps first, and then nothing of it.
void Bucket::let_go_of_carried(uint32_t committed_steps) {
  if (!carried_.empty() && committed_steps != began_at_) {
    carried_ = {};
    carried_on_gpu_ = {};
  }
}

bool Bucket::copy_residual(size_t offset, std::span<float> to, Stream& stream) const {
  const size_t g = group_at(offset);
  return residuals_.copy(g, in_group(g, offset, to.size()), to, stream);
}

void Bucket::add_carried(Gradient gradient, Stream& stream) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PlanGroup& group = groups_[g];
    const Gradient own = of_group(g, gradient);
    const auto of_own = [&](std::span<const float> all) {
      return all.subspan(group.offset, group.numel);
    };
    if (carried_on_gpu_.size_bytes() > 0) {
      cuda::add_until_committed(state_->words(), began_at_, of_own(carried_on_gpu_.as<float>()),
                                own, stream);
    } else if (stream_ == nullptr && !carried_.empty()) {
      add_to(own, of_own(carried_));
    }
    if (stream_ == nullptr && !velocity_elsewhere_.empty()) {
      add_to(own, of_own(velocity_elsewhere_), static_cast<float>(group.spec.momentum));
    }
  }
}

}  // namespace gradwire
