#include "gradwire/comm/internal/bucket.h"

#include <algorithm>

#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

// Where the next group's payload begins: a cache line of its own.
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

std::string describe(const PlanBucket& bucket, std::string_view what) {
  std::string text = concat(what, " (", bucket.exchange, ", ");
  for (size_t g = 0; g < bucket.groups.size(); ++g) {
    text += (g == 0 ? "" : " + ") + to_string(bucket.groups[g].spec);
  }
  return text + ")";
}

}  // namespace

Bucket::Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, Transport& transport,
               uint32_t committed_step)
    : groups_(plan.buckets[id].groups),
      what_(concat("bucket ", id)),
      label_(describe(plan.buckets[id], what_)),
      gradient_memory_(plan.buckets[id].numel * size_of(plan.dtype)),
      gradient_{gradient_memory_.data(), plan.buckets[id].numel, plan.dtype, {}},
      slots_(groups_.size()) {
  size_t payload_bytes = 0, residual_numel = 0;
  std::vector<Compressor*> compressors;
  for (const PlanGroup& group : groups_) {
    compressors_.push_back(make_compressor(group.spec, {.numel = group.numel,
                                                        .dtype = plan.dtype,
                                                        .device = {},
                                                        .segments = group.segments,
                                                        .seed = plan.seed,
                                                        .rank = transport.rank()}));
    compressors_.back()->set_step(committed_step);
    compressors.push_back(compressors_.back().get());
    residual_offsets_.push_back(residual_numel);
    residual_numel += group.spec.error_feedback ? group.numel : 0;
    payload_bytes += aligned(compressors.back()->capacity_bytes());
  }
  payload_memory_ = Buffer(payload_bytes);
  residuals_ = {Buffer(residual_numel * sizeof(float)), Buffer(residual_numel * sizeof(float))};
  size_t begin = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t capacity = compressors[g]->capacity_bytes();
    slots_[g].compressor = compressors[g];
    slots_[g].mine = payload_memory_.bytes().subspan(begin, capacity);
    begin += aligned(capacity);
  }
  const uint64_t fingerprint = fnv1a(what_, plan_fingerprint);
  exchange_ = make_exchange(plan.buckets[id].exchange, {.compressors = std::move(compressors),
                                                        .transport = &transport,
                                                        .tag = {fingerprint, what_}});
}

void Bucket::compress(Gradient gradient, size_t parity, Context& context) {
  add_carried(gradient);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const PlanGroup& group = groups_[g];
    GroupSlot& slot = slots_[g];
    slot.mean = gradient.subview(group.offset, group.numel);
    slot.e_next = residual(group.offset, group.numel, 1 - parity);
    slot.compressor->compress(slot.mean, residual(group.offset, group.numel, parity), slot.e_next,
                              slot.mine, context);
  }
}

void Bucket::commit() {
  for (const auto& compressor : compressors_) {
    compressor->commit();
  }
  carried_.clear();
}

Residual Bucket::residual(size_t offset, size_t numel, size_t parity) const {
  const size_t g = group_at(offset);
  if (!groups_[g].spec.error_feedback) {
    return {};
  }
  const size_t begin = residual_offsets_[g] + offset - groups_[g].offset;
  return residuals_[parity].as<float>().subspan(begin, numel);
}

void Bucket::carry_over(size_t offset, ConstResidual values, size_t parity) {
  if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; })) {
    return;
  }
  Residual place = residual(offset, values.size(), parity);
  if (place.empty()) {
    carried_.resize(gradient_.numel);
    place = std::span(carried_).subspan(offset, values.size());
  }
  std::transform(place.begin(), place.end(), values.begin(), place.begin(), std::plus<>());
}

ConstResidual Bucket::carried(size_t offset, size_t numel) const {
  return carried_.empty() ? ConstResidual{} : std::span(carried_).subspan(offset, numel);
}

void Bucket::add_carried(Gradient gradient) const {
  if (carried_.empty()) {
    return;
  }
  dispatch(gradient.dtype, [&]<class T>() {
    const std::span<T> elements = gradient.as<T>();
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = from_float<T>(to_float(elements[i]) + carried_[i]);
    }
  });
}

size_t Bucket::group_at(size_t offset) const {
  size_t g = 0;
  while (g + 1 < groups_.size() && groups_[g + 1].offset <= offset) {
    ++g;
  }
  return g;
}

}  // namespace gradwire
