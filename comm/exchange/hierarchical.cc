// Nodes with several ranks: the ranks of a node add their gradients up, dense, and divide the sum
// among them; each compresses its share and exchanges it with the ranks that have the same place in
// other nodes; the means of the shares then travel within the node. Between nodes go
// 1/ranks_per_node of the payload's bytes per rank. HiTopKComm: Shi et al., arXiv:2010.10458.

#include <algorithm>
#include <cstring>
#include <optional>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

// From this many nodes on a two-shot exchange sends less than gathering does.
constexpr int kTwoShotNodes = 4;

int checked_ranks_per_node(const ExchangeContext& made_from) {
  const int world_size = made_from.transport->world_size();
  check(made_from.ranks_per_node >= 1 && world_size % made_from.ranks_per_node == 0,
        "hierarchical exchange: ranks_per_node is ", made_from.ranks_per_node,
        ", must divide the world size, ", world_size);
  return made_from.ranks_per_node;
}

class HierarchicalExchange final : public StreamExchange {
 public:
  explicit HierarchicalExchange(const ExchangeContext& made_from)
      : compressors_(made_from.compressors),
        whole_(*made_from.transport),
        per_node_(checked_ranks_per_node(made_from)),
        first_of_node_(made_from.transport->rank() / per_node_ * per_node_),
        tag_(made_from.tag),
        own_groups_(made_from.groups == nullptr ? std::make_unique<SubGroups>(*made_from.transport)
                                                : nullptr),
        groups_(own_groups_ ? *own_groups_ : *made_from.groups),
        node_(
            groups_.part(concat("nodes of ", per_node_), made_from.transport->rank() / per_node_)),
        across_(groups_.part(concat("places in nodes of ", per_node_),
                             made_from.transport->rank() % per_node_)),
        between_(make_exchange(exchange_between_nodes(compressors_, across_.world_size()),
                               {.compressors = compressors_,
                                .transport = &across_,
                                .tag = tag_,
                                .memory = made_from.memory})),
        sums_(compressors_.size()),
        between_slots_(compressors_.size()) {
    size_t own = 0, largest = sizeof(int32_t);
    for (size_t g = 0; g < sums_.size(); ++g) {
      sums_[g].numel = made_from.group_numels[g];
      own += share_numel(g, node_.rank());
      largest += share_numel(g, 0) * sizeof(float);  // no share is larger than the first
    }
    share_memory_ = message_memory(own * sizeof(float), {}, made_from.memory);
    shares_ = {share_memory_->as<float>().data(), own};  // of MessageMemory::Kind::kCounted: nothing
    size_t begin = 0;
    for (size_t g = 0; g < sums_.size(); ++g) {
      sums_[g].share = shares_.subspan(begin, share_numel(g, node_.rank()));
      begin += sums_[g].share.size();
    }
    means_.emplace(per_node_, largest, Device{}, made_from.memory);
    found_.resize(static_cast<size_t>(whole_.world_size()));
    lengths_.resize(found_.size());
  }

  std::string_view name() const override { return "hierarchical"; }
  bool reencodes() const override { return between_->reencodes(); }
  ExchangeResult result(size_t) const override { return {}; }
  std::vector<uint64_t> state() const override { return between_->state(); }
  void set_state(std::span<const uint64_t> state) override { between_->set_state(state); }

  uint64_t bytes_sent(std::span<const size_t> payload_bytes) const override {
    uint64_t bytes = between_->bytes_sent(payload_bytes);
    for (size_t g = 0; g < sums_.size(); ++g) {
      bytes += scatter_bytes(g);
    }
    return bytes + gather_bytes();
  }

 private:
  struct NodeSum {
    size_t numel = 0;
    std::vector<float> wide;  ///< the gradient, where it is not float32
    std::span<float> share;   ///< of shares_
  };

  TrafficCounters traffic() const override { return node_.counters(); }

