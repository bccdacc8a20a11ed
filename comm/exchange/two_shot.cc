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
        slices_(made_from, SliceExchange::Cut::kBalanced),
        merged_(transport_.world_size(), merged_stride()),
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
    uint64_t merged = kFrameHeaderBytes;
    for (size_t g = 0; g < compressors_.size(); ++g) {
      merged += merged_room(g, slices_.own());
    }
    return slices_.bytes_sent(payload_bytes) + (slices_.ranks() - 1) * merged;
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    slices_.run(groups, report, context);
    timed(report.codec_us, [&] { merge_own(groups, context); });
    report.predicted_bytes_sent +=
        (slices_.ranks() - 1) * (kFrameHeaderBytes + merged_.length(slices_.own()));
    timed(report.transfer_us, [&] {
      const size_t own = slices_.own();
      transport_.all_gather(merged_.length(own), merged_.room(own), merged_.parts(), tag_, context);
    });
    timed(report.codec_us, [&] {
      read_merged(report);
      for (size_t g = 0; g < groups.size(); ++g) {
        decode({*compressors_[g], payloads_[g], groups[g].mean, tag_.what}, result(g), report,
               context);
      }
    });
  }

  void merge_own(std::span<const GroupSlot> groups, Context& context) {
    const size_t own = slices_.own();
    size_t length = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const Region region = slices_.region(g, own);
      const auto slices = slices_.slices(g);
      const Payload out = merged_.room(own).subspan(length);
      if (region.numel() == 0) {
        const bool nonfinite = std::any_of(slices.begin(), slices.end(), is_nonfinite);
        length +=
            write_empty_payload(*compressors_[g], nonfinite || slices_.keeps_infinity(g), out);
        continue;
      }
      const MergeInput input{.slices = slices,
                             .region = region,
                             .scale = 1.0f / static_cast<float>(slices_.ranks()),
                             .e = {},
                             .most_entries = most_entries(g, slices_.kept(g))};
      blame_sender({*compressors_[g], slices, groups[g].mean, tag_.what}, context,
                   [&] { compressors_[g]->merge(input, groups[g].e_next, out, context); });
      if (slices_.keeps_infinity(g)) {
        set_nonfinite(out, true);
      }
      length += payload_bytes(out);
    }
    merged_.length(own) = length;
  }

  // The merged regions tile the group and already hold the mean. Every rank has seen the flags of
  // all ranks' slices; where there was none, a flag here is that of a sum, or of what this rank
  // kept of its own payload, which overflowed.
  void read_merged(ExchangeReport& report) {
    for (size_t g = 0; g < compressors_.size(); ++g) {
      tiles_[g].clear();
    }
    for (size_t r = 0; r < slices_.ranks(); ++r) {
      MessageReader reader(merged_.message(r), r, tag_.what);
      for (size_t g = 0; g < compressors_.size(); ++g) {
        const Region region = slices_.region(g, r);
        const auto item = reader.next({*compressors_[g], region, g});
        payloads_[g][r] = item.payload;
        report.overflows = report.overflows || (item.nonfinite && report.nonfinite_rank < 0);
        if (region.numel() > 0) {
          tiles_[g].push_back(item.payload);
        }
      }
      reader.finish();
    }
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
    const Region region = slices_.region(g, r);
    return region.numel() == 0 ? sizeof(PayloadHeader) : compressor.slice_capacity_bytes(region);
  }

  size_t merged_stride() const {
    size_t largest = 0;
    for (size_t r = 0; r < slices_.ranks(); ++r) {
      size_t bytes = 0;
      for (size_t g = 0; g < compressors_.size(); ++g) {
        bytes += merged_room(g, r);
      }
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  const std::string_view name_;
  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  SliceExchange slices_;
  Messages merged_;
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
