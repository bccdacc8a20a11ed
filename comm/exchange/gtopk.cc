// gTop-k: payloads meet in pairs, a tree over the ranks, and each meeting keeps the k largest sums.
// Few start-ups, and as many bytes at every level. What a meeting leaves out is kept by the lowest
// rank of those whose payloads have met. Shi et al., arXiv:1901.04359; as recursive doubling, so
// that every rank works out the same, with the ranks beyond a power of two folded in first.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/exchange/slices.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

// Behind the payloads of a message: the lowest rank whose gradient was not finite; or, where all
// were, the world size plus the lowest rank of a meeting whose sums overflowed.
using BadRank = uint32_t;
constexpr BadRank kNone = std::numeric_limits<BadRank>::max();
// Nobody's, but some residual may be so large that what is kept overflows there, which its rank
// alone finds: all tell each other in the end.
constexpr BadRank kUnsure = kNone - 1;

// Of what meets, too: in the steps of a warm-up, which keep most, a merge wants room for as many entries
// in any variant of the payload.
size_t room_for(const Compressor& compressor) {
  const size_t numel = compressor.shape().numel, own = compressor.capacity_bytes();
  const size_t most = kept_in_step(compressor.spec(), numel, 0);
  return chooses_among_all(compressor)
             ? std::max(own, compressor.capacity_for_entries({0, numel}, most))
             : own;
}

size_t stride_for(std::span<Compressor* const> compressors) {
  size_t bytes = sizeof(BadRank);
  for (const Compressor* compressor : compressors) {
    bytes += room_for(*compressor);
  }
  return bytes;
}

class TreeExchange final : public StreamExchange {
 public:
  explicit TreeExchange(const ExchangeContext& made_from)
      : compressors_(made_from.compressors),
        own_groups_(made_from.groups == nullptr ? std::make_unique<SubGroups>(*made_from.transport)
                                                : nullptr),
        groups_(own_groups_ ? *own_groups_ : *made_from.groups),
        whole_(*made_from.transport),
        tag_(made_from.tag),
        rank_(static_cast<uint32_t>(made_from.transport->rank())),
        ranks_(static_cast<uint32_t>(made_from.transport->world_size())),
        power_(std::bit_floor(ranks_)),
        pair_(2, stride_for(compressors_), {}, made_from.memory),
        current_(message_memory(stride_for(compressors_), {}, made_from.memory)),
        met_(compressors_.size()),
        payloads_(compressors_.size()),
        kept_finite_(ranks_),
        lengths_(ranks_) {
    // Ranks that sit a meeting out are alone in a part of their own.
    if (ranks_ > power_) {
      fold_ = &groups_.part(concat("folded to ", power_), static_cast<int>(rank_ % power_));
      fold_ = fold_->world_size() == 2 ? fold_ : nullptr;
    }
    for (uint32_t distance = 1; distance < power_; distance *= 2) {
      const uint32_t color = rank_ < power_ ? rank_ & ~distance : rank_;
      levels_.push_back(&groups_.part(concat("pairs of ", power_, " at distance ", distance),
                                      static_cast<int>(color)));
    }
  }

  std::string_view name() const override { return "gtopk"; }
  bool reencodes() const override { return ranks_ > 1; }

  ExchangeResult result(size_t group) const override {
    return {{&payloads_[group], 1}, 1.0f / static_cast<float>(ranks_)};
  }

  // Every message may be as long as the longest.
  uint64_t bytes_sent(std::span<const size_t>) const override {
    const uint64_t longest = kFrameHeaderBytes + stride_for(compressors_);
    const uint64_t folding = fold_ == nullptr ? 0 : kFrameHeaderBytes + longest;
    return folding + (rank_ < power_ ? levels_.size() * longest : 0);
  }

 private:
  bool folded() const { return rank_ >= power_; }

  TrafficCounters traffic() const override { return groups_.counters(); }

