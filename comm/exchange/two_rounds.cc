// Compressors whose second payload is made from the sum of all ranks' first ones (powersgd with
// rounds=2): an exchange of the first payloads, which are not decoded but taken over, then the same
// exchange of all groups of the bucket. On a GPU nothing waits for the stream, and the exchange
// itself hands over what it received (decode_on_device()).

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

class TwoRoundExchange final : public Exchange {
 public:
  using Make = std::unique_ptr<Exchange> (*)(ExchangeContext);

  TwoRoundExchange(ExchangeContext made_from, Make make)
      : what_(made_from.tag.what), device_(made_from.transport->traits().device) {
    ExchangeContext first = made_from;
    size_t room = 0;
    first.compressors.clear();
    for (size_t g = 0; g < made_from.compressors.size(); ++g) {
      if (made_from.compressors[g]->rounds() == 2) {
        first.compressors.push_back(made_from.compressors[g]);
        groups_.push_back(g);
        first_bytes_.push_back(made_from.compressors[g]->first_bytes());
        begins_.push_back(room);
        room += room_of(made_from.compressors[g]->capacity_bytes());
      }
    }
    if (device_.type == DeviceType::kCuda) {
      first_payloads_ = Buffer(room, device_);
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

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) override {
    if (device_.type == DeviceType::kCuda) {
      enqueue_all(groups, report, context);
      return;
    }
    context.stream.enqueue(
        [this, groups, &report, context]() mutable { run_now(groups, report, context); });
  }

 private:
  // On a stream's thread what a task enqueues on it runs at once.
  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) {
    choose_slots(groups);
    first_->run(slots_, first_report_, context);
    int64_t codec_us = 0;
    timed(codec_us, [&] {
      for (size_t i = 0; i < groups_.size(); ++i) {
        compress_second(groups[groups_[i]], first_->result(i), context);
      }
    });
    second_->run(groups, report, context);
    add_first_bytes(report);
    report.transfer_us += first_report_.transfer_us;
    report.codec_us += first_report_.codec_us + codec_us;
    // Who sent a flag sends it again. Where a sum of the first payloads overflows, every rank's
    // second one may be flagged for that.
    if (!first_report_.finite()) {
      report.nonfinite_rank = first_report_.nonfinite_rank;
      report.overflows = first_report_.overflows;
    }
  }

  // The payloads of the first round lie one after another, as those of all groups do.
  void enqueue_all(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) {
    choose_slots(groups);
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Payload mine = slots_[i].mine;
      slots_[i].mine = first_payloads_.bytes().subspan(begins_[i], mine.size());
      copy_bytes(slots_[i].mine, device_, mine, device_, context.stream);
    }
    first_->run(slots_, first_report_, context);
    for (const size_t g : groups_) {
      const GroupSlot& slot = groups[g];
      slot.compressor->compress_second(slot.mean, slot.e, slot.e_next, slot.mine, context);
    }
    second_->run(groups, report, context);
    add_first_bytes(report);
  }

  void choose_slots(std::span<const GroupSlot> groups) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      slots_[i] = groups[groups_[i]];
      slots_[i].mean = slots_[i].mean.subview(0, 0);
    }
  }

  void add_first_bytes(ExchangeReport& report) const {
    report.bytes_sent += first_report_.bytes_sent;
    report.bytes_received += first_report_.bytes_received;
    report.predicted_bytes_sent += first_report_.predicted_bytes_sent;
  }

  void compress_second(const GroupSlot& slot, const ExchangeResult& first, Context& context) {
    blame_sender({*slot.compressor, first.parts, {}, what_}, context,
                 [&] { slot.compressor->take_first(first.parts, first.scale, context); });
    slot.compressor->compress_second(slot.mean, slot.e, slot.e_next, slot.mine, context);
  }

  const std::string what_;
  const Device device_;
  std::vector<size_t> groups_;  // with two rounds
  std::vector<size_t> begins_;  // of their first payloads, on a GPU
  Buffer first_payloads_;
  std::vector<size_t> first_bytes_;
  std::vector<GroupSlot> slots_;
  std::unique_ptr<Exchange> first_, second_;
  ExchangeReport first_report_;
};

}  // namespace

void decode_on_device(const GroupSlot& slot, const ExchangeResult& parts, Context& context) {
  if (slot.mean.numel < slot.compressor->shape().numel) {
    slot.compressor->take_first(parts.parts, parts.scale, context);
  } else {
    slot.compressor->decompress(parts.parts, parts.scale, slot.mean, context);
  }
}

std::unique_ptr<Exchange> make_two_round_exchange(
    ExchangeContext context, std::unique_ptr<Exchange> (*make)(ExchangeContext)) {
  return std::make_unique<TwoRoundExchange>(std::move(context), make);
}

}  // namespace gradwire
