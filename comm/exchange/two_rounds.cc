// Compressors whose second payload is made from the sum of all ranks' first ones (powersgd with
// rounds=2): an exchange of the first payloads, which compressors take over (decode()), then the same
// exchange of all groups of the bucket.

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

class TwoRoundExchange final : public StreamExchange {
 public:
  using Make = std::unique_ptr<Exchange> (*)(ExchangeContext);

  TwoRoundExchange(ExchangeContext made_from, Make make) {
    ExchangeContext first = made_from;
    first.compressors.clear();
    for (size_t g = 0; g < made_from.compressors.size(); ++g) {
      if (made_from.compressors[g]->rounds() == 2) {
        first.compressors.push_back(made_from.compressors[g]);
        groups_.push_back(g);
        first_bytes_.push_back(made_from.compressors[g]->first_bytes());
      }
    }
    slots_.resize(groups_.size());
    first_ = make(std::move(first));
    second_ = make(std::move(made_from));
  }

  std::string_view name() const override { return second_->name(); }
  bool reencodes() const override { return second_->reencodes(); }
  ExchangeResult result(size_t group) const override { return second_->result(group); }
  std::vector<uint64_t> state() const override { return second_->state(); }
  void set_state(std::span<const uint64_t> state) override { second_->set_state(state); }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    return first_->bytes_sent(first_bytes_) + second_->bytes_sent(payload_bytes);
  }

 private:
  TrafficCounters traffic() const override { return {}; }  // both count their own

  // What the two enqueue on the stream runs at once here.
  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    for (size_t i = 0; i < groups_.size(); ++i) {
      slots_[i] = groups[groups_[i]];
      slots_[i].mean = slots_[i].mean.subview(0, 0);
    }
    first_->run(slots_, first_report_, context);
    int64_t codec_us = 0;
    timed(codec_us, [&] {
      for (const size_t g : groups_) {
        const GroupSlot& slot = groups[g];
        slot.compressor->compress_second(slot.mean, slot.e, slot.e_next, slot.mine, context);
      }
    });
    second_->run(groups, report, context);
    report.bytes_sent += first_report_.bytes_sent;
    report.bytes_received += first_report_.bytes_received;
    report.predicted_bytes_sent += first_report_.predicted_bytes_sent;
    report.transfer_us += first_report_.transfer_us;
    report.codec_us += first_report_.codec_us + codec_us;
    // Who sent a flag sends it again. Where a sum of the first payloads overflows, every rank's
    // second one may be flagged for that.
    if (!first_report_.finite()) {
      report.nonfinite_rank = first_report_.nonfinite_rank;
      report.overflows = first_report_.overflows;
    }
  }

  std::vector<size_t> groups_;  // with two rounds
  std::vector<size_t> first_bytes_;
  std::vector<GroupSlot> slots_;
  std::unique_ptr<Exchange> first_, second_;
  ExchangeReport first_report_;
};

}  // namespace

std::unique_ptr<Exchange> make_two_round_exchange(
    ExchangeContext context, std::unique_ptr<Exchange> (*make)(ExchangeContext)) {
  return std::make_unique<TwoRoundExchange>(std::move(context), make);
}

}  // namespace gradwire
