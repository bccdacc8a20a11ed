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

std::string name_of(Verb verb, const CallTag& tag) {
  return tag.what.empty() ? std::string(to_string(verb))
                          : concat(to_string(verb), " of ", tag.what);
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
  lengths_.resize(size);
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
    outgoing_.push_back({peer_at(step), mine});
    incoming_.push_back({source,
                         all.bytes.subspan(s * all.stride, exact ? all.lengths[s] : all.stride), 0,
                         exact, 0});
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
  check(send.lengths[own] <= receive.stride, "all_to_all: own part has ", send.lengths[own],
        " bytes, capacity is ", receive.stride);
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < group_.size(); ++step) {
    const int destination = peer_at(step), source = peer_at(group_.size() - step);
    outgoing_.push_back({destination, send.part(static_cast<size_t>(destination))});
    incoming_.push_back(
        {source,
         receive.bytes.subspan(static_cast<size_t>(source) * receive.stride, receive.stride), 0,
         false, 0});
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
    outgoing_.push_back({destination, bytes_of(shard(destination))});
    incoming_.push_back({source,
                         std::as_writable_bytes(received.subspan(
                             static_cast<size_t>(source) * out.size(), out.size())),
                         0, true, 0});
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
    outgoing_.push_back({peer_at(step), bytes_of(own)});
    incoming_.push_back({source,
                         std::as_writable_bytes(values.subspan(
                             first, shard_begin(values.size(), size, source + 1) - first)),
                         0, true, 0});
  }
  exchange(Verb::kAllReduceSum, tag);
}

void Collectives::broadcast(std::span<std::byte> bytes, int root, CallTag tag) {
  outgoing_.clear();
  incoming_.clear();
  if (group_.rank == root) {
    for (int step = 1; step < group_.size(); ++step) {
      outgoing_.push_back({peer_at(step), bytes});
    }
  } else {
    incoming_.push_back({root, bytes, 0, true, 0});
  }
  exchange(Verb::kBroadcast, tag);
}

