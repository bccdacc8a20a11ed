// One-shot gather: every rank's payloads travel to every rank, which decodes and adds them in rank
// order. One start-up, (P-1) payloads received: best for few ranks or small payloads.

#include <algorithm>
#include <cstring>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

size_t total_capacity(std::span<Compressor* const> compressors) {
  size_t bytes = 0;
  for (const Compressor* compressor : compressors) {
    bytes += compressor->capacity_bytes();
  }
  return bytes;
}

class GatherExchange final : public StreamExchange {
 public:
  explicit GatherExchange(ExchangeContext made_from)
      : compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        messages_(transport_.world_size(), total_capacity(compressors_)),
        payloads_(compressors_.size() * ranks_) {}

  std::string_view name() const override { return "gather"; }
  bool reencodes() const override { return false; }

  ExchangeResult result(size_t group) const override {
    return {std::span(payloads_).subspan(group * ranks_, ranks_),
            1.0f / static_cast<float>(ranks_)};
  }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    uint64_t message = kFrameHeaderBytes;
    for (const size_t bytes : payload_bytes) {
      message += bytes;
    }
    return (ranks_ - 1) * message;
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    write_own(groups, report);
    const auto own = static_cast<size_t>(transport_.rank());
    timed(report.transfer_us, [&] {
      transport_.all_gather(messages_.length(own), messages_.room(own), messages_.parts(), tag_,
                            context);
    });
    timed(report.codec_us, [&] {
      read_all(report);
      for (size_t g = 0; g < groups.size(); ++g) {
        decode({*compressors_[g], payloads_of(g), groups[g].mean, tag_.what}, result(g), report,
               context);
      }
    });
  }

  // The groups' payloads move together at their true lengths, straight into this rank's part.
  void write_own(std::span<const GroupSlot> groups, ExchangeReport& report) {
    const auto own = static_cast<size_t>(transport_.rank());
    size_t length = 0;
    for (const GroupSlot& group : groups) {
      const size_t bytes = payload_bytes(group.mine);
      std::memcpy(messages_.room(own).data() + length, group.mine.data(), bytes);
      length += bytes;
    }
    messages_.length(own) = length;
    report.predicted_bytes_sent = (ranks_ - 1) * (kFrameHeaderBytes + length);
  }

  void read_all(ExchangeReport& report) {
    for (size_t r = 0; r < ranks_; ++r) {
      MessageReader reader(messages_.message(r), r, tag_.what);
      for (size_t g = 0; g < compressors_.size(); ++g) {
        const Region whole{0, compressors_[g]->shape().numel};
        const auto item = reader.next({*compressors_[g], whole, g});
        payloads_of(g)[r] = item.payload;
        if (item.nonfinite && report.nonfinite_rank < 0) {
          report.nonfinite_rank = static_cast<int>(r);
        }
      }
      reader.finish();
    }
  }

  std::span<ConstPayload> payloads_of(size_t g) {
    return std::span(payloads_).subspan(g * ranks_, ranks_);
  }

  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_;
  Messages messages_;
  std::vector<ConstPayload> payloads_;  // [group][rank]
};

}  // namespace

std::unique_ptr<Exchange> make_gather_exchange(ExchangeContext context) {
  return std::make_unique<GatherExchange>(std::move(context));
}

}  // namespace gradwire