  void run_now(std::span<const GroupSlot> slots, ExchangeReport& report,
               Context& context) override {
    uint64_t predicted = 0;
    int64_t codec_us = 0, transfer_us = 0;
    Workspace::Frame frame(context.workspace);
    for (size_t g = 0; g < slots.size(); ++g) {
      std::span<const float> values;
      timed(codec_us, [&] { values = widened(slots[g].mean, sums_[g]); });
      timed(transfer_us, [&] { node_.reduce_scatter(values, sums_[g].share, tag_, context); });
      predicted += scatter_bytes(g);
      between_slots_[g] = slots[g];
      if (!slots[g].strays.empty()) {
        const auto e = frame.take<float>(sums_[g].share.size());
        timed(transfer_us, [&] { node_.reduce_scatter(slots[g].strays, e, tag_, context); });
        predicted += scatter_bytes(g);
        timed(codec_us, [&] { cpu::add(slots[g].e, e, e); });
        between_slots_[g].e = e;
      }
      timed(codec_us, [&] {
        compressors_[g]->compress(view_of(std::span<const float>(sums_[g].share)),
                                  between_slots_[g].e, slots[g].e_next, slots[g].mine, context);
      });
      between_slots_[g].mean = view_of(sums_[g].share);
    }
    between_->run(between_slots_, report, context);
    timed(codec_us, [&] { write_means(report); });
    timed(transfer_us, [&] {
      const auto own = static_cast<size_t>(node_.rank());
      node_.all_gather(means_->length(own), means_->room(own), means_->parts(), tag_, context);
    });
    bool finite = true;
    timed(codec_us, [&] { finite = check_means(); });
    if (!finite) {  // all nodes say so, of one place at least
      timed(transfer_us, [&] { ask_whose(slots, report, context); });
      predicted += (found_.size() - 1) * (kFrameHeaderBytes + 1);
    }
    timed(codec_us, [&] { read_means(slots); });
    report.codec_us += codec_us;
    report.transfer_us += transfer_us;
    report.predicted_bytes_sent += predicted + gather_bytes();
  }

  std::span<const float> widened(Gradient gradient, NodeSum& sum) {
    if (gradient.dtype == DType::kFloat32) {
      return gradient.as<float>();
    }
    sum.wide.resize(gradient.numel);
    cpu::widen(gradient, sum.wide);
    return sum.wide;
  }

  // The shares' means, all groups one after another, and the first rank of a node whose sums were
  // not finite, or of this one where sums of nodes overflow; -1 where all is well.
  void write_means(const ExchangeReport& report) {
    const auto own = static_cast<size_t>(node_.rank());
    const int32_t bad = report.nonfinite_rank >= 0 ? report.nonfinite_rank * per_node_
                        : report.overflows         ? first_of_node_
                                                   : -1;
    cpu::multiply(shares_, 1.0f / static_cast<float>(per_node_), shares_);
    const auto bytes = std::as_bytes(std::span<const float>(shares_));
    std::ranges::copy(bytes, means_->room(own).begin());
    std::memcpy(means_->room(own).data() + bytes.size(), &bad, sizeof bad);
    means_->length(own) = bytes.size() + sizeof bad;
  }

  // Checks the messages' lengths. Whether none says that what its places of all nodes have is not
  // finite.
  bool check_means() const {
    bool finite = true;
    for (int r = 0; r < per_node_; ++r) {
      const auto message = std::span<const std::byte>(means_->message(static_cast<size_t>(r)));
      size_t expected = sizeof(int32_t);
      for (size_t g = 0; g < sums_.size(); ++g) {
        expected += share_numel(g, r) * sizeof(float);
      }
      if (message.size() != expected) {
        throw TransportError(concat(tag_.what, ": rank ", first_of_node_ + r, "'s means have ",
                                    message.size(), " bytes, expected ", expected),
                             first_of_node_ + r);
      }
      int32_t bad;
      std::memcpy(&bad, message.last(sizeof bad).data(), sizeof bad);
      finite = finite && bad < 0;
    }
    return finite;
  }

