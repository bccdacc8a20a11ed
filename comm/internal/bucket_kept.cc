// What a bucket keeps between steps, as elements: residuals, estimates, velocities, and what waits
// for the next gradient.

#include <algorithm>
#include <functional>

#include "gradwire/comm/internal/bucket.h"
#include "gradwire/kernels/ops/host_floats.h"
#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/ops/elementwise_cuda.h"

namespace gradwire {
namespace {

// gradient += factor * values, the product rounded, the sum rounded to its dtype.
void add_to(Gradient gradient, ConstResidual values, float factor) {
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
  return feedback_[g].stored(in_group(g, offset, numel));
}

std::vector<float> Bucket::residual(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  return feedback_[g].residual(in_group(g, offset, numel));
}

std::vector<float> Bucket::kept(size_t offset, size_t numel) const {
  std::vector<float> own = residual(offset, numel);
  const ConstResidual waiting = carried(offset, numel);
  return own.empty() ? std::vector(waiting.begin(), waiting.end()) : own;
}

void Bucket::set_kept(size_t offset, ConstResidual values) {
  stray_[state_->parity(stream_)] = by_node_;
  if (values.empty()) {
    return;
  }
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (feedback_[g].waits_in_residual()) {
    feedback_[g].set_residual(begin, values);
  } else {
    feedback_[g].wait_with(begin, values, Feedback::Waiting::kInstead);
  }
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

std::vector<float> Bucket::estimate(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  return feedback_[g].estimate(in_group(g, offset, numel));
}

void Bucket::set_estimate(size_t offset, ConstResidual own, ConstResidual of_all) {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  feedback_[g].set_residual(begin, own);
  feedback_[g].set_estimate(begin, of_all);
}

// Of the residual of a group by node this rank keeps a share. What was carried over or loaded
// outside of it goes to the rank whose share it is, as residual: in the gradient it would enter
// velocities, and count again in every step. There are no exchanges by node on a GPU.
void Bucket::lend_strays(Workspace::Frame& frame) {
  const size_t parity = by_node_ ? state_->parity(stream_) : 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PlanGroup& group = groups_[g];
    slots_[g].strays = {};
    if (!feedback_[g].waits_in_residual() || !shares_out_) {  // the same on all ranks
      continue;
    }
    const std::array outsides{Region{0, shares_[g].begin}, Region{shares_[g].end, group.numel}};
    if (stray_[parity]) {
      const auto strays = frame.take<float>(group.numel);
      std::ranges::fill(strays, 0.0f);
      for (const Region outside : outsides) {
        std::ranges::copy(feedback_[g].residual(outside), strays.subspan(outside.begin).begin());
      }
      slots_[g].strays = strays;
    }
    for (const Region outside : outsides) {
      if (stray_[1 - parity]) {
        feedback_[g].clear_next(outside);
      }
    }
  }
  stray_[1 - parity] = false;
}

void Bucket::carry_over(size_t offset, ConstResidual values) {
  stray_[state_->parity(stream_)] = by_node_;
  if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; })) {
    return;
  }
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (feedback_[g].waits_in_residual()) {
    std::vector<float> sum = residual(offset, values.size());
    std::ranges::transform(sum, values, sum.begin(), std::plus<>());
    feedback_[g].set_residual(begin, sum);
  } else {
    feedback_[g].wait_with(begin, values, Feedback::Waiting::kMore);
  }
}

ConstResidual Bucket::carried(size_t offset, size_t numel) const {
  const size_t g = group_at(offset);
  return feedback_[g].waiting(in_group(g, offset, numel));
}

void Bucket::place_carried() {
  for (Feedback& each : feedback_) {
    each.place_waiting();
  }
}

void Bucket::forget_waiting(uint32_t committed_steps) {
  for (Feedback& each : feedback_) {
    each.forget_waiting(committed_steps);
  }
}

bool Bucket::copy_residual(size_t offset, std::span<float> to, Stream& stream) const {
  const size_t g = group_at(offset);
  return feedback_[g].copy_residual(in_group(g, offset, to.size()), to, stream);
}

void Bucket::add_waiting(Gradient gradient, Stream& stream) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Gradient own = of_group(g, gradient);
    feedback_[g].add_waiting(own, stream);
    if (!velocity_elsewhere_.empty()) {
      const PlanGroup& group = groups_[g];
      add_to(own, std::span(velocity_elsewhere_).subspan(group.offset, group.numel),
             static_cast<float>(group.spec.momentum));
    }
  }
}

}  // namespace gradwire
