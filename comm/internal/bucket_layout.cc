#include "gradwire/comm/internal/bucket_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/exchange/message.h"

namespace gradwire {
namespace {

// The parts of segments that follow one another that lie in `share`.
std::vector<Segment> segments_within(std::span<const Segment> segments, Region share) {
  std::vector<Segment> within;
  size_t begin = 0;
  for (const Segment& segment : segments) {
    const size_t from = std::max(begin, share.begin);
    const size_t to = std::min(begin + segment.numel, share.end);
    if (from < to) {
      within.push_back({.parameter = segment.parameter,
                        .offset_in_parameter = segment.offset_in_parameter + (from - begin),
                        .numel = to - from,
                        .rows = to - from == segment.numel ? segment.rows : 0});  // whole or none
    }
    begin += segment.numel;
  }
  return within;
}

/// The next multiple of 64 bytes, in elements.
size_t aligned_numel(size_t numel, DType dtype) {
  return room_of(numel * size_of(dtype)) / size_of(dtype);
}

}  // namespace

std::vector<size_t> begins_of(std::span<const PlanGroup> groups, DType dtype) {
  std::vector<size_t> begins{0};
  for (const PlanGroup& group : groups) {
    begins.back() = aligned_numel(begins.back(), dtype);
    begins.push_back(begins.back() + group.numel);
  }
  return begins;
}

std::vector<Region> shares_of(std::span<const PlanGroup> groups, int ranks_per_node, int rank) {
  std::vector<Region> shares;
  for (const PlanGroup& group : groups) {
    shares.push_back(node_share(group.numel, rank, ranks_per_node));
  }
  return shares;
}

Compressors make_compressors(const Plan& plan, BucketId id, std::span<const Region> shares,
                             const Transport& transport, const BucketStart& start) {
  const bool by_node = find_exchange(plan.buckets[id].exchange).by_node;
  const bool on_gpu = start.device.type == DeviceType::kCuda;
  // Nodes larger than the group are the exchange's to refuse.
  const int senders = std::max(1, transport.world_size() / (by_node ? plan.ranks_per_node : 1));
  Compressors made;
  for (size_t g = 0; g < shares.size(); ++g) {
    const PlanGroup& group = plan.buckets[id].groups[g];
    made.push_back(make_compressor(group.spec,
                                   {.numel = shares[g].numel(),
                                    .dtype = by_node ? DType::kFloat32 : plan.dtype,
                                    .device = start.device,
                                    .segments = segments_within(group.segments, shares[g]),
                                    .seed = plan.seed,
                                    .rank = transport.rank(),
                                    .world_size = senders,
                                    .bucket = id,
                                    .state = on_gpu ? start.state : nullptr}));
    if (!on_gpu) {  // else it has the step of all
      made.back()->set_step(start.committed_step);
    }
  }
  return made;
}

std::vector<BucketId> largest_first(const Plan& plan) {
  std::vector<BucketId> order(plan.buckets.size());
  std::iota(order.begin(), order.end(), BucketId{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](BucketId b) { return plan.buckets[b].numel; });
  return order;
}

std::string describe(const PlanBucket& bucket, std::string_view what) {
  std::string text = concat(what, " (", bucket.exchange, ", ");
  for (size_t g = 0; g < bucket.groups.size(); ++g) {
    text += (g == 0 ? "" : " + ") + to_string(bucket.groups[g].spec);
  }
  return text + ")";
}

}  // namespace gradwire
