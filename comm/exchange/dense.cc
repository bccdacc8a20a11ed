// The dense all-reduce: each rank owns a region of whole chunks. Slices of all ranks meet at their
// owner, which adds them in rank order; the merged payloads then travel to everyone. The bytes of a
// ring all-reduce, the bits of a serial sum. What a merge rounds away goes to the owner's e_next.

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

bool rounds_the_mean(const Compressor& c) {
  const ValueCodec values = c.spec().values;
  const bool as_gradient = (values == ValueCodec::kFloat16 && c.shape().dtype == DType::kFloat16) ||
                           (values == ValueCodec::kBFloat16 && c.shape().dtype == DType::kBFloat16);
  return values != ValueCodec::kRaw && values != ValueCodec::kFloat32 && !as_gradient;
}

// regions[g][r]: what rank r owns of group g.
std::vector<std::vector<Region>> split(std::span<Compressor* const> compressors, int world_size) {
  std::vector<std::vector<Region>> regions;
  for (const Compressor* compressor : compressors) {
    auto& of_group = regions.emplace_back();
    for (int r = 0; r < world_size; ++r) {
      of_group.push_back(owned_region(compressor->shape().numel, world_size, r));
    }
  }
  return regions;
}

size_t room_for(const Compressor& compressor, Region region) {
  return region.numel() == 0 ? sizeof(PayloadHeader) : compressor.slice_capacity_bytes(region);
}

