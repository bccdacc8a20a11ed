#pragma once
// How the payloads of all ranks become one mean gradient. One registry row per exchange.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradwire/comm/transport.h"
#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {

class MessageMemory;
class SubGroups;

/// One group of a bucket while the bucket is exchanged.
struct GroupSlot {
  Compressor* compressor = nullptr;
  Payload mine;     ///< compressed, capacity_bytes() long; the header gives the true length
  Residual e_next;  ///< takes put-backs; empty without error feedback
  Gradient mean;    ///< written; without elements: the result stays as payloads, see result()
  /// Where ranks add up by node (ExchangeRow::by_node): `mean` holds the gradient, whose share of the
  /// node's sum the exchange compresses itself, with e and e_next of the share. Of a compressor of two
  /// rounds `mean` holds the gradient that was compressed, and e is what it was compressed with. On a
  /// GPU, where put-backs go to one of the two: the other one.
  ConstResidual e = {};
  /// By node: residual that this rank holds of the whole group outside of its share, zeros within. The
  /// node adds it up, and owners add that to their e. Empty on all ranks of a node, or on none.
  ConstResidual strays = {};
};

/// A group's mean before it is decoded: scale * (the parts added in order), as
/// Compressor::decompress() takes them. The same bytes on every rank.
struct ExchangeResult {
  std::span<const ConstPayload> parts;
  float scale = 1.0f;
};

/// What one run moved and what it found. Valid once the stream has passed run().
struct ExchangeReport {
  uint64_t bytes_sent = 0;  ///< frames included, from the transport's counters
  uint64_t bytes_received = 0;
  uint64_t predicted_bytes_sent = 0;  ///< the closed form on the true payload lengths
  int nonfinite_rank = -1;  ///< lowest rank whose own payload carried the flag, -1 if none
  /// No payload of a rank carried it, and still there is no finite mean, or no finite put-back: a
  /// sum of finite values overflows float32. As nonfinite_rank the same on every rank.
  bool overflows = false;
  int64_t transfer_us = 0;            ///< time inside the transport
  int64_t codec_us = 0;               ///< slicing, merging and decompressing

  /// Else no rank may commit what the run left.
  bool finite() const { return nonfinite_rank < 0 && !overflows; }
};

/// Exchanges one bucket. Owns the receive buffers, allocated once.
///
/// Law: world_size * mean + sum of put-backs == sum over ranks of what was sent (in exact
/// arithmetic); `mean` has the same bits on every rank: where the row says rank_order, those of the
/// float32 sum in rank order times float(1 / world_size), rounded to the gradient's dtype.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::string_view name() const = 0;

  /// Enqueues the exchange; `groups` are those given to make_exchange (same compressors and order).
  /// A payload that does not decode is a TransportError naming its rank.
  virtual void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) = 0;

  /// What the last run left of its group `group`: valid from when the stream has passed that run
  /// until the next one. Nothing is decoded for it, so that a caller that can use the sparse form
  /// saves the dense one.
  virtual ExchangeResult result(size_t group) const = 0;

  /// What later runs take over from earlier ones, the same on every rank; empty for most. Part of a
  /// checkpoint: an exchange that set_state() gave what state() said continues as that one does.
  /// @throws InvalidArgument for a state of another shape.
  virtual std::vector<uint64_t> state() const { return {}; }
  virtual void set_state(std::span<const uint64_t> state) {
    check(state.empty(), "exchange '", name(), "': its state has ", state.size(),
          " words, expected none");
  }

  /// Bytes this rank sends for one run when its groups' payloads have these true lengths, frame
  /// headers included: the closed form, from world size and lengths (of two rounds: of the second)
  /// alone. Where the bytes depend on
  /// which elements were chosen, an upper bound.
  virtual uint64_t bytes_sent(std::span<const size_t> payload_bytes) const = 0;

  /// A group's mean rounded again on the way (two-shot forms of lossy codecs).
  virtual bool reencodes() const = 0;
};

/// What every exchange of a bucket is made from.
struct ExchangeContext {
  std::vector<Compressor*> compressors;  ///< of the bucket's groups, in order
  Transport* transport = nullptr;
  CallTag tag;
  /// Parts of the transport's group, shared by exchanges that run one after another. Null: those
  /// that need parts make their own.
  SubGroups* groups = nullptr;
  /// Where messages lie, shared with other exchanges; see MessageMemory. Null: in memory of its own.
  MessageMemory* memory = nullptr;
  /// Ranks with neighbouring numbers that share a node; divides the world size.
  int ranks_per_node = 1;
  /// By node only: elements of each group's gradient. Its compressor is of float32 and of the
  /// elements of node_share().
  std::vector<size_t> group_numels = {};
};

/// Of a gradient of `numel` elements, those of the node's sum that a rank compresses.
Region node_share(size_t numel, int rank, int ranks_per_node);

/// Which bits a mean must have: those of the float32 sum in rank order, or the same on all ranks.
enum class MeanBits : uint8_t { kOfRankOrder, kSameOnAllRanks };

struct ExchangeRow {
  std::string_view name;
  std::string_view summary;
  std::string_view bytes_formula;  ///< per rank, for tables
  std::string_view latency_formula;
  std::string_view carries;  ///< what it can carry, in words, for messages
  /// The mean has the bits of the float32 sum in rank order; else only the same on every rank.
  bool rank_order;
  /// Ranks of a node add their gradients up before anything is compressed; see GroupSlot::e. There
  /// is no result() then.
  bool by_node;
  /// Adds to e_next what encoding a sum again drops; else only compressors of two rounds touch the
  /// residual, in their second one.
  bool puts_back;
  /// A rank's commit says that every rank's e_next of the step is complete, so that those left a
  /// step behind may commit theirs; see Reducer::rebuild().
  bool complete_on_commit;
  /// Whether the exchange can carry this compressor.
  bool (*accepts)(const Compressor&);
  std::unique_ptr<Exchange> (*make)(ExchangeContext);
  /// Whether it can carry what it accepts over a transport of GPU memory; null: nothing of it.
  bool (*on_gpu)(const CompressorSpec&) = nullptr;
  /// Why not, where it cannot, for messages: goes on behind "on a GPU, where".
  std::string_view not_on_gpu = {};
  /// Runs only over transports with TransportTraits::sums_in_any_order.
  bool sums_in_any_order = false;
};

std::span<const ExchangeRow> exchange_registry();

/// Whether the exchange can carry this compressor between memories of such devices.
bool carries(const ExchangeRow& row, const Compressor& compressor, DeviceType device);

/// @throws InvalidArgument listing the known names.
const ExchangeRow& find_exchange(std::string_view name);

/// On a GPU where the transport's memory is. There payloads travel at their capacities, since no host
/// knows their lengths; run() enqueues and does not wait; of the report the bytes are filled in at
/// the call, and nothing else.
/// @throws InvalidArgument for an unknown name, a compressor the exchange cannot carry or of another
/// device than the transport's, or an exchange that is not there on a GPU.
std::unique_ptr<Exchange> make_exchange(std::string_view name, ExchangeContext context);

/// What the exchange by node runs between its nodes for these compressors of the shares.
std::string_view exchange_between_nodes(std::span<Compressor* const> compressors, int nodes);

/// "dense" for 16 bits or wider of elements that all ranks send, else "gather".
std::string_view default_exchange(const CompressorSpec& spec);

}  // namespace gradwire
