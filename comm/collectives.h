#pragma once
// The verbs, written once over point-to-point messages: rotated order (at step s rank r sends to
// r + s and receives from r - s), every receive posted before anything is sent, every sender checked
// before its payload is accepted. Large payloads leave step by step, so that on a slow link they do
// not all meet in one receiver's queue. Rings and trees run in rounds: what a later round sends leaves
// piece by piece as an earlier one brings it.

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

enum class Verb : uint8_t;

/// Which ranks of an engine form a group. Ranks in error messages are those of the engine.
struct RankGroup {
  std::vector<int> members;  ///< engine ranks, ascending
  int rank = 0;              ///< own place in `members`
  uint16_t id = 0;           ///< keeps the messages of groups apart; 0 is everyone

  int size() const { return static_cast<int>(members.size()); }
  static RankGroup everyone(const PointToPoint& engine);
};

/// Blocking collectives of one group. All members make the same calls in the same order, one at a
/// time. Every failure throws and leaves the engine closed, so that all ranks fail. After the first
/// call of a kind nothing is allocated.
class Collectives {
 public:
  Collectives(std::shared_ptr<PointToPoint> engine, RankGroup group,
              std::chrono::milliseconds timeout);

  const RankGroup& group() const { return group_; }
  int rank() const { return group_.rank; }
  int world_size() const { return group_.size(); }

  /// As the Transport verb of the same name.
  void all_gather(std::span<const std::byte> mine, Parts all, CallTag tag);
  void all_to_all(Parts send, Parts receive, CallTag tag);
  void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                      Context& context);
  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context);
  void broadcast(std::span<std::byte> bytes, int root, CallTag tag);
  void barrier(CallTag tag);

  /// The colors of all members, and the group of those with this one's color. `next_group` is the
  /// first id this rank has not used; it is advanced past the new groups.
  RankGroup split(int color, uint16_t& next_group);

  /// Callable from any thread.
  TrafficCounters counters() const;

 private:
  static constexpr int kNobody = -1;
  struct Outgoing {
    int peer = kNobody;  ///< place in the group
    std::span<const std::byte> bytes;
    size_t capacity = 0;  ///< what the receiver has room for
  };
  struct Incoming {
    int peer = kNobody;
    std::span<std::byte> into;  ///< its size is the sender's capacity
    bool exact = false;         ///< the sender must fill `into`
    size_t length = 0;          ///< out: what arrived
    uint32_t checksum = 0;      ///< out: as the header has it
    MessageHandle first = 0;
  };
  /// What becomes of what a round brings.
  enum class Then : uint8_t {
    kKeep,
    kAdd,      ///< it is added to `add_to`, piece by piece
    kForward,  ///< the next round sends it on, at its true length
    kUnpack,   ///< it holds parts of an all-gather, which stage_ takes
  };
  /// One step of a collective whose later steps send what earlier ones brought.
  struct Round {
    Outgoing out{};
    Incoming in{};
    Then then = Then::kKeep;
    std::span<float> add_to;
  };
  /// The parts a rank has during a Bruck all-gather, its own first, each behind its length.
  struct Stage {
    Parts all;
    std::span<std::byte> bytes;
    size_t filled = 0;
    size_t parts = 0;
  };
  struct Call {
    Verb verb;
    CallTag tag;
    uint32_t sequence;
  };

  int peer_at(int step) const { return (group_.rank + step) % group_.size(); }
  void gather_into(Verb verb, std::span<const std::byte> mine, Parts all, bool exact, CallTag tag);
  void gather_around(std::span<const std::byte> mine, Parts all, CallTag tag);
  void gather_doubling(std::span<const std::byte> mine, Parts all, CallTag tag);
  void reduce_in_rank_order(std::span<float> values, CallTag tag, Context& context);
  void reduce_around(std::span<float> values, CallTag tag, Context& context);
  void reduce_halving(std::span<float> values, CallTag tag, Context& context);
  void scatter_sums(Verb verb, std::span<const float> values, std::span<float> out, CallTag tag,
                    Context& context);

  /// Runs what outgoing_ and incoming_ describe.
  void exchange(Verb verb, CallTag tag);
  void post_receives(const Call& call);
  void send_firsts(const Call& call);
  void post_chunks(const Call& call, const Incoming& message);
  /// `checksum` goes into the header's reserved bytes; 0: that of what message 0 carries.
  void send_first(const Call& call, const Outgoing& message, std::span<std::byte> first,
                  uint64_t checksum = 0);

  /// Runs what rounds_ describes.
  void run_rounds(Verb verb, CallTag tag);
  void post_rounds(const Call& call);
  void post_checked_chunks(const Call& step, const Incoming& message);
  /// Waits for the next piece of the round and checks it.
  void receive_piece(const Call& step, size_t round, size_t piece);
  void send_checked_chunk(const Call& step, const Outgoing& message, size_t chunk);
  void send_ready(const Call& call, size_t round, size_t pieces);
  size_t pieces_needed(size_t round, size_t piece) const;
  void arrived(size_t round, size_t piece);
  void unpack(const Incoming& message, size_t parts);
  std::span<const std::byte> staged(size_t parts) const;
  Call call_of(const Call& first, size_t round) const {
    return {first.verb, first.tag, first.sequence + static_cast<uint32_t>(round)};
  }

  /// Runs `body`; what it throws closes the engine and names the call.
  template <class Body>
  void closing_on_error(Verb verb, const CallTag& tag, Body body);
  void send_chunks(const Call& call, size_t step, size_t chunks);
  size_t chunks_ahead() const;
  void learn(std::chrono::steady_clock::duration elapsed, size_t ahead);
  void accept(const Call& call, Incoming& message, std::span<const std::byte> frame);
  void verify(const Call& call, const Incoming& message, const struct FrameHeader& header) const;
  /// `bytes` are some of the message's, `checksum` is what its sender says of them.
  void verify_payload(const Incoming& message, std::span<const std::byte> bytes,
                      uint32_t checksum) const;
  struct FrameHeader header_of(const Call& call, size_t capacity) const;
  std::span<std::byte> frame(size_t index);
  void wait_for(std::span<MessageHandle> messages);
  void wait_for_last_first(std::span<MessageHandle> messages);
  int engine_rank(int peer) const { return group_.members[static_cast<size_t>(peer)]; }
  void close(std::string_view reason);
  Deadline deadline() const { return std::chrono::steady_clock::now() + timeout_; }

  std::shared_ptr<PointToPoint> engine_;
  RankGroup group_;
  std::chrono::milliseconds timeout_;
  uint32_t sequence_ = 0;

  // Kept between calls so that a call allocates nothing.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<MessageHandle> receives_, sends_;
  size_t steps_sent_ = 0;   ///< outgoing messages all of whose chunks have been posted
  size_t chunks_sent_ = 0;  ///< of the next one
  std::vector<Round> rounds_;
  size_t rounds_sent_ = 0, pieces_sent_ = 0;  ///< the same for rounds
  size_t received_ = 0, verified_ = 0;  ///< of receives_ and of checksums_
  /// Of the chunks of all rounds: those that come, in their order, then those that leave.
  std::vector<uint32_t> checksums_;
  size_t checksums_used_ = 0;
  Stage stage_;
  std::vector<std::byte> staging_;

  std::vector<std::byte> frames_;
  double bytes_per_ms_ = 0;  ///< the line, as calls of some length have seen it

  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, frames_sent_{0};
};

}  // namespace gradwire