// The largest message any rank can get: the same stride on every rank.
size_t largest_message(std::span<Compressor* const> compressors,
                       const std::vector<std::vector<Region>>& regions) {
  size_t largest = 0;
  for (size_t r = 0; r < regions[0].size(); ++r) {
    size_t bytes = 0;
    for (size_t g = 0; g < compressors.size(); ++g) {
      bytes += room_for(*compressors[g], regions[g][r]);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

class DenseExchange final : public Exchange {
 public:
  explicit DenseExchange(ExchangeContext made_from)
      : compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        own_(static_cast<size_t>(transport_.rank())),
        regions_(split(compressors_, transport_.world_size())),
        outgoing_(transport_.world_size(), largest_message(compressors_, regions_)),
        incoming_(transport_.world_size(), largest_message(compressors_, regions_)),
        merged_(transport_.world_size(), largest_message(compressors_, regions_)),
        payloads_(compressors_.size() * ranks_) {}

  std::string_view name() const override { return "dense"; }

  bool reencodes() const override {
    return std::any_of(compressors_.begin(), compressors_.end(),
                       [](const Compressor* c) { return rounds_the_mean(*c); });
  }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    uint64_t sent = 2 * (ranks_ - 1) * kFrameHeaderBytes;
    for (size_t g = 0; g < payload_bytes.size(); ++g) {
      // A payload of these compressors is a header and equally wide elements.
      const size_t numel = compressors_[g]->shape().numel;
      const size_t width = (payload_bytes[g] - sizeof(PayloadHeader)) / numel;
      const size_t kept = regions_[g][own_].numel();
      sent += 2 * (ranks_ - 1) * sizeof(PayloadHeader);
      sent += width * (numel - kept);       // slices of the others' regions
      sent += width * kept * (ranks_ - 1);  // the merged region, to everyone
    }
    return sent;
  }

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) override {
    context.stream.enqueue(
        [this, groups, &report, context]() mutable { run_now(groups, report, context); });
  }

 private:
  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) {
    report = {};
    const TrafficCounters before = transport_.counters();
    predict(groups, report);
    timed(report.codec_us, [&] { write_slices(groups, context); });
    timed(report.transfer_us, [&] {
      const size_t own_length = std::exchange(outgoing_.length(own_), 0);  // is where it belongs
      transport_.all_to_all(outgoing_.parts(), incoming_.parts(), tag_, context);
      incoming_.length(own_) = own_length;
    });
    timed(report.codec_us, [&] {
      read_slices(report);
      merge_own(groups, context);
    });
    timed(report.transfer_us, [&] {
      transport_.all_gather(merged_.length(own_), merged_.room(own_), merged_.parts(), tag_,
                            context);
    });
    timed(report.codec_us, [&] {
      read_merged(report);
      decode(groups, context);
    });
    const TrafficCounters after = transport_.counters();
    report.bytes_sent = after.bytes_sent - before.bytes_sent;
    report.bytes_received = after.bytes_received - before.bytes_received;
  }

  void predict(std::span<const GroupSlot> groups, ExchangeReport& report) {
    lengths_.clear();
    for (const GroupSlot& group : groups) {
      lengths_.push_back(payload_bytes(group.mine));
    }
    report.predicted_bytes_sent = bytes_sent(lengths_);
  }

  void write_slices(std::span<const GroupSlot> groups, Context& context) {
    for (size_t r = 0; r < ranks_; ++r) {
      const Messages& messages = r == own_ ? incoming_ : outgoing_;
      size_t length = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        const Payload mine = groups[g].mine.first(payload_bytes(groups[g].mine));
        const Payload out = messages.room(r).subspan(length);
        if (regions_[g][r].numel() == 0) {
          length += write_empty_payload(*compressors_[g], is_nonfinite(mine), out);
        } else {
          compressors_[g]->slice(mine, regions_[g][r], out, context);
          length += payload_bytes(out);
        }
      }
      outgoing_.length(r) = length;
    }
  }

  // From every rank: its slices of what this rank owns. All ranks see all flags here.
  void read_slices(ExchangeReport& report) {
    for (size_t r = 0; r < ranks_; ++r) {
      MessageReader reader(incoming_.message(r), r, tag_.what);
      for (size_t g = 0; g < compressors_.size(); ++g) {
        const auto item = reader.next({*compressors_[g], regions_[g][own_], g});
        payloads_of(g)[r] = item.payload;
        if (item.nonfinite && report.nonfinite_rank < 0) {
          report.nonfinite_rank = static_cast<int>(r);
        }
      }
      reader.finish();
    }
  }

  void merge_own(std::span<const GroupSlot> groups, Context& context) {
    size_t length = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const Region region = regions_[g][own_];
      const Payload out = merged_.room(own_).subspan(length);
      if (region.numel() == 0) {
        const auto slices = payloads_of(g);
        const bool nonfinite = std::any_of(slices.begin(), slices.end(), is_nonfinite);
        length += write_empty_payload(*compressors_[g], nonfinite, out);
        continue;
      }
      const MergeInput input{
          .slices = payloads_of(g), .region = region, .scale = 1.0f / static_cast<float>(ranks_)};
      blame_sender({*compressors_[g], payloads_of(g), groups[g].mean, tag_.what}, context,
                   [&] { compressors_[g]->merge(input, groups[g].e_next, out, context); });
      length += payload_bytes(out);
    }
    merged_.length(own_) = length;
  }

  // A sum of finite slices that overflows is flagged by its owner alone.
  void read_merged(ExchangeReport& report) {
    for (size_t r = 0; r < ranks_; ++r) {
      MessageReader reader(merged_.message(r), r, tag_.what);
      for (size_t g = 0; g < compressors_.size(); ++g) {
        const auto item = reader.next({*compressors_[g], regions_[g][r], g});
        payloads_of(g)[r] = item.payload;
        if (item.nonfinite && report.nonfinite_rank < 0) {
          report.nonfinite_rank = static_cast<int>(r);
        }
      }
      reader.finish();
    }
  }

  // The merged regions tile the group and already hold the mean.
  void decode(std::span<const GroupSlot> groups, Context& context) {
    for (size_t g = 0; g < groups.size(); ++g) {
      tiles_.clear();
      for (size_t r = 0; r < ranks_; ++r) {
        if (regions_[g][r].numel() > 0) {
          tiles_.push_back(payloads_of(g)[r]);
        }
      }
      blame_sender({*compressors_[g], payloads_of(g), groups[g].mean, tag_.what}, context,
                   [&] { compressors_[g]->decompress(tiles_, 1.0f, groups[g].mean, context); });
    }
  }

  static bool is_nonfinite(ConstPayload payload) {
    PayloadHeader header;
    std::memcpy(&header, payload.data(), sizeof header);
    return (header.flags & kFlagNonFinite) != 0;
  }

  std::span<ConstPayload> payloads_of(size_t g) {
    return std::span(payloads_).subspan(g * ranks_, ranks_);
  }

  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_;
  const size_t own_;
  const std::vector<std::vector<Region>> regions_;
  Messages outgoing_, incoming_, merged_;
  std::vector<ConstPayload> payloads_;  // [group][rank]
  std::vector<ConstPayload> tiles_;
  std::vector<size_t> lengths_;
};

}  // namespace

std::unique_ptr<Exchange> make_dense_exchange(ExchangeContext context) {
  return std::make_unique<DenseExchange>(std::move(context));
}

}  // namespace gradwire
