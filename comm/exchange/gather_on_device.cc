// The gather of payloads in GPU memory. Every payload travels at its capacity, at an offset that all
// ranks know, and the GPU reads the lengths.

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire {
namespace {

class GatherOnDevice final : public Exchange {
 public:
  explicit GatherOnDevice(ExchangeContext made_from)
      : compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        stride_(total_room(compressors_)),
        messages_(transport_.world_size(), stride_, transport_.traits().device) {
    size_t begin = 0;
    for (const Compressor* compressor : compressors_) {
      begins_.push_back(begin);
      for (size_t r = 0; r < ranks_; ++r) {
        payloads_.push_back(messages_.room(r).subspan(begin, compressor->capacity_bytes()));
      }
      begin += room_of(compressor->capacity_bytes());
    }
  }

  std::string_view name() const override { return "gather"; }
  bool reencodes() const override { return false; }

  ExchangeResult result(size_t group) const override {
    return {std::span(payloads_).subspan(group * ranks_, ranks_),
            1.0f / static_cast<float>(ranks_)};
  }

  uint64_t bytes_sent(std::span<const size_t>) const override { return (ranks_ - 1) * stride_; }

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) override {
    report = {.predicted_bytes_sent = bytes_sent({})};
    const TrafficCounters before = transport_.counters();
    const Payload mine = check_together(groups);
    transport_.all_gather(stride_, mine, messages_.parts(), tag_, context);
    const TrafficCounters after = transport_.counters();
    report.bytes_sent = after.bytes_sent - before.bytes_sent;
    report.bytes_received = after.bytes_received - before.bytes_received;
    for (size_t g = 0; g < groups.size(); ++g) {
      decode_on_device(groups[g], result(g), context);
      cuda::clear_headers(messages_.parts().bytes.subspan(begins_[g]), stride_, context.stream);
    }
  }

 private:
  static size_t total_room(std::span<Compressor* const> compressors) {
    size_t bytes = 0;
    for (const Compressor* compressor : compressors) {
      bytes += room_of(compressor->capacity_bytes());
    }
    return bytes;
  }

  // The groups' payloads as one message, without a copy.
  Payload check_together(std::span<const GroupSlot> groups) const {
    std::byte* const first = groups[0].mine.data();
    for (size_t g = 0; g < groups.size(); ++g) {
      check(groups[g].mine.data() == first + begins_[g], "exchange 'gather': payload ", g, " lies ",
            groups[g].mine.data() - first, " bytes behind the first, expected ", begins_[g]);
    }
    return {first, stride_};
  }

  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_, stride_;
  Messages messages_;
  std::vector<size_t> begins_;          // of each group's payload in a message
  std::vector<ConstPayload> payloads_;  // [group][rank]
};

}  // namespace

std::unique_ptr<Exchange> make_gather_exchange_on_device(ExchangeContext context) {
  return std::make_unique<GatherOnDevice>(std::move(context));
}

}  // namespace gradwire
