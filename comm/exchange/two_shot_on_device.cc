// dense and two_shot of payloads in GPU memory; two_shot.cc says what they compute. Regions are even,
// and every slice and every sum travels at its capacity, at an offset that all ranks know. A region
// without elements has no payload: flags reach everyone with those of the others.

#include <algorithm>
#include <string>

#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/exchange/slices.h"
#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire {
namespace {

class TwoShotOnDevice final : public Exchange {
 public:
  TwoShotOnDevice(std::string_view name, ExchangeContext made_from)
      : name_(name),
        compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        own_(static_cast<size_t>(transport_.rank())),
        begins_(make_begins()),
        outgoing_(transport_.world_size(), stride(), transport_.traits().device),
        incoming_(transport_.world_size(), stride(), transport_.traits().device),
        merged_(transport_.world_size(), stride(), transport_.traits().device),
        slices_(compressors_.size() * ranks_),
        tiles_(compressors_.size()) {
    for (size_t r = 0; r < ranks_; ++r) {
      outgoing_.length(r) = merged_.length(r) = stride();
      for (size_t g = 0; g < compressors_.size(); ++g) {
        if (owns(g, own_)) {
          slices_[g * ranks_ + r] = payload_in(incoming_, r, g, own_);
        }
        if (owns(g, r)) {
          tiles_[g].push_back(payload_in(merged_, r, g, r));
        }
      }
    }
  }

  std::string_view name() const override { return name_; }
  bool reencodes() const override {
    return std::any_of(compressors_.begin(), compressors_.end(),
                       [](const Compressor* c) { return rounds_the_mean(*c); });
  }
  ExchangeResult result(size_t group) const override { return {tiles_[group], 1.0f}; }
  uint64_t bytes_sent(std::span<const size_t>) const override { return 2 * (ranks_ - 1) * stride(); }

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) override {
    report = {.predicted_bytes_sent = bytes_sent({})};
    const TrafficCounters before = transport_.counters();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t r = 0; r < ranks_; ++r) {
        if (owns(g, r)) {
          compressors_[g]->slice(groups[g].mine, region(g, r), payload_in(outgoing_, r, g, r),
                                 context);
        }
      }
    }
    transport_.all_to_all(outgoing_.parts(), incoming_.parts(), tag_, context);
    for (size_t g = 0; g < groups.size(); ++g) {
      merge_own(g, groups[g], context);
    }
    transport_.all_gather(merged_.length(own_), merged_.room(own_), merged_.parts(), tag_, context);
    for (size_t g = 0; g < groups.size(); ++g) {
      decode_on_device(groups[g], result(g), context);
      for (Messages* const received : {&incoming_, &merged_}) {
        cuda::clear_headers(received->parts().bytes.subspan(begins_[g]), stride(), context.stream);
      }
    }
    const TrafficCounters after = transport_.counters();
    report.bytes_sent = after.bytes_sent - before.bytes_sent;
    report.bytes_received = after.bytes_received - before.bytes_received;
  }

 private:
  /// The elements that rank r owns of group g. Their payload lies at begins_[g] of the messages to
  /// and from that rank, whichever it is, and has room for any rank's.
  Region region(size_t g, size_t r) const {
    return owned_region(compressors_[g]->shape().numel, transport_.world_size(),
                        static_cast<int>(r));
  }
  std::span<std::byte> payload_in(const Messages& messages, size_t of, size_t g, size_t owner) const {
    return messages.room(of).subspan(begins_[g],
                                     compressors_[g]->slice_capacity_bytes(region(g, owner)));
  }
  bool owns(size_t g, size_t r) const { return region(g, r).numel() > 0; }

  size_t stride() const { return begins_.back(); }

  // Where each group's payload begins, and the end. The first region is the largest.
  std::vector<size_t> make_begins() const {
    std::vector<size_t> begins{0};
    for (size_t g = 0; g < compressors_.size(); ++g) {
      size_t most = 0;
      for (size_t r = 0; r < ranks_; ++r) {
        most = std::max(most, owns(g, r) ? compressors_[g]->slice_capacity_bytes(region(g, r)) : 0);
      }
      begins.push_back(begins.back() + room_of(most));
    }
    return begins;
  }

  void merge_own(size_t g, const GroupSlot& slot, Context& context) {
    if (!owns(g, own_)) {
      return;
    }
    compressors_[g]->merge({.slices = std::span(slices_).subspan(g * ranks_, ranks_),
                            .region = region(g, own_),
                            .scale = 1.0f / static_cast<float>(ranks_),
                            .e = slot.e},
                           slot.e_next, payload_in(merged_, own_, g, own_), context);
  }

  const std::string_view name_;
  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_, own_;
  const std::vector<size_t> begins_;
  Messages outgoing_, incoming_, merged_;
  std::vector<ConstPayload> slices_;              // [group][rank], of what this rank owns
  std::vector<std::vector<ConstPayload>> tiles_;  // [group]: those of ranks that own something
};

}  // namespace

std::unique_ptr<Exchange> make_dense_exchange_on_device(ExchangeContext context) {
  return std::make_unique<TwoShotOnDevice>("dense", std::move(context));
}

std::unique_ptr<Exchange> make_two_shot_exchange_on_device(ExchangeContext context) {
  for (const Compressor* compressor : context.compressors) {
    check(fills_every_chunk(compressor->spec()), "exchange 'two_shot': cannot carry '",
          to_string(compressor->spec()),
          "' on a GPU, where each slice would travel with room for "
          "every entry; expected gather, or a compressor that sends or chooses in every chunk");
  }
  return std::make_unique<TwoShotOnDevice>("two_shot", std::move(context));
}

}  // namespace gradwire
