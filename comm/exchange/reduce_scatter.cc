#include <algorithm>
#include <exception>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/exchange/slices.h"

namespace gradwire {
namespace {

const ExchangeContext& checked(const ExchangeContext& context) {
  check(context.transport != nullptr, "compressed reduce-scatter: no transport, expected one");
  check(!context.compressors.empty(),
        "compressed reduce-scatter: 0 compressors, expected one per group of the bucket");
  for (const Compressor* compressor : context.compressors) {
    check(compressor->rounds() == 1, "compressed reduce-scatter: cannot carry '",
          to_string(compressor->spec()), "', expected a compressor of one round");
    check(!find_compressor(compressor->spec().name).low_rank(),
          "compressed reduce-scatter: cannot carry '", to_string(compressor->spec()),
          "', whose factors decode together alone, expected another one");
  }
  return context;
}

}  // namespace

struct CompressedReduceScatter::State {
  explicit State(const ExchangeContext& made_from)
      : compressors(made_from.compressors),
        transport(*made_from.transport),
        what(made_from.tag.what),
        tag(made_from.tag),
        slices(checked(made_from), SliceExchange::Cut::kEven),
        finite(slices.ranks()),
        lengths(slices.ranks()) {}

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) {
    slices.run(groups, report, context);
    bool mine = true;
    timed(report.codec_us, [&] {
      const float scale = 1.0f / static_cast<float>(slices.ranks());
      for (size_t g = 0; g < groups.size(); ++g) {
        const Region own = slices.region(g, slices.own());
        if (own.numel() > 0) {
          blame_sender({*compressors[g], slices.slices(g), {}, what}, context, [&] {
            compressors[g]->decompress_region({slices.slices(g), own, scale, groups[g].mean, &mine},
                                              context);
          });
        }
      }
    });
    if (report.nonfinite_rank < 0) {  // else no rank commits anyhow, and all know
      timed(report.transfer_us, [&] { tell_overflow(mine, report, context); });
    }
  }

  // Nobody but the owner has the sums of a region.
  void tell_overflow(bool mine, ExchangeReport& report, Context& context) {
    const auto said = std::byte{mine};
    const size_t length = sizeof said;
    transport.all_gather(length, {&said, 1}, {finite, sizeof said, lengths}, tag, context);
    report.predicted_bytes_sent += (slices.ranks() - 1) * (kFrameHeaderBytes + sizeof said);
    report.overflows =
        std::ranges::count(finite, std::byte{true}) < static_cast<ptrdiff_t>(finite.size());
  }

  const std::vector<Compressor*> compressors;
  Transport& transport;
  const std::string_view what;
  const CallTag tag;
  SliceExchange slices;
  std::vector<std::byte> finite;  // of each rank: whether its sums are
  std::vector<size_t> lengths;
};

CompressedReduceScatter::CompressedReduceScatter(const ExchangeContext& context)
    : state_(std::make_unique<State>(checked(context))) {}
CompressedReduceScatter::~CompressedReduceScatter() = default;

Region CompressedReduceScatter::region(size_t group) const {
  return state_->slices.region(group, state_->slices.own());
}

Region CompressedReduceScatter::region(size_t group, int rank) const {
  check(group < state_->compressors.size() && rank >= 0 &&
            static_cast<size_t>(rank) < state_->slices.ranks(),
        "compressed reduce-scatter: group ", group, " of rank ", rank, ", expected below ",
        state_->compressors.size(), " and ", state_->slices.ranks());
  return state_->slices.region(group, static_cast<size_t>(rank));
}

void CompressedReduceScatter::run(std::span<const GroupSlot> groups, ExchangeReport& report,
                                  Context& context) {
  for (size_t g = 0; g < groups.size(); ++g) {
    check(groups[g].mean.numel == region(g).numel(), "compressed reduce-scatter: mean of group ", g,
          " has ", groups[g].mean.numel, " elements, expected ", region(g).numel());
  }
  context.stream.enqueue([this, groups, &report, context]() mutable {
    report = {};
    try {
      counted([this] { return state_->transport.counters(); }, report,
              [&] { state_->run(groups, report, context); });
    } catch (const std::exception& error) {
      // Of this rank alone, such as a payload that does not decode: the others wait for its messages.
      state_->transport.abort(concat("rank ", state_->transport.rank(), ": ", state_->what, ": ",
                                     error.what()));
      throw;
    }
  });
}

}  // namespace gradwire
