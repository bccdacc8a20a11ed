#include "gradwire/comm/exchange/slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

size_t chunks_in(const Compressor& compressor) {
  return chunk_count_of(compressor.shape().numel);
}

}  // namespace

bool chooses_among_all(const Compressor& compressor) {
  const CompressorRow& row = find_compressor(compressor.spec().name);
  return row.among_all() && compressor.shape().device.type == DeviceType::kCpu;
}

bool rounds_the_mean(const Compressor& c) {
  const ValueCodec values = c.spec().codec.values;
  const bool as_gradient = (values == ValueCodec::kFloat16 && c.shape().dtype == DType::kFloat16) ||
                           (values == ValueCodec::kBFloat16 && c.shape().dtype == DType::kBFloat16);
  const CompressorRow& row = find_compressor(c.spec().name);
  return row.most_lost > 0 || (row.selector() && !row.shared_choice()) ||
         (values != ValueCodec::kRaw && values != ValueCodec::kFloat32 && !as_gradient);
}

std::vector<SliceExchange::Group> SliceExchange::make_groups(const ExchangeContext& made_from) {
  const int world_size = made_from.transport->world_size();
  const auto ranks = static_cast<size_t>(world_size);
  std::vector<Group> groups;
  size_t counts = 0;
  for (Compressor* compressor : made_from.compressors) {
    Group group{.compressor = compressor,
                .balanced = chooses_among_all(*compressor) && compressor->shape().numel > 0,
                .regions = {},
                .first_count = counts,
                .slices = std::vector<ConstPayload>(ranks)};
    if (group.balanced) {
      counts += chunks_in(*compressor);
    } else {
      for (int r = 0; r < world_size; ++r) {
        group.regions.push_back(owned_region(compressor->shape().numel, world_size, r));
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

SliceExchange::SliceExchange(const ExchangeContext& made_from)
    : transport_(*made_from.transport),
      tag_(made_from.tag),
      ranks_(static_cast<size_t>(transport_.world_size())),
      own_(static_cast<size_t>(transport_.rank())),
      groups_(make_groups(made_from)),
      outgoing_(made_from, [this](size_t g, size_t r) { return room(g, r, most_kept(g)); }),
      incoming_(made_from, [this](size_t g, size_t r) { return room(g, r, most_kept(g)); }) {
  size_t counts = 0;
  for (const Group& group : groups_) {
    counts += group.balanced ? chunks_in(*group.compressor) : 0;
  }
  counts_.resize(counts);
}

void SliceExchange::run(std::span<const GroupSlot> groups, ExchangeReport& report,
                        Context& context) {
  if (must_cut()) {
    cut_regions(groups, report, context);
  }
  timed(report.codec_us, [&] { write_slices(groups, context); });
  for (size_t r = 0; r < ranks_; ++r) {
    report.predicted_bytes_sent += r == own_ ? 0 : outgoing_.bytes_sent(outgoing_.length(r));
  }
  timed(report.transfer_us, [&] {
    const size_t own_length = of_own().length(own_);
    transport_.all_to_all(outgoing_.parts(), incoming_.parts(), tag_, context);
    incoming_.length(own_) = own_length;
  });
  timed(report.codec_us, [&] { read_slices(report); });
}

// The committed step is the same on all ranks, and so is whether there are regions. A step that was
// refused leaves no cut: its payloads may have held nothing.
bool SliceExchange::must_cut() const {
  return cut_is_open() || std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.balanced &&
           (group.regions.empty() || group.compressor->step() % kBalanceSteps == 0);
  });
}

void SliceExchange::cut_regions(std::span<const GroupSlot> groups, ExchangeReport& report,
                                Context& context) {
  std::ranges::fill(counts_, 0.0f);
  const auto counts_of = [this](const Group& group) {
    return std::span(counts_).subspan(group.first_count, chunks_in(*group.compressor));
  };
  timed(report.codec_us, [&] {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].balanced) {
        groups_[g].compressor->count_entries(groups[g].mine, counts_of(groups_[g]), context);
      }
    }
  });
  timed(report.transfer_us, [&] { transport_.all_reduce_sum(counts_, tag_, context); });
  report.predicted_bytes_sent +=
      all_reduce_bytes_sent(AllReduce::kRankOrder, counts_.size(),
                            {transport_.rank(), transport_.world_size()});
  const bool again = cut_is_open();
  cut_in_ = groups_[0].compressor->step();
  for (Group& group : groups_) {
    if (group.balanced) {
      if (!again) {
        group.regions_before = std::move(group.regions);
      }
      group.regions = balanced_regions(group.compressor->shape().numel, counts_of(group),
                                       transport_.world_size());
    }
  }
}