void Collectives::barrier(CallTag tag) {
  outgoing_.clear();
  incoming_.clear();
  for (int step = 1; step < group_.size(); ++step) {
    outgoing_.push_back({peer_at(step), {}});
    incoming_.push_back({peer_at(group_.size() - step), {}, 0, true, 0});
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

void Collectives::exchange(Verb verb, CallTag tag) {
  const Call call{verb, tag, sequence_++};
  receives_.clear();
  sends_.clear();
  try {
    post_all(call);
    for (size_t i = 0; i < incoming_.size(); ++i) {
      engine_->wait(incoming_[i].first, deadline());
      accept(call, incoming_[i], std::span(frames_).subspan(i * kFirstMessageBytes));
    }
    finish();
  } catch (const TransportError& error) {
    const std::string reason = concat(name_of(verb, tag), ": ", error.what());
    close(reason);
    throw TransportError(reason, error.peer());
  } catch (const std::exception& error) {
    close(concat(name_of(verb, tag), ": ", error.what()));
    throw;
  }
}

// The caller's buffers may go away when this returns: nothing that was posted may still be moving.
// The first wait that throws has taken all messages back.
void Collectives::close(std::string_view reason) {
  engine_->close(reason);
  try {
    for (const Incoming& message : incoming_) {
      if (message.first != 0) {
        engine_->wait(message.first, deadline());
      }
    }
    finish();
  } catch (const TransportError&) {
    // The engine says that it is closed, which is what was asked of it.
  }
}

void Collectives::post_all(const Call& call) {
  for (const Outgoing& message : outgoing_) {
    check(message.bytes.size() <= kMaxPayloadBytes, "payload has ", message.bytes.size(),
          " bytes, at most ", kMaxPayloadBytes, " can be sent");
  }
  const size_t frames = incoming_.size() + outgoing_.size();
  if (frames_.size() < frames * kFirstMessageBytes) {
    frames_.resize(frames * kFirstMessageBytes);
  }
  std::span<std::byte> free(frames_);
  const auto take_frame = [&free] {
    const auto frame = free.first(kFirstMessageBytes);
    free = free.subspan(kFirstMessageBytes);
    return frame;
  };
  const uint64_t tag = message_tag(group_.id, call.sequence, 0);
  for (Incoming& message : incoming_) {
    message.first =
        engine_->post_recv(group_.members[static_cast<size_t>(message.peer)], tag, take_frame());
  }
  for (const Outgoing& message : outgoing_) {
    send_first(call, message, take_frame());
  }
  // After all headers, so that on a slow link nobody waits for a header behind others' chunks.
  for (const Outgoing& message : outgoing_) {
    send_chunks(call, message);
  }
}

void Collectives::send_first(const Call& call, const Outgoing& message,
                             std::span<std::byte> frame) {
  FrameHeader header;
  header.verb = static_cast<uint8_t>(call.verb);
  header.sequence = call.sequence;
  header.source = static_cast<uint32_t>(engine_->rank());
  header.fingerprint = call.tag.fingerprint;
  header.bytes = message.bytes.size();
  header.group = group_.id;
  header.checksum = checksum_of(header);
  std::memcpy(frame.data(), &header, sizeof(header));
  const auto head = message.bytes.first(std::min(message.bytes.size(), kInlineBytes));
  copy(head, frame.subspan(kFrameHeaderBytes));

  const int peer = group_.members[static_cast<size_t>(message.peer)];
  sends_.push_back(engine_->post_send(peer, message_tag(group_.id, call.sequence, 0),
                                      frame.first(kFrameHeaderBytes + head.size())));
  bytes_sent_ += kFrameHeaderBytes + message.bytes.size();
  frames_sent_ += 1;
}

void Collectives::send_chunks(const Call& call, const Outgoing& message) {
  const int peer = group_.members[static_cast<size_t>(message.peer)];
  for (size_t i = 0; i < chunk_count(message.bytes.size()); ++i) {
    const auto part = static_cast<uint16_t>(i + 1);
    sends_.push_back(engine_->post_send(peer, message_tag(group_.id, call.sequence, part),
                                        chunk_of(message.bytes, i)));
  }
}

void Collectives::accept(const Call& call, Incoming& message, std::span<const std::byte> frame) {
  const FrameHeader header = read_frame_header(frame);
  verify(call, message, header);
  message.length = header.bytes;
  const auto payload = message.into.first(message.length);
  copy(frame.subspan(kFrameHeaderBytes, std::min(message.length, kInlineBytes)), payload);
  for (size_t i = 0; i < chunk_count(message.length); ++i) {
    const auto part = static_cast<uint16_t>(i + 1);
    receives_.push_back(engine_->post_recv(group_.members[static_cast<size_t>(message.peer)],
                                           message_tag(group_.id, call.sequence, part),
                                           chunk_of(payload, i)));
  }
  bytes_received_ += kFrameHeaderBytes + message.length;
}

void Collectives::verify(const Call& call, const Incoming& message,
                         const FrameHeader& header) const {
  const int peer = group_.members[static_cast<size_t>(message.peer)];
  const auto require = [peer](bool condition, const auto&... parts) {
    if (!condition) [[unlikely]] {
      throw TransportError(concat("rank ", peer, " sent ", parts...), peer);
    }
  };
  require(header.magic == FrameHeader::kMagic && header.checksum == checksum_of(header),
          "bytes that are no frame header");
  require(header.version == FrameHeader::kVersion, "frame version ", header.version, ", expected ",
          FrameHeader::kVersion);
  require(header.source == static_cast<uint32_t>(peer) && header.group == group_.id &&
              header.sequence == call.sequence,
          "call ", header.sequence, " of group ", header.group, " as rank ", header.source,
          ", expected call ", call.sequence, " of group ", group_.id);
  require(header.verb == static_cast<uint8_t>(call.verb), to_string(static_cast<Verb>(header.verb)),
          ", expected ", to_string(call.verb), ": ranks disagree on the order of calls");
  require(header.fingerprint == call.tag.fingerprint, "fingerprint 0x", std::hex,
          header.fingerprint, ", expected 0x", call.tag.fingerprint, std::dec,
          ": ranks disagree on shape, dtype or spec");
  require(header.bytes <= message.into.size() &&
              (!message.exact || header.bytes == message.into.size()),
          header.bytes, " bytes, expected ", message.exact ? "" : "at most ", message.into.size());
}

void Collectives::finish() {
  for (const MessageHandle handle : receives_) {
    engine_->wait(handle, deadline());
  }
  for (const MessageHandle handle : sends_) {
    engine_->wait(handle, deadline());
  }
}

}  // namespace gradwire
