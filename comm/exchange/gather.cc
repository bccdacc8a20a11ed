// One-shot gather: every rank's payloads travel to every rank, which decodes and adds them in rank
// order. One start-up, (P-1) payloads received: best for few ranks or small payloads.

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

class GatherExchange final : public StreamExchange {
 public:
  explicit GatherExchange(ExchangeContext made_from)
      : transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        own_(static_cast<size_t>(transport_.rank())),
        messages_(made_from, [&](size_t g,
                                 size_t) { return made_from.compressors[g]->capacity_bytes(); }),
        compressors_(std::move(made_from.compressors)),
        payloads_(compressors_.size() * ranks_) {}

  std::string_view name() const override { return "gather"; }
  bool reencodes() const override { return false; }

  ExchangeResult result(size_t group) const override {
    return {std::span(payloads_).subspan(group * ranks_, ranks_),
            1.0f / static_cast<float>(ranks_)};
  }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    size_t message = 0;
    for (const size_t bytes : payload_bytes) {
      message += bytes;
    }
    return (ranks_ - 1) * messages_.bytes_sent(message);
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    const ConstPayload mine = own_message(groups, context);
    report.predicted_bytes_sent = (ranks_ - 1) * messages_.bytes_sent(mine.size());
    messages_.length(own_) = mine.size();
    timed(report.transfer_us, [&] {
      transport_.all_gather(messages_.length(own_), mine, messages_.parts(), tag_, context);
    });
    timed(report.codec_us, [&] {
      messages_.read([this](size_t g, size_t) { return whole(g); },
                     [&](size_t g, size_t r, const MessageReader::Item& item) {
                       payloads_[g * ranks_ + r] = item.payload;
                       note_flag(item.nonfinite, r, report);
                     });
      for (size_t g = 0; g < groups.size(); ++g) {
        decode({*compressors_[g], result(g).parts, groups[g].mean, tag_.what}, result(g), report,
               context);
      }
      messages_.wipe(context.stream);
    });
  }

  // Payloads that do not lie as they travel are copied straight into this rank's part.
  ConstPayload own_message(std::span<const GroupSlot> groups, Context& context) {
    if (messages_.lie_together(groups)) {
      return {groups[0].mine.data(), messages_.stride()};
    }
    const Device device = transport_.traits().device;
    messages_.write(
        own_, [this](size_t g) { return whole(g); },
        [&](size_t g, Region, Payload out) {
          const Payload mine = sent_part(groups[g]);
          copy_bytes(out.first(mine.size()), device, mine, device, context.stream);
        });
    return messages_.message(own_);
  }

  Region whole(size_t g) const { return {0, compressors_[g]->shape().numel}; }

  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_, own_;
  GroupMessages messages_;
  const std::vector<Compressor*> compressors_;
  std::vector<ConstPayload> payloads_;  // [group][rank]
};

}  // namespace

std::unique_ptr<Exchange> make_gather_exchange(ExchangeContext context) {
  return std::make_unique<GatherExchange>(std::move(context));
}

}  // namespace gradwire
