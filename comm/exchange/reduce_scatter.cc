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
    check(!find_compressor(compressor->spec().name).low_rank,
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
        slices(checked(made_from), SliceExchange::Cut::kEven) {}

  void run(std::span<const GroupSlot> groups, ExchangeReport& report, Context& context) {
    slices.run(groups, report, context);
    timed(report.codec_us, [&] {
      const float scale = 1.0f / static_cast<float>(slices.ranks());
      for (size_t g = 0; g < groups.size(); ++g) {
        const Region own = slices.region(g, slices.own());
        if (own.numel() > 0) {
          blame_sender({*compressors[g], slices.slices(g), {}, what}, context, [&] {
            compressors[g]->decompress_region({slices.slices(g), own, scale, groups[g].mean},
                                              context);
          });
        }
      }
    });
  }

  const std::vector<Compressor*> compressors;
  Transport& transport;
  const std::string_view what;
  SliceExchange slices;
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
    counted([this] { return state_->transport.counters(); }, report,
            [&] { state_->run(groups, report, context); });
  });
}

}  // namespace gradwire