  void run_now(std::span<const GroupSlot> slots, ExchangeReport& report,
               Context& context) override {
    timed(report.codec_us, [&] { write_own(slots, context); });
    if (fold_ != nullptr) {
      move(*fold_, folded() ? length_ : 0, report, context);
      if (!folded()) {
        meet({.lowest = rank_, .level = 0, .low = rank_, .high = rank_ + power_}, slots, report,
           context);
      }
    }
    if (!folded()) {
      for (size_t i = 0; i < levels_.size(); ++i) {
        const uint32_t distance = 1u << i;
        move(*levels_[i], length_, report, context);
        meet({.lowest = rank_ & ~(2 * distance - 1),
              .level = static_cast<uint32_t>(i) + 1,
              .low = rank_ & ~distance,
              .high = rank_ | distance},
             slots, report, context);
      }
    }
    if (fold_ != nullptr) {
      move(*fold_, folded() ? 0 : length_, report, context);
      if (folded()) {
        const auto message = pair_.message(0);
        std::copy(message.begin(), message.end(), current_->bytes().begin());
        length_ = message.size();
      }
    }
    timed(report.codec_us, [&] { finish(slots, report, context); });
  }

  void write_own(std::span<const GroupSlot> slots, Context& context) {
    BadRank bad = kNone;
    bool unsure = false;
    keeps_infinity_ = false;
    length_ = 0;
    for (const GroupSlot& slot : slots) {
      const Payload payload = sent_part(slot);
      std::memcpy(current_->data() + length_, payload.data(), payload.size());
      length_ += payload.size();
      bad = is_nonfinite(payload) ? rank_ : bad;
      if (!slot.e_next.empty()) {
        slot.compressor->look_for_large_rest(payload, unsure, context);
      }
    }
    close_message(bad == kNone && unsure ? kUnsure : bad);
  }

  void close_message(BadRank bad) {
    std::memcpy(current_->data() + length_, &bad, sizeof bad);
    length_ += sizeof bad;
  }

  // Both messages of a pair, or the one that is sent, arrive in pair_.
  void move(Transport& part, size_t length, ExchangeReport& report, Context& context) {
    const auto own = static_cast<size_t>(part.rank());
    report.predicted_bytes_sent += kFrameHeaderBytes + length;
    timed(report.transfer_us, [&] {
      sent_length_ = length;
      part.all_gather(sent_length_, current_->bytes().first(length), pair_.parts(), tag_, context);
    });
    if (length == 0) {  // sent nothing, and has it all the same
      std::copy_n(current_->bytes().begin(), length_, pair_.room(own).begin());
      pair_.length(own) = length_;
    }
  }

  /// Two ranks whose messages meet, and the lowest of all those that are in them by then.
  struct Meeting {
    uint32_t lowest, level, low, high;
    /// Of this meeting alone, on all ranks that work it out.
    uint32_t number() const { return 1 + lowest * 32 + level; }
  };

  void meet(const Meeting& meeting, std::span<const GroupSlot> slots, ExchangeReport& report,
            Context& context) {
    timed(report.codec_us, [&] {
      read(0, meeting.low);
      read(1, meeting.high);
      BadRank bad = std::min(bad_of(0), bad_of(1));
      const bool finite = bad >= kUnsure;
      length_ = 0;
      for (size_t g = 0; g < slots.size(); ++g) {
        Compressor& compressor = *compressors_[g];
        const Region whole{0, compressor.shape().numel};
        const MergeInput input{.slices = met_[g],
                               .region = whole,
                               .scale = 1.0f,
                               .e = {},
                               .most_entries = chooses_among_all(compressor)
                                                   ? kept_in_step(compressor.spec(),
                                                                  compressor.shape().numel,
                                                                  compressor.step())
                                                   : 0,
                               .meeting = meeting.number()};
        const Payload out = current_->bytes().subspan(length_);
        // One of those who work it out keeps what is left out.
        const Residual e_next = meeting.lowest == rank_ ? slots[g].e_next : Residual{};
        const uint32_t senders[] = {meeting.low, meeting.high};
        blame_sender({compressor, met_[g], slots[g].mean, tag_.what, senders}, context,
                     [&] { compressor.merge(input, e_next, out, context); });
        if (finite && is_nonfinite(out) && !e_next.empty()) {
          // The other ranks of the meeting write what a merge without a residual writes.
          compressor.merge(input, {}, out, context);
          keeps_infinity_ = keeps_infinity_ || !is_nonfinite(out);
        }
        length_ += payload_bytes(out);
        bad = finite && is_nonfinite(out) ? ranks_ + meeting.lowest : bad;
      }
      close_message(bad);
    });
  }

