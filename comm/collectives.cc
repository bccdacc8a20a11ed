#include "gradwire/comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "gradwire/comm/internal/add_shards.h"
#include "gradwire/comm/internal/split_groups.h"
#include "gradwire/comm/transport/frame.h"

namespace gradwire {
namespace {

std::span<const std::byte> bytes_of(std::span<const float> values) { return std::as_bytes(values); }

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) {
    std::memmove(to.data(), from.data(), from.size());
  }
}

}  // namespace

RankGroup RankGroup::everyone(const PointToPoint& engine) {
  RankGroup group;
  for (int r = 0; r < engine.world_size(); ++r) {
    group.members.push_back(r);
  }
  group.rank = engine.rank();
  return group;
}

Collectives::Collectives(std::shared_ptr<PointToPoint> engine, RankGroup group,
                         std::chrono::milliseconds timeout)
    : engine_(std::move(engine)), group_(std::move(group)), timeout_(timeout) {
  const auto size = static_cast<size_t>(group_.size());
  outgoing_.reserve(size);
  incoming_.reserve(size);
  sends_.reserve(2 * size);
  receives_.reserve(2 * size);
}

void Collectives::all_gather(std::span<const std::byte> mine, Parts all, CallTag tag) {
  switch (tag.all_gather) {
    case AllGather::kDirect:
      return gather_into(Verb::kAllGather, mine, all, /*exact=*/false, tag);
    case AllGather::kRing:
      return gather_around(mine, all, tag);
    case AllGather::kBruck:
      return gather_doubling(mine, all, tag);
  }
}

void Collectives::gather_into(Verb verb, std::span<const std::byte> mine, Parts all, bool exact,
                              CallTag tag) {
  check(mine.size() <= all.stride, to_string(verb), ": length is ", mine.size(), ", capacity is ",
        all.stride);
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < group_.size(); ++step) {
    const int source = peer_at(group_.size() - step);
    const auto s = static_cast<size_t>(source);
    outgoing_.push_back({peer_at(step), mine, exact ? mine.size() : all.stride});
    incoming_.push_back(
        {source, all.bytes.subspan(s * all.stride, exact ? all.lengths[s] : all.stride), exact});
  }
  const auto own = static_cast<size_t>(group_.rank);
  copy(mine, all.bytes.subspan(own * all.stride));
  exchange(verb, tag);
  all.lengths[own] = mine.size();
  for (const Incoming& message : incoming_) {
    all.lengths[static_cast<size_t>(message.peer)] = message.length;
  }
}

void Collectives::all_to_all(Parts send, Parts receive, CallTag tag) {
  const auto own = static_cast<size_t>(group_.rank);
  check(send.stride == receive.stride, "all_to_all: parts to send have a stride of ", send.stride,
        " bytes, those to receive of ", receive.stride, ", expected the same");
  for (const size_t length : send.lengths) {
    check(length <= send.stride, "all_to_all: length is ", length, ", capacity is ", send.stride);
  }
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < group_.size(); ++step) {
    const int destination = peer_at(step), source = peer_at(group_.size() - step);
    outgoing_.push_back({destination, send.part(static_cast<size_t>(destination)), send.stride});
    incoming_.push_back(
        {source,
         receive.bytes.subspan(static_cast<size_t>(source) * receive.stride, receive.stride)});
  }
  copy(send.part(own), receive.bytes.subspan(own * receive.stride));
  exchange(Verb::kAllToAll, tag);
  receive.lengths[own] = send.lengths[own];
  for (const Incoming& message : incoming_) {
    receive.lengths[static_cast<size_t>(message.peer)] = message.length;
  }
}

void Collectives::scatter_sums(Verb verb, std::span<const float> values, std::span<float> out,
                               CallTag tag, Context& context) {
  const int size = group_.size();
  const auto shard = [&](int r) {
    const size_t begin = shard_begin(values.size(), size, r);
    return values.subspan(begin, shard_begin(values.size(), size, r + 1) - begin);
  };
  Workspace::Frame frame(context.workspace);
  const std::span<float> received = frame.take<float>(out.size() * static_cast<size_t>(size));
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < size; ++step) {
    const int destination = peer_at(step), source = peer_at(size - step);
    const auto theirs = bytes_of(shard(destination));
    outgoing_.push_back({destination, theirs, theirs.size()});
    incoming_.push_back({source,
                         std::as_writable_bytes(received.subspan(
                             static_cast<size_t>(source) * out.size(), out.size())),
                         true});
  }
  exchange(verb, tag);
  add_shards({shard(group_.rank), received, group_.rank, size}, out, context);
}

void Collectives::reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                                 Context& context) {
  scatter_sums(Verb::kReduceScatter, values, out, tag, context);
}

void Collectives::all_reduce_sum(std::span<float> values, CallTag tag, Context& context) {
  switch (tag.all_reduce) {
    case AllReduce::kRankOrder:
      return reduce_in_rank_order(values, tag, context);
    case AllReduce::kRing:
      return reduce_around(values, tag, context);
    case AllReduce::kRabenseifner:
      return reduce_halving(values, tag, context);
  }
}

void Collectives::reduce_in_rank_order(std::span<float> values, CallTag tag, Context& context) {
  const int size = group_.size();
  const size_t begin = shard_begin(values.size(), size, group_.rank);
  const size_t count = shard_begin(values.size(), size, group_.rank + 1) - begin;
  // In place: scatter_sums returns when the shards of others have left `values`, so that their sums
  // may arrive there.
  const std::span<float> own = values.subspan(begin, count);
  scatter_sums(Verb::kAllReduceSum, values, own, tag, context);
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < size; ++step) {
    const int source = peer_at(size - step);
    const size_t first = shard_begin(values.size(), size, source);
    outgoing_.push_back({peer_at(step), bytes_of(own), own.size_bytes()});
    incoming_.push_back({source,
                         std::as_writable_bytes(values.subspan(
                             first, shard_begin(values.size(), size, source + 1) - first)),
                         true});
  }
  exchange(Verb::kAllReduceSum, tag);
}

void Collectives::broadcast(std::span<std::byte> bytes, int root, CallTag tag) {
  outgoing_.clear();
  incoming_.clear();
  if (group_.rank == root) {
    for (int step = 1; step < group_.size(); ++step) {
      outgoing_.push_back({peer_at(step), bytes, bytes.size()});
    }
  } else {
    incoming_.push_back({root, bytes, true});
  }
  exchange(Verb::kBroadcast, tag);
}

void Collectives::barrier(CallTag tag) {
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < group_.size(); ++step) {
    outgoing_.push_back({peer_at(step), {}, 0});
    incoming_.push_back({peer_at(group_.size() - step), {}, true});
  }
  exchange(Verb::kBarrier, tag);
}

RankGroup Collectives::split(int color, uint16_t& next_group) {
  const auto own = static_cast<size_t>(group_.rank);
  std::vector<GroupChoice> choices(static_cast<size_t>(group_.size()));
  choices[own] = {color, next_group};
  std::vector<size_t> lengths(choices.size(), sizeof(GroupChoice));
  const auto all = std::as_writable_bytes(std::span(choices));
  gather_into(Verb::kSplit, all.subspan(own * sizeof(GroupChoice), sizeof(GroupChoice)),
              {all, sizeof(GroupChoice), lengths}, /*exact=*/true, {0, "a group"});
  std::vector<RankGroup> groups = split_groups(group_, choices, next_group);
  return std::move(own_group(groups));
}

TrafficCounters Collectives::counters() const {
  return {bytes_sent_.load(), bytes_received_.load(), frames_sent_.load()};
}

}  // namespace gradwire
