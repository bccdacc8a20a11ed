#include "gradwire/comm/plan_memory.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/internal/bucket_layout.h"
#include "gradwire/comm/stages.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

/// Rank 0 of a group that is not there. How much room an exchange makes depends on the group's size.
class AbsentGroup final : public Transport {
 public:
  AbsentGroup(int world_size, int ranks_per_node)
      : world_size_(world_size), ranks_per_node_(ranks_per_node) {}

  std::string_view name() const override { return "absent"; }
  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  TrafficCounters counters() const override { return {}; }
  void abort(std::string_view) noexcept override {}

  // Exchanges by node ask for the node's ranks first, and then for those with the same place in others.
  std::unique_ptr<Transport> split(int) override {
    const int ranks = splits_++ == 0 ? ranks_per_node_ : world_size_ / ranks_per_node_;
    return std::make_unique<AbsentGroup>(ranks, 1);
  }

  void all_gather(const size_t&, std::span<const std::byte>, Parts, CallTag, Context&) override {
    refuse();
  }
  void all_to_all(Parts, Parts, CallTag, Context&) override { refuse(); }
  void reduce_scatter(std::span<const float>, std::span<float>, CallTag, Context&) override {
    refuse();
  }
  void all_reduce_sum(std::span<float>, CallTag, Context&) override { refuse(); }
  void broadcast(std::span<std::byte>, int, CallTag, Context&) override { refuse(); }
  void barrier(CallTag, Context&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw InvalidArgument("plan: no rank is there, expected nothing to be sent");
  }

  int world_size_, ranks_per_node_;
  int splits_ = 0;
};

// Of groups whose residuals are lent as floats.
size_t scratch_of(const PlanBucket& bucket, ResidualMemory place) {
  size_t bytes = 0;
  for (const PlanGroup& group : bucket.groups) {
    const bool in_place = group.spec.feedback.residual == DType::kFloat32 && place == ResidualMemory::kDevice;
    bytes += group.spec.feedback.on && !in_place ? 2 * group.numel * sizeof(float) : 0;
  }
  return bytes;
}

}  // namespace

PlanMemory kept_between_steps(const Plan& plan) {
  PlanMemory kept;
  for (const PlanBucket& bucket : plan.buckets) {
    kept.gradients += bucket.numel * size_of(plan.dtype);
    const int sharing = find_exchange(bucket.exchange).by_node ? plan.ranks_per_node : 1;
    for (const PlanGroup& group : bucket.groups) {
      size_t& residuals = group.spec.feedback.residual == DType::kFloat32 ? kept.residuals : kept.narrow;
      residuals += group.spec.feedback.on ? 2 * group.numel * size_of(group.spec.feedback.residual) : 0;
      kept.estimates += group.spec.feedback.ef21 ? 2 * group.numel * sizeof(float) : 0;
      size_t most = 0;  // of a node's ranks
      for (int rank = 0; rank < sharing; ++rank) {
        const size_t share = node_share(group.numel, rank, sharing).numel();
        const auto compressor = make_compressor(
            lasting_spec(group.spec),
            sharing > 1 ? CompressorShape{.numel = share}
                        : CompressorShape{
                              .numel = share, .dtype = plan.dtype, .segments = group.segments});
        most = std::max(most, compressor->kept_bytes());
      }
      kept.compressors += most;
    }
    kept.scratch = std::max(kept.scratch, scratch_of(bucket, plan.residual_memory));
  }
  return kept;
}

PlanMemory memory_of(const Plan& plan, int world_size) {
  check(world_size >= 1, "plan: memory of ", world_size, " ranks, expected at least 1");
  PlanMemory memory = kept_between_steps(plan);
  const Plan lasting = plan_in_step(plan, kNeverChanges);
  MessageMemory messages(MessageMemory::Kind::kCounted);
  bool lends_to_exchanges = false;
  for (const BucketId b : largest_first(plan)) {
    const PlanBucket& bucket = lasting.buckets[b];
    const ExchangeRow& row = find_exchange(bucket.exchange);
    AbsentGroup whole(world_size, plan.ranks_per_node);
    SubGroups groups(whole);
    const auto shares = shares_of(bucket.groups, row.by_node ? plan.ranks_per_node : 1, 0);
    const Compressors compressors = make_compressors(lasting, b, shares, whole, {});
    ExchangeContext made_from{.compressors = {},
                              .transport = &whole,
                              .tag = {},
                              .groups = &groups,
                              .memory = &messages,
                              .ranks_per_node = plan.ranks_per_node};
    size_t payloads = 0;
    for (size_t g = 0; g < compressors.size(); ++g) {
      made_from.compressors.push_back(compressors[g].get());
      made_from.group_numels.push_back(bucket.groups[g].numel);
      payloads += room_of(compressors[g]->capacity_bytes());
      lends_to_exchanges |= row.puts_back || compressors[g]->rounds() == 2;
    }
    if (!adds_gradients(row.name, made_from.compressors, whole)) {  // else they are as they lie
      memory.payloads += payloads;
      messages.begin_bucket();
      make_exchange(row.name, std::move(made_from));
    }
  }
  memory.messages = messages.size_bytes();
  memory.scratch *= lends_to_exchanges ? 2 : 1;  // of either thread
  return memory;
}

}  // namespace gradwire
