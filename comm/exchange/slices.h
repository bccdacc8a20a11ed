#pragma once
// The first half of a two-shot exchange: every rank owns a region of each group, and the slices of
// all ranks meet at their owner. What is done with them there is the caller's.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/regions.h"

namespace gradwire {

/// Whether regions can be cut by entries: topk and threshold, which choose among all elements.
bool chooses_among_all(const Compressor& compressor);

/// Whether a mean that is encoded once more can lose by it.
bool rounds_the_mean(const Compressor& compressor);

/// Regions, messages and payloads of one bucket. Even regions for compressors whose payloads are
/// evenly spread, and on a GPU; for those that choose among all elements regions with about as many
/// entries each, cut anew every kBalanceSteps steps from where the entries of all ranks lie.
class SliceExchange {
 public:
  /// Committed steps between two cuts of the regions.
  static constexpr uint32_t kBalanceSteps = 64;
  /// Entries a slice has room for, in shares (k / world_size) of the group: what exceeds it stays
  /// with the sender.
  static constexpr size_t kSliceShares = 2;

  explicit SliceExchange(const ExchangeContext& made_from);

  /// To be called where StreamExchange::run_now() is. Flags found in slices go to the report; all
  /// ranks see all ranks' flags.
  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context);
  /// Behind the use of slices(): GroupMessages::wipe().
  void wipe(Stream& stream) { incoming_.wipe(stream); }

  size_t ranks() const { return ranks_; }
  size_t own() const { return own_; }
  Region region(size_t group, size_t rank) const { return groups_[group].regions[rank]; }
  bool balanced(size_t group) const { return groups_[group].balanced; }
  /// k of a group whose regions are balanced.
  size_t kept(size_t group) const;
  /// The same in the step that keeps most.
  size_t most_kept(size_t group) const;
  /// Whether what run() gave back to the group's e_next overflowed there: no commit may follow, and
  /// no other rank knows.
  bool keeps_infinity(size_t group) const { return groups_[group].keeps_infinity; }
  /// Of what this rank owns of the group: from each rank, in rank order.
  std::span<const ConstPayload> slices(size_t group) const { return groups_[group].slices; }

  /// Upper bound of what run() sends, exact where payloads have a fixed length.
  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const;

  /// The regions of balanced groups, as Exchange::state().
  std::vector<uint64_t> state() const;
  void set_state(std::span<const uint64_t> state);

 private:
  struct Group {
    Compressor* compressor;
    bool balanced;
    std::vector<Region> regions;  ///< of each rank; balanced: empty until they are cut
    /// Those before the last cut, which stand again if its step is not committed.
    std::vector<Region> regions_before = {};
    size_t first_count = 0;       ///< its chunks in counts_
    std::vector<ConstPayload> slices = {};
    bool keeps_infinity = false;  ///< since the last write_slices()
  };

  /// Of a slice of a balanced group, when its sender keeps `kept`.
  static size_t slice_entries(size_t kept, size_t ranks) {
    return (kSliceShares * kept + ranks - 1) / ranks;
  }
  /// Bytes that a slice of rank r's region has room for, when its sender keeps `kept`.
  size_t room(size_t g, size_t r, size_t kept) const;
  static std::vector<Group> make_groups(const ExchangeContext& made_from);
  bool must_cut() const;
  /// Whether the last cut is of a step that is not committed: that was refused, or is in progress.
  bool cut_is_open() const { return cut_in_ && *cut_in_ == groups_[0].compressor->step(); }
  void cut_regions(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context);
  void write_slices(std::span<const GroupSlot> groups, Context& context);
  void write_some(size_t g, size_t r, const GroupSlot& slot, Payload out, Context& context);
  void read_slices(ExchangeReport& report);
  /// Where this rank's own slices are written: where they belong, unless whole strides travel.
  GroupMessages& of_own() { return outgoing_.at_capacity() ? outgoing_ : incoming_; }

  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_, own_;
  std::vector<Group> groups_;
  std::vector<float> counts_;  // entries per chunk of all balanced groups
  std::optional<uint32_t> cut_in_;  // committed steps before that of the last cut
  GroupMessages outgoing_, incoming_;
};

}  // namespace gradwire