  // A sum of a node that is not finite does not say of which rank, nor whether of any: every rank
  // tells all others whether its gradient is finite, before the means take its place.
  void ask_whose(std::span<const GroupSlot> slots, ExchangeReport& report, Context& context) {
    bool finite = true;
    for (size_t g = 0; g < slots.size(); ++g) {
      finite = finite && cpu::all_finite(widened(slots[g].mean, sums_[g]));
    }
    const auto said = std::byte{finite};
    const size_t length = sizeof said;
    counted([this] { return whole_.counters(); }, report,
            [&] {
              whole_.all_gather(length, {&said, 1}, {found_, sizeof said, lengths_}, tag_, context);
            });
    const auto first = std::ranges::find(found_, std::byte{false});
    report.overflows = first == found_.end();
    report.nonfinite_rank = report.overflows ? -1 : static_cast<int>(first - found_.begin());
  }

  void read_means(std::span<const GroupSlot> slots) {
    for (int r = 0; r < per_node_; ++r) {
      auto message = std::span<const std::byte>(means_->message(static_cast<size_t>(r)));
      for (size_t g = 0; g < slots.size(); ++g) {
        const size_t count = share_numel(g, r);
        const size_t begin = shard_begin(sums_[g].numel, per_node_, r);
        write_mean(message.first(count * sizeof(float)), slots[g].mean.subview(begin, count));
        message = message.subspan(count * sizeof(float));
      }
    }
  }

  static void write_mean(std::span<const std::byte> bytes, Gradient mean) {
    const std::span<const float> values(reinterpret_cast<const float*>(bytes.data()), mean.numel);
    if (mean.dtype == DType::kFloat32) {
      std::ranges::copy(values, mean.as<float>().begin());
    } else {
      cpu::narrow(values, mean);
    }
  }

  // As comm/transport/README.md has it.
  uint64_t scatter_bytes(size_t g) const {
    return sizeof(float) * (sums_[g].numel - sums_[g].share.size()) +
           static_cast<uint64_t>(per_node_ - 1) * kFrameHeaderBytes;
  }
  uint64_t gather_bytes() const {
    return static_cast<uint64_t>(per_node_ - 1) *
           (kFrameHeaderBytes + shares_.size() * sizeof(float) + sizeof(int32_t));
  }

  size_t share_numel(size_t g, int r) const {
    const size_t numel = sums_[g].numel;
    return shard_begin(numel, per_node_, r + 1) - shard_begin(numel, per_node_, r);
  }

  const std::vector<Compressor*> compressors_;
  Transport& whole_;
  const int per_node_, first_of_node_;
  const CallTag tag_;
  const std::unique_ptr<SubGroups> own_groups_;
  SubGroups& groups_;
  Transport& node_;
  Transport& across_;
  const std::unique_ptr<Exchange> between_;
  std::vector<NodeSum> sums_;
  std::vector<GroupSlot> between_slots_;
  std::shared_ptr<const Buffer> share_memory_;
  std::span<float> shares_;  // of all groups
  std::optional<Messages> means_;
  std::vector<std::byte> found_;  // of each rank of the whole group
  std::vector<size_t> lengths_;
};

}  // namespace

std::string_view exchange_between_nodes(std::span<Compressor* const> compressors, int nodes) {
  const auto all = [&](std::string_view name) {
    return std::ranges::all_of(compressors, [&](const Compressor* compressor) {
      return find_exchange(name).accepts(*compressor);
    });
  };
  return all("dense") ? "dense" : nodes >= kTwoShotNodes && all("two_shot") ? "two_shot" : "gather";
}

std::unique_ptr<Exchange> make_hierarchical_exchange(ExchangeContext context) {
  return std::make_unique<HierarchicalExchange>(context);
}

}  // namespace gradwire
