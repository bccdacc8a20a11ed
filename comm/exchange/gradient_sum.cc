// What "dense" is for gradients that travel as they are: they add up where they lie. No payload is
// written, cut, merged or decoded; of its bytes a rank touches each when it is checked, sent, added
// and divided. A gradient that is not finite leaves a sum that is not finite, which every rank
// finds in its mean, and only then is it asked whose it was.

#include <algorithm>
#include <atomic>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

// Of a rank, where the means are not finite: of its shard of the means, or of its gradient.
enum class Found : uint8_t { kFinite, kOverflow, kNonFinite };

constexpr size_t kBlock = 4096;

// Block by block, each of which stays in the first-level cache meanwhile. Whether all are finite,
// by then.
bool multiply_and_look(std::span<float> values, float factor, Context& context) {
  struct Work {
    std::span<float> values;
    float factor;
    std::atomic<bool> finite = true;
  } work{values, factor};
  context.stream.pool().parallel_for((values.size() + kBlock - 1) / kBlock, [&work](size_t block) {
    const size_t begin = block * kBlock;
    const auto part = work.values.subspan(begin, std::min(kBlock, work.values.size() - begin));
    if (work.factor != 1.0f) {
      cpu::multiply(part, work.factor, part);
    }
    if (!cpu::all_finite(part)) {
      work.finite.store(false, std::memory_order_relaxed);
    }
  });
  return work.finite;
}

class GradientSumExchange final : public StreamExchange {
 public:
  explicit GradientSumExchange(ExchangeContext made_from)
      : compressors_(std::move(made_from.compressors)),
        transport_(*made_from.transport),
        tag_(made_from.tag),
        ranks_(static_cast<size_t>(transport_.world_size())),
        found_(ranks_),
        lengths_(ranks_),
        parts_(compressors_.size()) {
    for (const Compressor* compressor : compressors_) {
      numel_ += compressor->shape().numel;
    }
  }

  std::string_view name() const override { return "dense"; }
  bool reencodes() const override { return false; }

  // What Bucket::exchange() has written again as a payload.
  ExchangeResult result(size_t group) const override {
    return {std::span(parts_).subspan(group, 1), 1.0f};
  }

  uint64_t bytes_sent(std::span<const size_t> /*payload_bytes*/) const override {
    return all_reduce_bytes_sent(AllReduce::kRankOrder, numel_, place());
  }

 private:
  TrafficCounters traffic() const override { return transport_.counters(); }
  RankOf place() const { return {transport_.rank(), transport_.world_size()}; }

  void run_now(std::span<const GroupSlot> groups, ExchangeReport& report,
               Context& context) override {
    const std::span<float> gradient = join(groups);
    bool finite = true;
    timed(report.codec_us, [&] { finite = multiply_and_look(gradient, 1.0f, context); });
    report.predicted_bytes_sent = bytes_sent({});
    timed(report.transfer_us, [&] { transport_.all_reduce_sum(gradient, tag_, context); });
    bool finite_mean = true;
    timed(report.codec_us, [&] {
      finite_mean = multiply_and_look(gradient, 1.0f / static_cast<float>(ranks_), context);
    });
    if (!finite_mean) {  // the same bits on all ranks: all of them are here
      timed(report.transfer_us, [&] { ask_whose(gradient, finite, report, context); });
    }
    part(groups, gradient);
    for (size_t g = 0; g < groups.size(); ++g) {
      parts_[g] = groups[g].mine;
    }
  }

  // All groups as one run of elements, as they travel. Where there are gaps between them, those
  // before the last, which has most of the elements, move up to the one behind.
  std::span<float> join(std::span<const GroupSlot> groups) const {
    float* begin = nullptr;
    size_t numel = 0;
    for (size_t g = groups.size(); g-- > 0;) {
      const std::span<float> values = groups[g].mean.as<float>();
      check(begin == nullptr || values.data() + values.size() <= begin, tag_.what,
            ": its groups' gradients overlap, expected one behind another");
      if (begin != nullptr && values.data() + values.size() != begin) {
        std::copy_backward(values.begin(), values.end(), begin);
      }
      begin = begin == nullptr ? values.data() : begin - values.size();
      numel += values.size();
    }
    check(numel == numel_, tag_.what, ": has ", numel, " elements, expected ", numel_);
    return {begin, numel};
  }

  static void part(std::span<const GroupSlot> groups, std::span<const float> joined) {
    size_t begin = 0;
    for (const GroupSlot& group : groups) {
      const std::span<float> values = group.mean.as<float>();
      if (values.data() != joined.data() + begin) {
        std::copy_n(joined.begin() + static_cast<std::ptrdiff_t>(begin), values.size(),
                    values.begin());
      }
      begin += values.size();
    }
  }

  void ask_whose(std::span<const float> mean, bool finite, ExchangeReport& report,
                 Context& context) {
    const size_t begin = shard_begin(mean.size(), place().world_size, place().rank);
    const size_t end = shard_begin(mean.size(), place().world_size, place().rank + 1);
    const bool own = cpu::all_finite(mean.subspan(begin, end - begin));
    const Found mine = !finite ? Found::kNonFinite : own ? Found::kFinite : Found::kOverflow;
    const size_t length = sizeof mine;
    transport_.all_gather(length, std::as_bytes(std::span(&mine, 1)),
                          {std::as_writable_bytes(std::span(found_)), sizeof mine, lengths_}, tag_,
                          context);
    report.predicted_bytes_sent += (ranks_ - 1) * (kFrameHeaderBytes + sizeof mine);
    const auto worst = std::ranges::max_element(found_);
    report.overflows = *worst != Found::kNonFinite;
    report.nonfinite_rank = report.overflows ? -1 : static_cast<int>(worst - found_.begin());
  }

  const std::vector<Compressor*> compressors_;
  Transport& transport_;
  const CallTag tag_;
  const size_t ranks_;
  size_t numel_ = 0;
  std::vector<Found> found_;
  std::vector<size_t> lengths_;
  std::vector<ConstPayload> parts_;
};

}  // namespace

bool adds_gradients(std::string_view exchange, std::span<Compressor* const> compressors,
                    const Transport& transport) {
  const TransportTraits traits = transport.traits();
  const CompressorSpec plain = parse_spec("none");
  return exchange == "dense" && traits.device.type == DeviceType::kCpu &&
         traits.sums_in_rank_order && std::ranges::all_of(compressors, [&](const Compressor* c) {
           return c->spec() == plain && c->shape().dtype == DType::kFloat32;
         });
}

std::unique_ptr<Exchange> make_gradient_sum_exchange(ExchangeContext context) {
  return std::make_unique<GradientSumExchange>(std::move(context));
}

}  // namespace gradwire
