#include "gradwire/comm/internal/bucket_memory.h"

#include <algorithm>
#include <functional>

#include "gradwire/kernels/ops/host_floats.h"

namespace gradwire {
BucketMemory::BucketMemory(const Plan& plan, std::span<const PlanGroup> groups,
                           std::span<const Region> shares, const Compressors& compressors,
                           bool shares_out, const BucketStart& start)
    : groups_(groups),
      shares_(shares),
      compressors_(compressors),
      shares_out_(shares_out),
      state_(start.state),
      stream_(start.stream),
      velocity_elsewhere_(groups.size()) {
  for (const PlanGroup& group : groups) {
    feedback_.emplace_back(group.spec, group.numel,
                           Feedback::Place{.state = start.state,
                                           .residuals = plan.residual_memory,
                                           .stream = start.stream,
                                           .committed_steps = start.committed_step});
  }
}

size_t BucketMemory::group_at(size_t offset) const {
  size_t g = 0;
  while (g + 1 < groups_.size() && groups_[g + 1].offset <= offset) {
    ++g;
  }
  return g;
}

std::vector<float> BucketMemory::kept(size_t offset, size_t numel) {
  const auto [feedback, region] = part(offset, numel);
  std::vector<float> own = feedback.residual(region);
  const ConstResidual waits = feedback.waiting(region);
  return own.empty() ? std::vector(waits.begin(), waits.end()) : own;
}

// There are no exchanges by node on a GPU, which would be asked for its parity.
void BucketMemory::note_stray() {
  if (shares_out_) {
    stray_[committed()] = true;
  }
}

void BucketMemory::set_kept(size_t offset, ConstResidual values) {
  note_stray();
  if (values.empty()) {
    return;
  }
  const auto [feedback, region] = part(offset, values.size());
  if (feedback.waits_in_residual()) {
    feedback.set_residual(region.begin, values);
  } else {
    feedback.wait_with(region.begin, values, Feedback::Waiting::kInstead);
  }
}

std::vector<float> BucketMemory::velocity(size_t offset, size_t numel) const {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (!keeps_velocity(groups_[g].spec)) {
    return {};
  }
  std::vector<float> values(numel);
  if (!velocity_elsewhere_[g].empty()) {
    std::ranges::copy(std::span(velocity_elsewhere_[g]).subspan(begin, numel), values.begin());
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
std::vector<float> BucketMemory::read_velocity(size_t g, Region part) const {
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

void BucketMemory::write_velocity(size_t g, size_t begin, ConstResidual values) {
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

void BucketMemory::set_velocity(size_t offset, ConstResidual values) {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  if (values.empty() || !keeps_velocity(groups_[g].spec) || groups_[g].spec.feedback.ef21) {
    return;
  }
  const Region share = shares_[g];
  if (share.numel() < groups_[g].numel) {
    velocity_elsewhere_[g].resize(groups_[g].numel);
  }
  const size_t end = begin + values.size();
  const size_t from = std::clamp(share.begin, begin, end), to = std::clamp(share.end, from, end);
  if (from < to) {
    write_velocity(g, from - share.begin, values.subspan(from - begin, to - from));
  }
  const auto elsewhere = [&](Region part) {
    for (size_t at = part.begin; at < part.end; ++at) {
      velocity_elsewhere_[g][at] = values[at - begin];
    }
  };
  elsewhere({begin, from});
  elsewhere({to, end});
}

void BucketMemory::set_estimate(size_t offset, ConstResidual residual, ConstResidual estimate,
                                ConstResidual average) {
  const size_t g = group_at(offset), begin = offset - groups_[g].offset;
  feedback_[g].set_residual(begin, residual);
  feedback_[g].set_estimate(begin, estimate);
  if (!keeps_velocity(groups_[g].spec)) {
    return;
  }
  std::vector<float> velocity(average.begin(), average.end());
  if (average.empty()) {
    velocity = feedback_[g].residual({begin, begin + estimate.size()});
    std::ranges::transform(velocity, velocity.begin(), std::negate<>());
  }
  write_velocity(g, begin, velocity);
}

// Of the residual of a group by node this rank keeps a share. What was carried over or loaded outside of
// it goes to the rank whose share it is, as residual: in the gradient it would enter velocities, and
// count again in every step. There are no exchanges by node on a GPU.
ConstResidual BucketMemory::take_strays(size_t g, Workspace::Frame& frame) {
  if (!feedback_[g].waits_in_residual() || !shares_out_) {  // the same on all ranks of the node
    return {};
  }
  ConstResidual taken;
  if (stray_[committed()]) {
    const auto strays = frame.take<float>(groups_[g].numel);
    std::ranges::fill(strays, 0.0f);
    for (const Region outside : outside_of_share(g)) {
      std::ranges::copy(feedback_[g].residual(outside), strays.subspan(outside.begin).begin());
    }
    taken = strays;
  }
  for (const Region outside : outside_of_share(g)) {
    if (stray_[1 - committed()]) {
      feedback_[g].clear_next(outside);
    }
  }
  return taken;
}

void BucketMemory::strays_are_taken() {
  if (shares_out_) {
    stray_[1 - committed()] = false;
  }
}

void BucketMemory::carry_over(size_t offset, ConstResidual values) {
  note_stray();
  if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; })) {
    return;
  }
  const auto [feedback, region] = part(offset, values.size());
  if (feedback.waits_in_residual()) {
    std::vector<float> sum = feedback.residual(region);
    std::ranges::transform(sum, values, sum.begin(), std::plus<>());
    feedback.set_residual(region.begin, sum);
  } else {
    feedback.wait_with(region.begin, values, Feedback::Waiting::kMore);
  }
}

void BucketMemory::release_next() const {
  for (const Feedback& each : feedback_) {
    each.release_next();
  }
}

void BucketMemory::place_waiting() {
  for (Feedback& each : feedback_) {
    each.place_waiting();
  }
}

void BucketMemory::forget_waiting(uint32_t committed_steps) {
  for (Feedback& each : feedback_) {
    each.forget_waiting(committed_steps);
  }
  for (std::vector<float>& values : velocity_elsewhere_) {
    values.clear();
  }
}

void BucketMemory::add_waiting(size_t g, Gradient gradient, Stream& stream) const {
  feedback_[g].add_waiting(gradient, stream);
  if (!velocity_elsewhere_[g].empty()) {
    add_floats(velocity_elsewhere_[g], static_cast<float>(groups_[g].spec.feedback.momentum),
               gradient);
  }
}

}  // namespace gradwire
