#pragma once
// How the payloads of all ranks become one mean gradient. One registry row per exchange.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradwire/comm/transport.h"
#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {

/// One group of a bucket while the bucket is exchanged.
struct GroupSlot {
  Compressor* compressor = nullptr;
  Payload mine;     ///< compressed, capacity_bytes() long; the header gives the true length
  Residual e_next;  ///< takes put-backs; empty without error feedback
  Gradient mean;    ///< written
};

/// What one run moved and what it found. Valid once the stream has passed run().
struct ExchangeReport {
  uint64_t bytes_sent = 0;  ///< frames included, from the transport's counters
  uint64_t bytes_received = 0;
  uint64_t predicted_bytes_sent = 0;  ///< the closed form on the true payload lengths
  int nonfinite_rank = -1;            ///< lowest rank whose payload carried the flag, -1 if none
  int64_t transfer_us = 0;            ///< time inside the transport
  int64_t codec_us = 0;               ///< slicing, merging and decompressing
};

/// Exchanges one bucket. Owns the receive buffers, allocated once.
///
/// Law: world_size * mean + sum of put-backs == sum over ranks of what was sent (in exact
/// arithmetic); `mean` has the same bits on every rank, namely those of the float32 sum in rank
/// order times float(1 / world_size), rounded to the gradient's dtype.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::string_view name() const = 0;

  /// Enqueues the exchange; `groups` are those given to make_exchange (same compressors and order).
  /// A payload that does not decode is a TransportError naming its rank.
  virtual void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) = 0;

  /// Bytes this rank sends for one run when its groups' payloads have these true lengths, frame
  /// headers included: the closed form, from world size and lengths alone.
  virtual uint64_t bytes_sent(std::span<const size_t> payload_bytes) const = 0;

  /// A group's mean rounded again on the way (two-shot forms of lossy codecs).
  virtual bool reencodes() const = 0;
};

/// What every exchange of a bucket is made from.
struct ExchangeContext {
  std::vector<Compressor*> compressors;  ///< of the bucket's groups, in order
  Transport* transport = nullptr;
  CallTag tag;
};

struct ExchangeRow {
  std::string_view name;
  std::string_view summary;
  std::string_view bytes_formula;  ///< per rank, for tables
  std::string_view latency_formula;
  std::string_view carries;  ///< what it can carry, in words, for messages
  /// Whether the exchange can carry this compressor.
  bool (*accepts)(const Compressor&);
  std::unique_ptr<Exchange> (*make)(ExchangeContext);
};

std::span<const ExchangeRow> exchange_registry();

/// @throws InvalidArgument listing the known names.
const ExchangeRow& find_exchange(std::string_view name);

/// @throws InvalidArgument for an unknown name or a compressor the exchange cannot carry.
std::unique_ptr<Exchange> make_exchange(std::string_view name, ExchangeContext context);

/// "dense" for specs that are dense and 16 bits or wider, else "gather".
std::string_view default_exchange(const CompressorSpec& spec);

}  // namespace gradwire