void SliceExchange::write_slices(std::span<const GroupSlot> slots, Context& context) {
  for (Group& group : groups_) {
    group.keeps_infinity = false;
  }
  for (size_t r = 0; r < ranks_; ++r) {
    GroupMessages& messages = r == own_ ? of_own() : outgoing_;
    messages.write(
        r, [&](size_t g) { return groups_[g].regions[r]; },
        [&](size_t g, Region region, Payload out) {
          const Group& group = groups_[g];
          const Payload mine = sent_part(slots[g]);
          if (group.balanced && region.numel() > 0) {
            write_some(g, r, slots[g], out, context);
          } else if (region.numel() > 0) {
            group.compressor->slice(mine, region, out, context);
          } else if (!messages.at_capacity()) {
            write_empty_payload(*group.compressor, is_nonfinite(mine), out);
          }
        });
  }
}

// A slice's flag says that its sender's gradient is not finite: all its slices carry it, so that
// every rank knows. What overflows in e_next by this slice alone is told later.
void SliceExchange::write_some(size_t g, size_t r, const GroupSlot& slot, Payload out,
                               Context& context) {
  Group& group = groups_[g];
  const Payload mine = sent_part(slot);
  group.compressor->slice_at_most({mine, group.regions[r], slice_entries(kept(g), ranks_)},
                                  slot.e_next, out, context);
  if (is_nonfinite(out) && !is_nonfinite(mine)) {
    group.keeps_infinity = true;
    set_nonfinite(out, false);
  }
}

void SliceExchange::read_slices(ExchangeReport& report) {
  incoming_.read([this](size_t g, size_t) { return groups_[g].regions[own_]; },
                 [&](size_t g, size_t r, const MessageReader::Item& item) {
                   groups_[g].slices[r] = item.payload;
                   note_flag(item.nonfinite, r, report);
                 });
}

uint64_t SliceExchange::bytes_sent(std::span<const size_t> payload_bytes) const {
  uint64_t sent = (ranks_ - 1) * outgoing_.bytes_sent(0);
  for (size_t g = 0; !outgoing_.at_capacity() && g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    uint64_t slices = 0, overhead = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      if (r != own_) {
        slices += room(g, r, kept(g));
        overhead += sizeof(PayloadHeader) + 3 * 4;  // each part of a body is padded on its own
      }
    }
    sent += group.compressor->fixed_length() ? slices
                                             : std::min(slices, payload_bytes[g] + overhead);
  }
  return counts_.empty() ? sent
                         : sent + all_reduce_bytes_sent(
                                      AllReduce::kRankOrder, counts_.size(),
                                      {transport_.rank(), transport_.world_size()});
}

size_t SliceExchange::kept(size_t group) const {
  const Compressor& compressor = *groups_[group].compressor;
  return kept_in_step(compressor.spec(), compressor.shape().numel, compressor.step());
}

// The steps after the first keep no more.
size_t SliceExchange::most_kept(size_t group) const {
  const Compressor& compressor = *groups_[group].compressor;
  return kept_in_step(compressor.spec(), compressor.shape().numel, 0);
}

size_t SliceExchange::room(size_t g, size_t r, size_t kept) const {
  const Group& group = groups_[g];
  const Region whole{0, group.compressor->shape().numel};
  return group.balanced
             ? group.compressor->capacity_for_entries(whole, slice_entries(kept, ranks_))
             : room_for(*group.compressor, group.regions[r]);
}

std::vector<uint64_t> SliceExchange::state() const {
  std::vector<uint64_t> words;
  for (const Group& group : groups_) {
    const std::vector<Region>& regions = cut_is_open() ? group.regions_before : group.regions;
    if (group.balanced && !regions.empty()) {
      const auto edges = region_edges(regions, group.compressor->shape().numel);
      words.insert(words.end(), edges.begin(), edges.end());
    }
  }
  return words;
}

void SliceExchange::set_state(std::span<const uint64_t> state) {
  const auto balanced = static_cast<size_t>(std::count_if(
      groups_.begin(), groups_.end(), [](const Group& group) { return group.balanced; }));
  check(state.empty() || state.size() == balanced * (ranks_ + 1), "two-shot exchange: its state has ",
        state.size(), " words, expected 0 or ", balanced * (ranks_ + 1));
  std::vector<std::vector<Region>> regions;
  for (const Group& group : groups_) {
    const bool given = group.balanced && !state.empty();
    regions.push_back(given ? regions_between(state.first(ranks_ + 1),
                                              group.compressor->shape().numel)
                            : std::vector<Region>{});
    state = given ? state.subspan(ranks_ + 1) : state;
  }
  cut_in_.reset();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].balanced) {
      groups_[g].regions = std::move(regions[g]);
    }
  }
}

}  // namespace gradwire
