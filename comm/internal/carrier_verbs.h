#pragma once
// The verbs over a carrier's collectives: headers compared on all ranks first, payloads after that.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "gradwire/comm/collectives.h"
#include "gradwire/comm/internal/add_shards.h"
#include "gradwire/comm/internal/carrier_world.h"
#include "gradwire/comm/internal/split_groups.h"
#include "gradwire/comm/transport/frame.h"

namespace gradwire {

/// The verbs of one group, over an engine.
class CarrierVerbs {
 public:
  CarrierVerbs(std::shared_ptr<CarrierWorld> world, std::shared_ptr<CarrierEngine> engine,
               RankGroup group)
      : world_(std::move(world)),
        engine_(std::move(engine)),
        group_(std::move(group)),
        size_(static_cast<size_t>(group_.size())),
        own_(static_cast<size_t>(group_.rank)),
        headers_(2 * size_),
        lengths_(size_, sizeof(FrameHeader)) {}

  int rank() const { return group_.rank; }
  int world_size() const { return group_.size(); }
  TrafficCounters counters() const {
    return {bytes_sent_.load(), bytes_received_.load(), frames_sent_.load()};
  }

  void all_gather(std::span<const std::byte> mine, Parts all, CallTag tag) {
    check(mine.size() <= all.stride, "all_gather: length is ", mine.size(), ", capacity is ",
          all.stride);
    call(
        {Verb::kAllGather, tag, all.stride, FrameFill::kUpTo}, [&](size_t) { return mine.size(); },
        [&] { gather(mine, all); });
  }

  void all_to_all(Parts send, Parts receive, CallTag tag) {
    check(send.stride == receive.stride, "all_to_all: parts to send have a stride of ", send.stride,
          " bytes, those to receive of ", receive.stride, ", expected the same");
    for (const size_t length : send.lengths) {
      check(length <= send.stride, "all_to_all: length is ", length, ", capacity is ", send.stride);
    }
    call(
        {Verb::kAllToAll, tag, send.stride, FrameFill::kUpTo},
        [&](size_t d) { return send.lengths[d]; },
        [&] {
          for (size_t r = 0; r < size_; ++r) {
            receive.lengths[r] = heard(r).bytes;
          }
          const auto from = packed(send, staged_), into = packed(receive, received_);
          if (from.data() == staged_.data()) {
            copy_parts(send, from);
          }
          move(from, send.lengths, into, receive.lengths);
          if (into.data() == received_.data()) {
            size_t at = 0;
            for (size_t r = 0; r < size_; at += receive.lengths[r++]) {
              copy(into.subspan(at, receive.lengths[r]), receive.part(r));
            }
          }
        });
  }

