#include "gradwire/comm/internal/epoch.h"

#include <algorithm>
#include <functional>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/bucket_layout.h"
#include "gradwire/comm/stages.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

std::shared_ptr<DeviceState> make_state(const EpochStart& start) {
  auto state =
      std::make_shared<DeviceState>(start.stream == nullptr ? Device{} : start.stream->device());
  state->set_words({.step = static_cast<uint32_t>(start.committed),
                    .skipped = static_cast<uint32_t>(start.skipped)},
                   start.stream);
  return state;
}

std::vector<float> negated(std::span<const float> values) {
  std::vector<float> negative(values.size());
  std::ranges::transform(values, negative.begin(), std::negate<>());
  return negative;
}

}  // namespace

Epoch::Place Epoch::place(ParamId p) {
  const auto [b, offset] = plan.places[p];
  const size_t numel = plan.parameters[p].numel();
  const auto [feedback, region] = buckets[b].memory().part(offset, numel);
  return {buckets[b], offset, numel, feedback, region};
}

Epoch::Place Epoch::place(std::string_view call, ParamId p) {
  check(p < plan.places.size(), call, ": parameter ", p, " is not in the plan of ",
        plan.places.size(), " parameters");
  return place(p);
}

Gradient Epoch::gradient(std::string_view call, ParamId p) {
  const Place at = place(call, p);
  return at.bucket.gradient(at.offset, at.numel);
}

// Every rank has seen every rank's flags, and has the same means, so all decide alike. A rank that
// is to blame comes before sums that overflow.
const Bucket* Epoch::first_nonfinite() const {
  const Bucket* found = nullptr;
  for (const Bucket& bucket : buckets) {
    if (bucket.report().nonfinite_rank >= 0) {
      return &bucket;
    }
    if (found == nullptr && (!bucket.report().finite() || bucket.estimates_overflow())) {
      found = &bucket;
    }
  }
  return found;
}

void Epoch::commit() {
  cuda::conclude(*state->words(), false);
  for (Bucket& bucket : buckets) {
    bucket.commit();
  }
}

Epoch make_epoch(const Plan& plan, std::span<const Lane> lanes, const EpochStart& start) {
  const Transport& whole = *lanes[0].transport;
  Epoch made{.plan = plan,
             .buckets = {},
             .state = make_state(start),
             .stream = start.stream,
             .ranks = whole.world_size(),
             .changes_at = next_change(plan, start.committed)};
  const BucketStart of_bucket{.committed_step = static_cast<uint32_t>(start.committed),
                              .device = whole.traits().device,
                              .state = made.state,
                              .stream = start.stream};
  const Plan now = plan_in_step(plan, start.committed);
  const uint64_t fingerprint = now.fingerprint();
  for (BucketId b = 0; b < plan.buckets.size(); ++b) {
    made.buckets.emplace_back(now, fingerprint, b, *lanes[b % lanes.size()].groups, of_bucket);
  }
  std::vector<MessageMemory> memory(lanes.size());
  for (const BucketId b : largest_first(plan)) {
    const size_t lane = b % lanes.size();
    memory[lane].begin_bucket();
    made.buckets[b].open_exchange(&memory[lane]);
    if (now.buckets[b].exchange != plan.buckets[b].exchange && start.stream == nullptr) {
      // What parts of the group its exchange will want are made now, by all ranks.
      Bucket later(plan_in_step(plan, kNeverChanges), fingerprint, b, *lanes[lane].groups,
                   of_bucket);
      later.open_exchange(nullptr);
    }
  }
  return made;
}

void carry_over(Epoch& from, Epoch& into) {
  for (ParamId p = 0; p < into.plan.places.size(); ++p) {
    const Epoch::Place old = from.place(p), next = into.place(p);
    const std::vector<float> residual = old.feedback.residual(old.region);
    const std::vector<float> estimate = old.feedback.estimate(old.region);
    const std::vector<float> velocity = old.memory().velocity(old.offset, old.numel);
    if (estimate.empty()) {
      next.memory().carry_over(next.offset, residual);
      next.memory().set_velocity(next.offset, velocity);
    } else if (next.feedback.has_estimate()) {
      next.memory().set_estimate(next.offset, residual, estimate, velocity);
    }
    next.memory().carry_over(next.offset, old.feedback.waiting(old.region));
  }
  for (Bucket& bucket : into.buckets) {
    bucket.memory().place_waiting();
  }
  for (const Bucket& old : from.buckets) {
    const auto states = old.states();
    for (Bucket& bucket : into.buckets) {
      bucket.learn_from(states);
    }
  }
}

void carry_over_scaled(Epoch& from, Epoch& into, double scale, Bucket::Learnt learnt) {
  const auto scaled = [scale](std::span<const float> values) {
    std::vector<float> products(values.size());
    std::ranges::transform(values, products.begin(),
                           [scale](float x) { return static_cast<float>(scale * x); });
    return products;
  };
  for (ParamId p = 0; p < from.plan.places.size(); ++p) {
    const Epoch::Place old = from.place(p), next = into.place(p);
    if (next.feedback.has_estimate()) {  // beside it a plan before may have left something
      next.memory().carry_over(next.offset, scaled(old.feedback.waiting(old.region)));
      continue;
    }
    next.memory().set_kept(next.offset, scaled(old.memory().kept(old.offset, old.numel)));
    next.memory().set_velocity(next.offset, scaled(old.memory().velocity(old.offset, old.numel)));
  }
  for (size_t b = 0; b < from.buckets.size(); ++b) {
    into.buckets[b].learn_from(from.buckets[b], learnt);
  }
}

// All that are left start from the same: the mean of what they have sent is the estimate again.
void restart_estimates(Epoch& into, std::span<const std::vector<float>> estimates) {
  for (ParamId p = 0; p < estimates.size(); ++p) {
    if (!estimates[p].empty()) {
      const Epoch::Place next = into.place(p);
      next.memory().set_estimate(next.offset, negated(estimates[p]), estimates[p], estimates[p]);
    }
  }
}

void take_gradients(Epoch& from, Epoch& into) {
  for (size_t b = 0; b < into.buckets.size(); ++b) {
    into.buckets[b].take_gradient(from.buckets[b]);
  }
}

}  // namespace gradwire
