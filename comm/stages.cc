#include "gradwire/comm/stages.h"

#include <algorithm>
#include <array>

#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

bool carries_all(std::string_view exchange, const Plan& plan, const PlanBucket& bucket) {
  return std::ranges::all_of(bucket.groups, [&](const PlanGroup& group) {
    const auto compressor = make_compressor(
        group.spec, {.numel = group.numel, .dtype = plan.dtype, .segments = group.segments});
    return find_exchange(exchange).accepts(*compressor);
  });
}

/// Of a bucket whose groups are as they are in a step that sends all of some.
std::string exchange_in_step(const Plan& plan, const PlanBucket& bucket) {
  const bool often = bucket.exchange == "gather" || bucket.exchange == "gtopk";
  if (!often && carries_all(bucket.exchange, plan, bucket)) {
    return bucket.exchange;
  }
  for (const std::string_view other :
       {std::string_view("dense"), std::string_view(bucket.exchange)}) {
    if (carries_all(other, plan, bucket)) {
      return std::string(other);
    }
  }
  return "gather";
}

}  // namespace

Plan plan_in_step(const Plan& plan, uint64_t committed) {
  Plan now = plan;
  for (PlanBucket& bucket : now.buckets) {
    bool sends_all = false;
    for (PlanGroup& group : bucket.groups) {
      sends_all = sends_all || committed < group.spec.choice.start;
      group.spec = spec_in_step(group.spec, committed);
    }
    if (sends_all) {
      bucket.exchange = exchange_in_step(now, bucket);
    }
  }
  return now;
}

uint64_t next_change(const Plan& plan, uint64_t committed) {
  uint64_t first = kNeverChanges;
  for (const PlanBucket& bucket : plan.buckets) {
    for (const PlanGroup& group : bucket.groups) {
      first = std::min(first, next_change(group.spec, committed));
    }
  }
  return first;
}

}  // namespace gradwire
