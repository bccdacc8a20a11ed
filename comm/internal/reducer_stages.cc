// Buckets give way to those of another plan, or of the next specs of the same one (start=,
// warmup=).

#include <algorithm>
#include <functional>
#include <numeric>

#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/comm/stages.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {

std::deque<Bucket> Reducer::State::make_buckets(const Plan& from, std::span<const Lane> over,
                                                uint64_t committed_steps,
                                                const std::shared_ptr<DeviceState>& shared) const {
  std::deque<Bucket> made_buckets;
  const BucketStart start{.committed_step = static_cast<uint32_t>(committed_steps),
                          .device = device,
                          .state = shared,
                          .stream = options.stream};
  const Plan now = plan_in_step(from, committed_steps);
  const uint64_t fingerprint = now.fingerprint();
  for (BucketId b = 0; b < from.buckets.size(); ++b) {
    made_buckets.emplace_back(now, fingerprint, b, *over[b % over.size()].groups, start);
  }
  // The largest first, in whose memory the messages of the others have room.
  std::vector<BucketId> order(from.buckets.size());
  std::iota(order.begin(), order.end(), BucketId{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](BucketId b) { return from.buckets[b].numel; });
  std::vector<MessageMemory> memory(over.size());
  for (const BucketId b : order) {
    const size_t lane = b % over.size();
    memory[lane].begin_bucket();
    made_buckets[b].open_exchange(&memory[lane]);
    if (now.buckets[b].exchange != from.buckets[b].exchange && gpu == nullptr) {
      // What parts of the group its exchange will want are made now, by all ranks.
      Bucket later(plan_in_step(from, kNeverChanges), fingerprint, b, *over[lane].groups, start);
      later.open_exchange(nullptr);
    }
  }
  return made_buckets;
}

void Reducer::State::carry_over(std::deque<Bucket>& into, const Plan& by) const {
  for (size_t p = 0; p < by.places.size(); ++p) {
    const size_t numel = by.parameters[p].numel();
    const auto [old_bucket, old_offset] = plan.places[p];
    const auto [bucket, offset] = by.places[p];
    const Bucket& from = buckets[old_bucket];
    const std::vector<float> residual = from.memory().residual(old_offset, numel);
    const std::vector<float> estimate = from.memory().estimate(old_offset, numel);
    const std::vector<float> velocity = from.memory().velocity(old_offset, numel);
    if (estimate.empty()) {
      into[bucket].memory().carry_over(offset, residual);
      into[bucket].memory().set_velocity(offset, velocity);
    } else if (into[bucket].memory().has_estimate(offset)) {
      into[bucket].memory().set_estimate(offset, residual, estimate);
      into[bucket].memory().set_average(offset, numel, velocity);
    }
    into[bucket].memory().carry_over(offset, from.memory().waiting(old_offset, numel));
  }
  for (Bucket& bucket : into) {
    bucket.memory().place_waiting();
  }
  for (const Bucket& from : buckets) {
    const auto states = from.states();
    for (Bucket& bucket : into) {
      bucket.learn_from(states);
    }
  }
}

void Reducer::State::begin_stage() {
  if (changes_at == kNeverChanges) {
    return;
  }
  check(gpu == nullptr || !cuda::is_capturing(gpu->caller()), "reducer: step ", step,
        " is captured, but its plan has specs with start= or warmup=, which change behind ",
        changes_at,
        " committed steps; expected to capture a step when they have changed for the "
        "last time");
  if ((gpu == nullptr ? commits->words()->step : step) < changes_at) {
    return;
  }
  const Counts now = counts();
  if (now.committed < changes_at) {
    return;
  }
  std::shared_ptr<DeviceState> shared = make_commits(now.committed, now.skipped);
  std::deque<Bucket> next = make_buckets(plan, lanes, now.committed, shared);
  carry_over(next, plan);
  for (size_t b = 0; b < next.size(); ++b) {
    next[b].take_over(buckets[b]);
  }
  if (gpu == nullptr) {
    retired = std::move(buckets);
  }
  adopt(std::move(next), std::move(shared));
  compresses_first = std::ranges::any_of(buckets, &Bucket::compresses_first);
  changes_at = next_change(plan, now.committed);
  measured.buckets = measured.gradient_bytes = measured.bytes_sent = measured.codec_us = 0;
  measured.frames_before = frames_sent();
}

}  // namespace gradwire
