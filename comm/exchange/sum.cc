// Sum in flight: payloads whose bodies are plain floats add up inside one all-reduce, so that nothing
// is gathered and nothing decoded but the sum. Behind the values travels one float per rank, 1 where
// that rank's gradient was not finite: all ranks learn which from the same message.

#include <algorithm>
#include <cstring>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

constexpr size_t kHeaderFloats = sizeof(PayloadHeader) / sizeof(float);

std::string_view row_of(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::kRankOrder:
      return "sum";
    case AllReduce::kRing:
      return "ring";
    case AllReduce::kRabenseifner:
      return "rabenseifner";
  }
  return "";
}

class SumExchange final : public StreamExchange {
 public:
  SumExchange(ExchangeContext made_from, AllReduce algorithm)
      : compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())) {
    tag_.all_reduce = algorithm;
    check(algorithm == AllReduce::kRankOrder || transport_.traits().sums_in_any_order,
          "exchange '", row_of(algorithm), "': transport '", transport_.name(),
          "' adds in one order only, expected exchange 'sum' or 'dense' over it");
    size_t bytes = ranks_ * sizeof(float);
    for (const Compressor* compressor : compressors_) {
      bytes += compressor->capacity_bytes();
    }
    memory_ = message_memory(bytes, {}, made_from.memory);
    sums_.resize(compressors_.size());
    results_.resize(compressors_.size());
  }

  std::string_view name() const override { return row_of(tag_.all_reduce); }
  bool reencodes() const override { return false; }

  ExchangeResult result(size_t group) const override {
    return {std::span(results_).subspan(group, 1), 1.0f / static_cast<float>(ranks_)};
  }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    size_t bytes = ranks_ * sizeof(float);
    for (const size_t payload : payload_bytes) {
      bytes += payload;
    }
    return all_reduce_bytes_sent(tag_.all_reduce, bytes / sizeof(float) - kHeaderFloats,
                                 {transport_.rank(), transport_.world_size()});
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    lay_out(groups);
    report.predicted_bytes_sent = all_reduce_bytes_sent(
        tag_.all_reduce, values().size(), {transport_.rank(), transport_.world_size()});
    timed(report.codec_us, [&] { write_own(groups); });
    timed(report.transfer_us, [&] { transport_.all_reduce_sum(values(), tag_, context); });
    timed(report.codec_us, [&] {
      read_flags(report);
      write_headers(groups, report.nonfinite_rank >= 0);
      for (size_t g = 0; g < groups.size(); ++g) {
        decode({*compressors_[g], result(g).parts, groups[g].mean, tag_.what}, result(g), report,
               context);
      }
    });
  }

  // One payload after another, as long as this step's are: on every rank as on this one.
  void lay_out(std::span<const GroupSlot> groups) {
    size_t begin = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      sums_[g] = memory_->bytes().subspan(begin, payload_bytes(groups[g].mine));
      results_[g] = sums_[g];
      begin += sums_[g].size();
    }
    length_ = begin + ranks_ * sizeof(float);
  }

  // Everything behind the first header. The headers between groups travel as zeros, so that each sum
  // lies behind the place of its own.
  std::span<float> values() const {
    return memory_->as<float>().first(length_ / sizeof(float)).subspan(kHeaderFloats);
  }
  std::span<float> flags() const { return values().last(ranks_); }

  void write_own(std::span<const GroupSlot> groups) {
    bool nonfinite = false;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::memset(sums_[g].data(), 0, sizeof(PayloadHeader));
      const auto body = groups[g].mine.first(sums_[g].size()).subspan(sizeof(PayloadHeader));
      std::memcpy(sums_[g].data() + sizeof(PayloadHeader), body.data(), body.size());
      nonfinite = nonfinite || is_nonfinite(groups[g].mine);
    }
    std::fill(flags().begin(), flags().end(), 0.0f);
    flags()[static_cast<size_t>(transport_.rank())] = nonfinite ? 1.0f : 0.0f;
  }

  void read_flags(ExchangeReport& report) const {
    const auto first = std::find_if(flags().begin(), flags().end(), [](float f) { return f != 0; });
    if (first != flags().end()) {
      report.nonfinite_rank = static_cast<int>(first - flags().begin());
    }
  }

  // A sum has the shape and the spec of every rank's own payload: their fingerprints agreed.
  void write_headers(std::span<const GroupSlot> groups, bool nonfinite) {
    for (size_t g = 0; g < groups.size(); ++g) {
      PayloadHeader header = read_header(groups[g].mine);
      header.flags = nonfinite ? kFlagNonFinite : 0;
      std::memcpy(sums_[g].data(), &header, sizeof header);
    }
  }

  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  CallTag tag_;
  const size_t ranks_;
  std::shared_ptr<const Buffer> memory_;  // the groups' payloads one after another, then the flags
  size_t length_ = 0;  // bytes of it in this step
  std::vector<Payload> sums_;
  std::vector<ConstPayload> results_;  // the same, as result() gives them
};

}  // namespace

std::unique_ptr<Exchange> make_sum_exchange(ExchangeContext context, AllReduce algorithm) {
  return std::make_unique<SumExchange>(std::move(context), algorithm);
}

}  // namespace gradwire
