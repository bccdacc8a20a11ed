#pragma once
// One message per (rank, bucket): the payloads of the bucket's groups one after another. What
// exchanges share to write and to read such messages, between CPUs and between GPUs.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/core/extents.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// Memory that exchanges of several buckets use in turn: the first messages of each lie in the same
/// place, and so do the second ones. Only for exchanges that run one after another, and whose result()
/// nobody reads behind the run.
class MessageMemory {
 public:
  /// kCounted: no memory at all, for exchanges that are made to be asked what they would take.
  enum class Kind : uint8_t { kReal, kCounted };
  explicit MessageMemory(Kind kind = Kind::kReal) : kind_(kind) {}

  /// The exchange made from now on is another bucket's. The largest bucket comes first: a larger one
  /// takes new memory.
  void begin_bucket() { next_ = 0; }
  /// At least `bytes`.
  std::shared_ptr<const Buffer> take(size_t bytes, Device device);
  /// Of all that was taken.
  size_t size_bytes() const { return bytes_; }

 private:
  struct Block {
    std::shared_ptr<const Buffer> memory;
    size_t bytes = 0;
  };
  Kind kind_;
  std::vector<Block> blocks_;
  size_t next_ = 0;  // of the bucket's messages
  size_t bytes_ = 0;
};

/// Of `shared`, or where that is null memory of its own.
std::shared_ptr<const Buffer> message_memory(size_t bytes, Device device, MessageMemory* shared);

/// A view of one message of every rank, each of at most `stride` bytes, and their memory: `shared`, or
/// its own where that is null.
class Messages {
 public:
  Messages(int world_size, size_t stride, Device device = {}, MessageMemory* shared = nullptr)
      : memory_(message_memory(product_of(static_cast<size_t>(world_size), stride), device, shared)),
        lengths_(static_cast<size_t>(world_size)),
        stride_(stride) {}

  Parts parts() {
    return {.bytes = memory_->bytes().first(lengths_.size() * stride_),
            .stride = stride_,
            .lengths = lengths_};
  }
  /// The whole room of rank r's message.
  std::span<std::byte> room(size_t r) const {
    return memory_->bytes().subspan(r * stride_, stride_);
  }
  /// What is in it.
  std::span<std::byte> message(size_t r) const { return room(r).first(lengths_[r]); }
  size_t& length(size_t r) { return lengths_[r]; }
  size_t ranks() const { return lengths_.size(); }
  size_t stride() const { return stride_; }

 private:
  std::shared_ptr<const Buffer> memory_;
  std::vector<size_t> lengths_;
  size_t stride_;
};

/// Bytes that a payload takes where each begins a cache line of its own.
constexpr size_t room_of(size_t capacity_bytes) { return (capacity_bytes + 63) / 64 * 64; }

/// What a receiver knows about a payload before it looks.
struct Expected {
  const Compressor& compressor;
  Region region;
  size_t group = 0;
};

/// Takes payloads off the front of a message received from `rank`. Every mismatch is a
/// TransportError naming the rank and `what`, e.g. "bucket 3".
class MessageReader {
 public:
  MessageReader(ConstPayload message, size_t rank, std::string_view what)
      : rest_(message), rank_(rank), what_(what) {}

  struct Item {
    ConstPayload payload;
    bool nonfinite = false;
  };
  Item next(const Expected& expected);
  /// Nothing may be left.
  void finish() const;

 private:
  template <class... Parts>
  void require(bool condition, size_t group, const Parts&... parts) const;

  ConstPayload rest_;
  size_t rank_;
  std::string_view what_;
};

/// Upper bound of a payload of `region`, in bytes; without elements it has a header at most.
size_t room_for(const Compressor& compressor, Region region);

/// What a rank sends of its own payload: as much as counts, or all of it on a GPU, where no host
/// knows its length.
Payload sent_part(const GroupSlot& slot);

/// The messages of an exchange, whose payloads lie and are looked at as the transport has it. Where
/// true lengths travel: one payload behind another, each checked by a MessageReader before a byte
/// of it is used. Else, on a GPU: each at its capacity, at a place that all ranks know, checked by
/// the kernels that read it; nothing waits for the GPU, and flags are the step's. A region without
/// elements has no payload there: flags reach everyone with those of the others.
class GroupMessages : public Messages {
 public:
  /// rooms(g, r): the most bytes of group g's payload in a message of or to rank r. The same on all
  /// ranks.
  template <class Rooms>
  GroupMessages(const ExchangeContext& made_from, const Rooms& rooms)
      : GroupMessages(made_from, layout_of(made_from, rooms)) {}

  /// Whether payloads travel at their capacity, unseen by the host.
  bool at_capacity() const { return !begins_.empty(); }
  /// What a message with so many bytes of payloads costs each rank that it is sent to.
  uint64_t bytes_sent(size_t payload_bytes) const {
    return at_capacity() ? stride() : kFrameHeaderBytes + payload_bytes;
  }
  /// Whether the payloads lie in one piece as they travel.
  bool lie_together(std::span<const GroupSlot> groups) const;

