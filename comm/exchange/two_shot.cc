// Two shots: the slices of all ranks meet at the owner of their region, which adds them in rank
// order and encodes the sum; the encoded sums then travel to everyone. The bytes of a ring
// all-reduce, the bits of a serial sum. What a merge rounds away or leaves out goes to the owner's
// e_next. Of payloads that select, owners keep the largest sums: Li and Hoefler (Ok-Topk),
// arXiv:2201.07598; quantised twice: Alistarh et al., arXiv:1610.02132, Tang et al. (DoubleSqueeze),
// arXiv:1905.05957.

#include <algorithm>

#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/exchange/slices.h"

namespace gradwire {
namespace {

// Entries an owner keeps of its region, in quarters of a share (k / world_size): the sums of the
// ranks' choices are more than any one rank's.
constexpr size_t kKeptQuarters = 5;

class TwoShotExchange final : public StreamExchange {
 public:
  TwoShotExchange(std::string_view name, const ExchangeContext& made_from)
      : name_(name),
        compressors_(made_from.compressors),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        slices_(made_from),
        merged_(made_from, [this](size_t g, size_t r) { return merged_room(g, r); }),
        payloads_(compressors_.size(), std::vector<ConstPayload>(slices_.ranks())),
        tiles_(compressors_.size()) {}

  std::string_view name() const override { return name_; }

  bool reencodes() const override {
    return std::any_of(compressors_.begin(), compressors_.end(),
                       [](const Compressor* c) { return rounds_the_mean(*c); });
  }

  ExchangeResult result(size_t group) const override { return {tiles_[group], 1.0f}; }
  std::vector<uint64_t> state() const override { return slices_.state(); }
  void set_state(std::span<const uint64_t> state) override { slices_.set_state(state); }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    size_t merged = 0;
    for (size_t g = 0; g < compressors_.size(); ++g) {
      merged += merged_room(g, slices_.own());
    }
    return slices_.bytes_sent(payload_bytes) + (slices_.ranks() - 1) * merged_.bytes_sent(merged);
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    slices_.run(groups, report, context);
    timed(report.codec_us, [&] { merge_own(groups, context); });
    const size_t own = slices_.own();
    report.predicted_bytes_sent +=
        (slices_.ranks() - 1) * merged_.bytes_sent(merged_.length(own));
    timed(report.transfer_us, [&] {
      transport_.all_gather(merged_.length(own), merged_.room(own), merged_.parts(), tag_, context);
    });
    timed(report.codec_us, [&] {
      read_merged(report);
      for (size_t g = 0; g < groups.size(); ++g) {
        decode({*compressors_[g], payloads_[g], groups[g].mean, tag_.what}, result(g), report,
               context);
      }
      slices_.wipe(context.stream);
      merged_.wipe(context.stream);
    });
  }

  void merge_own(std::span<const GroupSlot> groups, Context& context) {
    const size_t own = slices_.own();
    merged_.write(
        own, [&](size_t g) { return slices_.region(g, own); },
        [&](size_t g, Region region, Payload out) {
          if (region.numel() > 0) {
            merge_group(g, groups[g], out, context);
          } else if (!merged_.at_capacity()) {
            const bool nonfinite = std::ranges::any_of(slices_.slices(g), is_nonfinite);
            write_empty_payload(*compressors_[g], nonfinite || slices_.keeps_infinity(g), out);
          }
        });
  }

  void merge_group(size_t g, const GroupSlot& slot, Payload out, Context& context) {
    const auto slices = slices_.slices(g);
    const MergeInput input{.slices = slices,
                           .region = slices_.region(g, slices_.own()),
                           .scale = 1.0f / static_cast<float>(slices_.ranks()),
                           .e = slot.e,
                           .most_entries = most_entries(g, slices_.kept(g))};
    blame_sender({*compressors_[g], slices, slot.mean, tag_.what}, context,
                 [&] { compressors_[g]->merge(input, slot.e_next, out, context); });
    if (slices_.keeps_infinity(g)) {
      set_nonfinite(out, true);
    }
  }

  // The merged regions tile the group and already hold the mean. Every rank has seen the flags of
  // all ranks' slices; where there was none, a flag here is that of a sum, or of what this rank
  // kept of its own payload, which overflowed.
  void read_merged(ExchangeReport& report) {
    for (size_t g = 0; g < compressors_.size(); ++g) {
      tiles_[g].clear();
    }
    merged_.read([this](size_t g, size_t r) { return slices_.region(g, r); },
                 [&](size_t g, size_t r, const MessageReader::Item& item) {
                   payloads_[g][r] = item.payload;
                   report.overflows =
                       report.overflows || (item.nonfinite && report.nonfinite_rank < 0);
                   if (slices_.region(g, r).numel() > 0) {
                     tiles_[g].push_back(item.payload);
                   }
                 });
  }

  // Of this rank's region, when every rank keeps `kept`.
  size_t most_entries(size_t g, size_t kept) const {
    const size_t ranks = slices_.ranks();
    return slices_.balanced(g)
               ? std::min(kept, (kKeptQuarters * kept + 4 * ranks - 1) / (4 * ranks))
               : 0;
  }

  size_t merged_room(size_t g, size_t r) const {
    const Compressor& compressor = *compressors_[g];
    if (slices_.balanced(g)) {
      return compressor.capacity_for_entries({0, compressor.shape().numel},
                                             most_entries(g, slices_.most_kept(g)));
    }
    return room_for(compressor, slices_.region(g, r));
  }

  const std::string_view name_;
  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  SliceExchange slices_;
  GroupMessages merged_;
  std::vector<std::vector<ConstPayload>> payloads_;  // [group][rank]
  std::vector<std::vector<ConstPayload>> tiles_;     // [group]: those of ranks with a region
};

}  // namespace

std::unique_ptr<Exchange> make_dense_exchange(ExchangeContext context) {
  return std::make_unique<TwoShotExchange>("dense", context);
}

std::unique_ptr<Exchange> make_two_shot_exchange(ExchangeContext context) {
  return std::make_unique<TwoShotExchange>("two_shot", context);
}

}  // namespace gradwire
