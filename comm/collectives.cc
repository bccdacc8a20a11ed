#include "gradwire/comm/collectives.h"

#include <algorithm>
#include <cstring>

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
  gather_into(Verb::kAllGather, mine, all, /*exact=*/false, tag);
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
  add_shards(shard(group_.rank), received, out, context);
}

// Blocks that stay in the first-level cache while all ranks are added to them, in rank order.
void Collectives::add_shards(std::span<const float> own, std::span<const float> others,
                             std::span<float> out, Context& context) const {
  constexpr size_t kBlock = 4096;
  const size_t blocks = (out.size() + kBlock - 1) / kBlock;
  struct Work {
    const Collectives& self;
    std::span<const float> own, others;
    std::span<float> out;
  } work{*this, own, others, out};
  context.stream.pool().parallel_for(blocks, [&work](size_t block) {
    const size_t begin = block * kBlock, end = std::min(begin + kBlock, work.out.size());
    float sum[kBlock];
    for (int r = 0; r < work.self.group_.size(); ++r) {
      const float* part =
          r == work.self.group_.rank
              ? work.own.data() + begin
              : work.others.data() + static_cast<size_t>(r) * work.out.size() + begin;
      for (size_t i = 0; i < end - begin; ++i) {
        sum[i] = r == 0 ? part[i] : sum[i] + part[i];
      }
    }
    std::copy(sum, sum + (end - begin), work.out.data() + begin);
  });
}

void Collectives::reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                                 Context& context) {
  scatter_sums(Verb::kReduceScatter, values, out, tag, context);
}

void Collectives::all_reduce_sum(std::span<float> values, CallTag tag, Context& context) {
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
  struct Choice {
    int64_t color;
    uint64_t next_group;
  };
  const auto own = static_cast<size_t>(group_.rank);
  std::vector<Choice> choices(static_cast<size_t>(group_.size()));
  choices[own] = {color, next_group};
  std::vector<size_t> lengths(choices.size(), sizeof(Choice));
  const auto all = std::as_writable_bytes(std::span(choices));
  gather_into(Verb::kSplit, all.subspan(own * sizeof(Choice), sizeof(Choice)),
              {all, sizeof(Choice), lengths}, /*exact=*/true, {0, "a group"});

  // Any id that no member has used will do, as long as all members choose the same.
  uint64_t base = 0;
  std::vector<int64_t> colors;
  RankGroup result;
  for (size_t r = 0; r < choices.size(); ++r) {
    base = std::max(base, choices[r].next_group);
    colors.push_back(choices[r].color);
    if (choices[r].color == color) {
      if (r == own) {
        result.rank = result.size();
      }
      result.members.push_back(group_.members[r]);
    }
  }
  std::sort(colors.begin(), colors.end());
  colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
  check(base + colors.size() <= 0xFFFF, "split: ", base, " groups exist, at most 65535 can");
  const auto place = std::lower_bound(colors.begin(), colors.end(), color) - colors.begin();
  result.id = static_cast<uint16_t>(base + static_cast<uint64_t>(place));
  next_group = static_cast<uint16_t>(base + colors.size());
  return result;
}

TrafficCounters Collectives::counters() const {
  return {bytes_sent_.load(), bytes_received_.load(), frames_sent_.load()};
}

}  // namespace gradwire