  /// Rank r's message: write_one(g, region, out) writes each group's payload, of regions(g).
  template <class Regions, class WriteOne>
  void write(size_t r, const Regions& regions, const WriteOne& write_one) {
    size_t end = 0;
    for (size_t g = 0; g < compressors_.size(); ++g) {
      const Region region = regions(g);
      const Payload out = at_capacity() ? place(g, r, region) : room(r).subspan(end);
      write_one(g, region, out);
      end += at_capacity() ? 0 : payload_bytes(out);
    }
    length(r) = at_capacity() ? stride() : end;
  }
  /// All messages: take(g, r, item) is given each payload, of regions(g, r).
  template <class Regions, class Take>
  void read(const Regions& regions, const Take& take) const {
    for (size_t r = 0; r < ranks(); ++r) {
      MessageReader reader(message(r), r, what_);
      for (size_t g = 0; g < compressors_.size(); ++g) {
        const Region region = regions(g, r);
        take(g, r, at_capacity() ? MessageReader::Item{place(g, r, region), false}
                                 : reader.next({*compressors_[g], region, g}));
      }
      if (!at_capacity()) {
        reader.finish();
      }
    }
  }
  /// Behind their use, at capacity: headers become such as every reader refuses, so that what a
  /// broken call never delivers is not taken for what came before.
  void wipe(Stream& stream);

 private:
  struct Layout {
    std::vector<size_t> begins;  ///< of each group's payload; empty where true lengths travel
    size_t stride;
  };
  GroupMessages(const ExchangeContext& made_from, Layout layout);

  template <class Rooms>
  static Layout layout_of(const ExchangeContext& made_from, const Rooms& rooms) {
    const auto ranks = static_cast<size_t>(made_from.transport->world_size());
    const bool at_capacity = !made_from.transport->traits().true_lengths;
    std::vector<size_t> begins, lengths(ranks);
    size_t end = 0;
    for (size_t g = 0; g < made_from.compressors.size(); ++g) {
      size_t most = 0;
      for (size_t r = 0; r < ranks; ++r) {
        const size_t bytes = rooms(g, r);
        most = std::max(most, bytes);
        lengths[r] += bytes;
      }
      if (at_capacity) {
        begins.push_back(end);
        end += room_of(most);
      }
    }
    return {std::move(begins), at_capacity ? end : *std::ranges::max_element(lengths)};
  }
  Payload place(size_t g, size_t r, Region region) const {
    return room(r).subspan(begins_[g], room_for(*compressors_[g], region));
  }

  const std::vector<Compressor*> compressors_;
  const std::string_view what_;
  const std::vector<size_t> begins_;
};

/// A payload that covers no element, for ranks whose region is empty: it still carries the flag, so
/// that every rank learns which ranks were not finite.
void write_empty_payload(const Compressor& compressor, bool nonfinite, Payload out);

/// Whether the payload, written by this process or already checked, carries kFlagNonFinite.
bool is_nonfinite(ConstPayload payload);
/// Sets or clears it in a payload that this process has written.
void set_nonfinite(Payload payload, bool nonfinite);
/// Records the flag of a payload from `rank`.
void note_flag(bool nonfinite, size_t rank, ExchangeReport& report);

/// Payloads of one group, part r from rank r, and a place to decode them into. Without elements:
/// none, or, of a compressor with two rounds, payloads of the first.
struct Received {
  Compressor& compressor;
  std::span<const ConstPayload> parts;
  Gradient scratch;
  std::string_view what;
  std::span<const uint32_t> senders = {};  ///< of each part, where part r is not from rank r
};

/// Throws the TransportError that names the rank whose part does not decode; returns if all do, and
/// on a GPU, which finds that itself.
void find_bad_part(const Received& received, Context& context);

/// Runs `step`, which uses the received parts. What a compressor finds wrong in one of them becomes
/// a TransportError naming the rank it came from.
template <class Step>
void blame_sender(const Received& received, Context& context, Step&& step) {
  try {
    step();
  } catch (const InvalidArgument&) {
    find_bad_part(received, context);
    throw;
  }
}

/// Decodes a result into the received group's scratch, which becomes its mean; without elements the
/// sum is only looked at, and the compressor takes over that of a first round. A sum that overflows
/// goes to the report, unless some rank's payload was not finite anyhow: every rank decodes the same
/// bytes, so that all find the same. On a GPU it goes to the step's words.
void decode(const Received& received, const ExchangeResult& result, ExchangeReport& report,
            Context& context);

/// Runs `step` and adds what `traffic()` counted meanwhile to the report.
template <class Traffic, class Report, class Step>
void counted(const Traffic& traffic, Report& report, Step&& step) {
  const TrafficCounters before = traffic();
  step();
  const TrafficCounters after = traffic();
  report.bytes_sent += after.bytes_sent - before.bytes_sent;
  report.bytes_received += after.bytes_received - before.bytes_received;
}

/// An exchange that runs as one task of the stream; on a GPU in the caller, as calls that enqueue.
class StreamExchange : public Exchange {
 public:
  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) final;

 private:
  /// The report is empty.
  virtual void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
                       Context& context) = 0;
  /// What the transports that run_now() calls itself have counted so far.
  virtual TrafficCounters traffic() const = 0;
};

/// Runs `step` and adds the microseconds it took to `total`.
template <class Step>
void timed(int64_t& total, Step&& step) {
  const auto begin = std::chrono::steady_clock::now();
  step();
  total += std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin)
               .count();
}

}  // namespace gradwire