  void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                      Context& context) {
    call(
        reduction(Verb::kReduceScatter, values, tag), [&](size_t) { return values.size_bytes(); },
        [&] { scatter_sums(values, out, context); });
  }

  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) {
    check(tag.all_reduce == AllReduce::kRankOrder,
          "all_reduce_sum: a carrier adds in rank order, another order was asked for");
    call(
        reduction(Verb::kAllReduceSum, values, tag), [&](size_t) { return values.size_bytes(); },
        [&] {
          const std::span<float> own = shard(values, own_);
          scatter_sums(values, own, context);
          gather_shards(values);
        });
  }

  void broadcast(std::span<std::byte> bytes, int root, CallTag tag) {
    const auto source = static_cast<size_t>(root);
    call(
        {Verb::kBroadcast, tag, bytes.size(), FrameFill::kExact, source},
        [&](size_t) { return bytes.size(); },
        [&] {
          if (bytes.empty()) {
            return;
          }
          engine_->use([&](const Carrier& carrier) { carrier.broadcast(bytes, root); });
          (own_ == source ? bytes_sent_ : bytes_received_) +=
              bytes.size() * (own_ == source ? size_ - 1 : 1);
        });
  }

  void barrier(CallTag tag) {
    call({Verb::kBarrier, tag, 0, FrameFill::kExact}, [](size_t) { return size_t{0}; }, [] {});
  }

  /// The group of this rank's color, and its engine.
  std::pair<RankGroup, std::shared_ptr<CarrierEngine>> split(int color, uint16_t& next_group) {
    std::vector<GroupChoice> choices(size_);
    const GroupChoice mine{color, next_group};
    std::pair<RankGroup, std::shared_ptr<CarrierEngine>> made;
    call(
        {Verb::kSplit, {0, "a group"}, sizeof(GroupChoice), FrameFill::kExact},
        [](size_t) { return sizeof(GroupChoice); },
        [&] {
          gather_equal(std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(choices)));
          std::vector<RankGroup> groups = split_groups(group_, choices, next_group);
          std::vector<std::vector<int>> places;
          for (const RankGroup& group : groups) {
            places.emplace_back();
            for (const int member : group.members) {
              const auto at =
                  std::lower_bound(group_.members.begin(), group_.members.end(), member);
              places.back().push_back(static_cast<int>(at - group_.members.begin()));
            }
          }
          made.first = std::move(own_group(groups));
          engine_->use([&](const Carrier& carrier) {
            made.second = std::make_shared<CarrierEngine>(carrier.split(places));
          });
        });
    world_->add(made.second);
    return made;
  }

 private:
  // When a rank dies, its engine's connections and its link to the control group break together.
  static constexpr std::chrono::milliseconds kNewsWithin{250};

  struct Call {
    Verb verb;
    CallTag tag;
    size_t capacity;
    FrameFill fill;
    size_t root = 0;
  };

  static Call reduction(Verb verb, std::span<const float> values, CallTag tag) {
    return {verb, tag, values.size_bytes(), FrameFill::kExact};
  }

  /// Compares the call with that of all other ranks, then moves its payload. `bytes_for(d)` is what
  /// the header for rank d says.
  template <class BytesFor, class Move>
  void call(const Call& call, const BytesFor& bytes_for, const Move& move) {
    const auto start = std::chrono::steady_clock::now();
    const std::string name = call_name(call.verb, call.tag);
    try {
      if (const auto over = world_->control().verdict(std::chrono::milliseconds(0))) {
        throw *over;
      }
      world_->control().entered(group_.id);
      exchange_headers(call, bytes_for);
      move();
    } catch (const TransportError& error) {
      throw with_name(name, error);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const std::exception& error) {
      throw with_name(name, explained(error, std::chrono::steady_clock::now() - start));
    }
  }

  static std::string call_name(Verb verb, const CallTag& tag) {
    return tag.what.empty() ? concat(to_string(verb), ": ")
                            : concat(to_string(verb), " of ", tag.what, ": ");
  }

  static TransportError with_name(const std::string& name, const TransportError& error) {
    const std::string text = error.what();
    return TransportError(text.starts_with(name) ? text : name + text, error.peer());
  }

  /// The engine has failed, or come to its deadline: why?
  TransportError explained(const std::exception& error,
                           std::chrono::steady_clock::duration elapsed) {
    // Engines round their deadlines.
    const bool late = elapsed >= world_->timeout - world_->timeout / 20;
    if (const auto over =
            world_->control().verdict(late ? std::chrono::milliseconds(0) : kNewsWithin)) {
      return *over;
    }
    return world_->control().blame({.group = group_.id,
                                    .members = group_.members,
                                    .trouble = late ? std::string() : error.what()});
  }

  template <class BytesFor>
  void exchange_headers(const Call& call, const BytesFor& bytes_for) {
    FrameHeader mine;
    mine.verb = static_cast<uint8_t>(call.verb);
    mine.sequence = sequence_++;
    mine.fingerprint = call.tag.fingerprint;
    mine.group = group_.id;
    mine.capacity = call.capacity;
    mine.source = static_cast<uint32_t>(group_.members[own_]);
    mine.reserved = call.root;
    for (size_t d = 0; d < size_; ++d) {
      headers_[d] = mine;
      headers_[d].bytes = bytes_for(d);
      headers_[d].checksum = checksum_of(headers_[d]);
    }
    const auto all = std::as_writable_bytes(std::span(headers_));
    const size_t half = size_ * sizeof(FrameHeader);
    engine_->use([&](const Carrier& carrier) {
      carrier.all_to_all({all.first(half), lengths_, all.subspan(half), lengths_});
    });
    bytes_sent_ += (size_ - 1) * sizeof(FrameHeader);
    bytes_received_ += (size_ - 1) * sizeof(FrameHeader);
    frames_sent_ += size_ - 1;
    for (size_t r = 0; r < size_; ++r) {
      FrameHeader expected = mine;
      expected.source = static_cast<uint32_t>(group_.members[r]);
      check_frame(heard(r), expected, call.fill);
      if (heard(r).reserved != call.root) {
        throw TransportError(concat("rank ", expected.source, " expects the bytes of rank ",
                                    heard(r).reserved, ", expected rank ", call.root),
                             static_cast<int>(expected.source));
      }
    }
  }
  const FrameHeader& heard(size_t rank) const { return headers_[size_ + rank]; }

  // ---- payloads: the engine's collectives take parts that lie one after another

  static void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    if (!from.empty() && from.data() != to.data()) {
      std::memmove(to.data(), from.data(), from.size());
    }
  }

  static std::span<std::byte> room(std::vector<std::byte>& buffer, size_t bytes) {
    if (buffer.size() < bytes) {
      buffer.resize(bytes);
    }
    return std::span(buffer).first(bytes);
  }

  void move(std::span<const std::byte> send, std::span<const size_t> send_lengths,
            std::span<std::byte> receive, std::span<const size_t> receive_lengths) {
    engine_->use([&](const Carrier& carrier) {
      carrier.all_to_all({send, send_lengths, receive, receive_lengths});
    });
    bytes_sent_ += send.size() - send_lengths[own_];
    bytes_received_ += receive.size() - receive_lengths[own_];
  }

  void gather_equal(std::span<const std::byte> mine, std::span<std::byte> all) {
    engine_->use([&](const Carrier& carrier) { carrier.all_gather(mine, all); });
    bytes_sent_ += (size_ - 1) * mine.size();
    bytes_received_ += (size_ - 1) * mine.size();
  }

  /// The parts in place where they fill their strides, else room for them in `buffer`.
  std::span<std::byte> packed(const Parts& parts, std::vector<std::byte>& buffer) const {
    size_t total = 0;
    for (const size_t length : parts.lengths) {
      total += length;
    }
    return total == parts.stride * size_ ? parts.bytes.first(total) : room(buffer, total);
  }

  void copy_parts(const Parts& parts, std::span<std::byte> into) const {
    size_t at = 0;
    for (size_t r = 0; r < size_; at += parts.lengths[r++]) {
      copy(parts.part(r), into.subspan(at, parts.lengths[r]));
    }
  }

  /// Padded to the longest part: engines gather equal ones.
  void gather(std::span<const std::byte> mine, Parts all) {
    size_t longest = 0;
    for (size_t r = 0; r < size_; ++r) {
      all.lengths[r] = heard(r).bytes;
      longest = std::max(longest, all.lengths[r]);
    }
    if (longest == 0) {
      return;
    }
    // From memory of its own: `mine` may lie where the engine writes.
    const std::span<std::byte> padded = room(staged_, longest);
    copy(mine, padded);
    const bool direct = longest == all.stride;
    const std::span<std::byte> into =
        direct ? all.bytes.first(longest * size_) : room(received_, longest * size_);
    gather_equal(padded, into);
    for (size_t r = 0; !direct && r < size_; ++r) {
      copy(into.subspan(r * longest, all.lengths[r]), all.part(r));
    }
  }

  template <class T>
  std::span<T> shard(std::span<T> values, size_t r) const {
    const int size = group_.size(), place = static_cast<int>(r);
    const size_t begin = shard_begin(values.size(), size, place);
    return values.subspan(begin, shard_begin(values.size(), size, place + 1) - begin);
  }

  void scatter_sums(std::span<const float> values, std::span<float> out, Context& context) {
    if (values.empty()) {
      return;
    }
    Workspace::Frame frame(context.workspace);
    const std::span<float> received = frame.take<float>(out.size() * size_);
    std::vector<size_t>& to = shard_lengths_;
    to.resize(2 * size_);
    for (size_t r = 0; r < size_; ++r) {
      to[r] = shard(values, r).size_bytes();
      to[size_ + r] = out.size_bytes();
    }
    move(std::as_bytes(values), std::span(to).first(size_), std::as_writable_bytes(received),
         std::span(to).subspan(size_));
    add_shards({shard(values, own_), received, group_.rank, group_.size()}, out, context);
  }

  void gather_shards(std::span<float> values) {
    const size_t longest = (values.size() + size_ - 1) / size_ * sizeof(float);
    if (longest == 0) {
      return;
    }
    const std::span<std::byte> padded = room(staged_, longest);
    copy(std::as_bytes(shard(values, own_)), padded);
    const bool direct = values.size() % size_ == 0;
    const std::span<std::byte> into =
        direct ? std::as_writable_bytes(values) : room(received_, longest * size_);
    gather_equal(padded, into);
    for (size_t r = 0; !direct && r < size_; ++r) {
      const auto part = std::as_writable_bytes(shard(values, r));
      copy(into.subspan(r * longest, part.size()), part);
    }
  }

  std::shared_ptr<CarrierWorld> world_;
  std::shared_ptr<CarrierEngine> engine_;
  RankGroup group_;
  const size_t size_, own_;
  uint32_t sequence_ = 0;

  // Kept between calls.
  std::vector<FrameHeader> headers_;  ///< those sent, by destination; those heard, by source
  std::vector<size_t> lengths_, shard_lengths_;
  std::vector<std::byte> staged_, received_;

  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, frames_sent_{0};
};

}  // namespace gradwire