  void finish(std::span<const GroupSlot> slots, ExchangeReport& report, Context& context) {
    std::copy_n(current_->bytes().begin(), length_, pair_.room(0).begin());
    pair_.length(0) = length_;
    const uint32_t sender = folded() ? rank_ - power_ : rank_;
    read(0, sender);
    const BadRank bad = bad_of(0);
    report.nonfinite_rank = bad < ranks_ ? static_cast<int>(bad) : -1;
    report.overflows = bad >= ranks_ && bad < kUnsure;
    if (bad == kUnsure) {
      timed(report.transfer_us, [&] { tell_what_was_kept(report, context); });
    }
    for (size_t g = 0; g < slots.size(); ++g) {
      payloads_[g] = met_[g][0];
      decode({*compressors_[g], {&payloads_[g], 1}, slots[g].mean, tag_.what, {&sender, 1}},
             result(g), report, context);
    }
  }

  void tell_what_was_kept(ExchangeReport& report, Context& context) {
    const auto said = std::byte{!keeps_infinity_};
    const size_t length = sizeof said;
    counted([this] { return whole_.counters(); }, report,
            [&] {
              whole_.all_gather(length, {&said, 1}, {kept_finite_, sizeof said, lengths_}, tag_,
                                context);
            });
    report.predicted_bytes_sent += (ranks_ - 1) * (kFrameHeaderBytes + sizeof said);
    report.overflows = std::ranges::find(kept_finite_, std::byte{false}) != kept_finite_.end();
  }

  // Checks the message at `place` of the pair and finds its payloads.
  void read(size_t place, uint32_t rank) {
    const auto message = pair_.message(place);
    if (message.size() < sizeof(BadRank)) {
      throw TransportError(concat(tag_.what, ": rank ", rank, "'s payloads: length is ",
                                  message.size(), " bytes, expected at least ", sizeof(BadRank)),
                           static_cast<int>(rank));
    }
    MessageReader reader(message.first(message.size() - sizeof(BadRank)), rank, tag_.what);
    for (size_t g = 0; g < compressors_.size(); ++g) {
      const Region whole{0, compressors_[g]->shape().numel};
      met_[g][place] = reader.next({*compressors_[g], whole, g}).payload;
    }
    reader.finish();
  }

  BadRank bad_of(size_t place) const {
    BadRank bad;
    std::memcpy(&bad, pair_.message(place).last(sizeof bad).data(), sizeof bad);
    return bad;
  }

  const std::vector<Compressor*> compressors_;
  const std::unique_ptr<SubGroups> own_groups_;
  SubGroups& groups_;
  Transport& whole_;
  const CallTag tag_;
  const uint32_t rank_, ranks_;
  const uint32_t power_;  ///< of two, at most ranks_
  Transport* fold_ = nullptr;  ///< with the rank power_ above or below; null where there is none
  std::vector<Transport*> levels_;
  Messages pair_;
  std::shared_ptr<const Buffer> current_;  ///< this rank's message, length_ bytes of it
  size_t length_ = 0;
  size_t sent_length_ = 0;
  std::vector<std::array<ConstPayload, 2>> met_;  ///< of each group, in pair_
  std::vector<ConstPayload> payloads_;            ///< of each group, in the end
  bool keeps_infinity_ = false;                   ///< what this rank put back overflowed
  std::vector<std::byte> kept_finite_;            ///< of each rank: that it did not
  std::vector<size_t> lengths_;
};

}  // namespace

std::unique_ptr<Exchange> make_gtopk_exchange(ExchangeContext context) {
  return std::make_unique<TreeExchange>(context);
}

}  // namespace gradwire
