#pragma once
// One message per (rank, bucket): the payloads of the bucket's groups one after another, each at
// its true length. What exchanges share to write and to read such messages.

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/core/extents.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// Owns what a Parts view points at: one message of every rank, each of at most `stride` bytes.
class Messages {
 public:
  Messages(int world_size, size_t stride, Device device = {})
      : buffer_(product_of(static_cast<size_t>(world_size), stride), device),
        lengths_(static_cast<size_t>(world_size)),
        stride_(stride) {}

  Parts parts() { return {.bytes = buffer_.bytes(), .stride = stride_, .lengths = lengths_}; }
  /// The whole room of rank r's message.
  std::span<std::byte> room(size_t r) const {
    return buffer_.bytes().subspan(r * stride_, stride_);
  }
  /// What is in it.
  std::span<std::byte> message(size_t r) const { return room(r).first(lengths_[r]); }
  size_t& length(size_t r) { return lengths_[r]; }

 private:
  Buffer buffer_;
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

/// A payload that covers no element, for ranks whose region is empty: it still carries the flag, so
/// that every rank learns which ranks were not finite. Returns its length.
size_t write_empty_payload(const Compressor& compressor, bool nonfinite, Payload out);

/// Whether the payload, written by this process or already checked, carries kFlagNonFinite.
bool is_nonfinite(ConstPayload payload);
/// Sets or clears it in a payload that this process has written.
void set_nonfinite(Payload payload, bool nonfinite);

/// Payloads of one group, part r from rank r, and a place to decode them into. No elements: none,
/// or, of a compressor with two rounds, payloads of the first.
struct Received {
  Compressor& compressor;
  std::span<const ConstPayload> parts;
  Gradient scratch;
  std::string_view what;
  std::span<const uint32_t> senders = {};  ///< of each part, where part r is not from rank r
};

/// Throws the TransportError that names the rank whose part does not decode; returns if all do.
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
/// sum is only looked at (a first round's not even that). A sum that overflows goes to the report,
/// unless some rank's payload was not finite anyhow: every rank decodes the same bytes, so that all
/// find the same.
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

/// An exchange that runs as one task of the stream.
class StreamExchange : public Exchange {
 public:
  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) final {
    context.stream.enqueue([this, groups, &report, context]() mutable {
      report = {};
      counted([this] { return traffic(); }, report, [&] { run_now(groups, report, context); });
    });
  }

 private:
  /// On the stream's thread; the report is empty.
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
