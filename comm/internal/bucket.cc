#include "gradwire/comm/internal/bucket.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace gradwire {
namespace {

bool is_low_rank(const PlanGroup& group) { return find_compressor(group.spec.name).low_rank; }

size_t count_nonzero(ConstGradient values) {
  return dispatch(values.dtype, [&]<class T>() {
    size_t count = 0;
    for (const T& value : values.as<T>()) {
      count += to_float(value) != 0.0f ? 1 : 0;
    }
    return count;
  });
}

// The parts of segments that follow one another that lie in `share`.
std::vector<Segment> segments_within(std::span<const Segment> segments, Region share) {
  std::vector<Segment> within;
  size_t begin = 0;
  for (const Segment& segment : segments) {
    const size_t from = std::max(begin, share.begin);
    const size_t to = std::min(begin + segment.numel, share.end);
    if (from < to) {
      within.push_back({.parameter = segment.parameter,
                        .offset_in_parameter = segment.offset_in_parameter + (from - begin),
                        .numel = to - from,
                        .rows = to - from == segment.numel ? segment.rows : 0});  // whole or none
    }
    begin += segment.numel;
  }
  return within;
}

/// The next multiple of 64 bytes, in elements.
size_t aligned_numel(size_t numel, DType dtype) {
  return room_of(numel * size_of(dtype)) / size_of(dtype);
}

/// Of each group, and the end of the last one.
std::vector<size_t> begins_of(std::span<const PlanGroup> groups, DType dtype) {
  std::vector<size_t> begins{0};
  for (const PlanGroup& group : groups) {
    begins.back() = aligned_numel(begins.back(), dtype);
    begins.push_back(begins.back() + group.numel);
  }
  return begins;
}

/// Of each group, what this rank compresses.
std::vector<Region> shares_of(std::span<const PlanGroup> groups, int ranks_per_node, int rank) {
  std::vector<Region> shares;
  for (const PlanGroup& group : groups) {
    shares.push_back(node_share(group.numel, rank, ranks_per_node));
  }
  return shares;
}

Compressors make_compressors(const Plan& plan, BucketId id, std::span<const Region> shares,
                             const Transport& transport, const BucketStart& start) {
  const bool by_node = find_exchange(plan.buckets[id].exchange).by_node;
  const bool on_gpu = start.device.type == DeviceType::kCuda;
  // Nodes larger than the group are the exchange's to refuse.
  const int senders = std::max(1, transport.world_size() / (by_node ? plan.ranks_per_node : 1));
  Compressors made;
  for (size_t g = 0; g < shares.size(); ++g) {
    const PlanGroup& group = plan.buckets[id].groups[g];
    made.push_back(make_compressor(group.spec,
                                   {.numel = shares[g].numel(),
                                    .dtype = by_node ? DType::kFloat32 : plan.dtype,
                                    .device = start.device,
                                    .segments = segments_within(group.segments, shares[g]),
                                    .seed = plan.seed,
                                    .rank = transport.rank(),
                                    .world_size = senders,
                                    .bucket = id,
                                    .state = on_gpu ? start.state : nullptr}));
    if (!on_gpu) {  // else it has the step of all
      made.back()->set_step(start.committed_step);
    }
  }
  return made;
}

std::string describe(const PlanBucket& bucket, std::string_view what) {
  std::string text = concat(what, " (", bucket.exchange, ", ");
  for (size_t g = 0; g < bucket.groups.size(); ++g) {
    text += (g == 0 ? "" : " + ") + to_string(bucket.groups[g].spec);
  }
  return text + ")";
}

}  // namespace

Bucket::Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, SubGroups& groups,
               const BucketStart& start)
    : groups_(plan.buckets[id].groups),
      what_(concat("bucket ", id)),
      label_(describe(plan.buckets[id], what_)),
      by_node_(find_exchange(plan.buckets[id].exchange).by_node),
      puts_back_(find_exchange(plan.buckets[id].exchange).puts_back),
      shows_union_(find_exchange(plan.buckets[id].exchange).rank_order &&
                   start.device.type == DeviceType::kCpu),
      shares_(shares_of(groups_, by_node_ ? plan.ranks_per_node : 1, groups.whole().rank())),
      begins_(begins_of(groups_, plan.dtype)),
      gradient_memory_(begins_.back() * size_of(plan.dtype), start.device),
      gradient_{gradient_memory_.data(), begins_.back(), plan.dtype, start.device},
      state_(start.state),
      compressors_(make_compressors(plan, id, shares_, groups.whole(), start)),
      memory_(plan, groups_, shares_, compressors_, by_node_ && plan.ranks_per_node > 1, start),
      slots_(groups_.size()),
      lent_(groups_.size()),
      unions_(groups_.size()) {
  make_payloads(start.device);
  std::vector<Compressor*> compressors;
  std::vector<size_t> numels;
  for (size_t g = 0; g < groups_.size(); ++g) {
    compressors.push_back(compressors_[g].get());
    numels.push_back(groups_[g].numel);
  }
  const uint64_t fingerprint = fnv1a(what_, plan_fingerprint);
  adds_gradients_ = adds_gradients(plan.buckets[id].exchange, compressors, groups.whole());
  ExchangeContext made_from{.compressors = std::move(compressors),
                            .transport = &groups.whole(),
                            .tag = {fingerprint, what_},
                            .groups = &groups,
                            .ranks_per_node = plan.ranks_per_node,
                            .group_numels = std::move(numels)};
  exchange_ = adds_gradients_ ? make_gradient_sum_exchange(std::move(made_from))
                              : make_exchange(plan.buckets[id].exchange, std::move(made_from));
}

// One behind another, each at the beginning of a cache line.
void Bucket::make_payloads(Device device) {
  size_t bytes = 0;
  for (const auto& compressor : compressors_) {
    bytes += room_of(compressor->capacity_bytes());
  }
  payload_memory_ = Buffer(bytes, device);
  size_t begin = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t capacity = compressors_[g]->capacity_bytes();
    slots_[g].compressor = compressors_[g].get();
    slots_[g].mine = payload_memory_.bytes().subspan(begin, capacity);
    begin += room_of(capacity);
  }
}

void Bucket::compress(Gradient gradient, Context& context) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupSlot& slot = slots_[g];
    const Gradient own = of_group(g, gradient);
    memory_.add_waiting(g, own, context.stream);
    slot.mean = delivery_ == Delivery::kMean || adds_gradients_ ? own : own.subview(0, 0);
    if (!compresses_first()) {
      continue;  // the exchange does it, once the node has added up; or nobody
    }
    Workspace::Frame frame(context.workspace);
    const Feedback::Lent lent =
        memory_.of_group(g).lend(shares_[g], Feedback::Holding::kCommitted, frame, context);
    slot.compressor->compress(own, lent.e, lent.e_next, slot.mine, context);
    if (slot.compressor->rounds() == 1) {  // else there is no e_next yet
      memory_.of_group(g).take_back(shares_[g], lent, context);
    }
  }
  payloads_.clear();
}

// What an exchange has put back by the time it fails counts: another rank may have committed.
void Bucket::exchange(Context& context) {
  Workspace::Frame frame(context.workspace);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool compresses = by_node_ || slots_[g].compressor->rounds() == 2;
    lent_[g] = {};
    if (compresses || puts_back_) {
      const auto holding = compresses ? Feedback::Holding::kBoth : Feedback::Holding::kNext;
      lent_[g] = memory_.of_group(g).lend(shares_[g], holding, frame, context);
    }
    slots_[g].e = lent_[g].e;
    slots_[g].e_next = lent_[g].e_next;
    slots_[g].strays = memory_.take_strays(g, frame);
  }
  memory_.strays_are_taken();
  const auto take_back = [&] {
    for (size_t g = 0; g < groups_.size(); ++g) {
      memory_.of_group(g).take_back(shares_[g], lent_[g], context);
    }
  };
  try {
    exchange_->run(slots_, report_, context);
  } catch (...) {
    take_back();
    throw;
  }
  take_back();
  for (size_t g = 0; adds_gradients_ && delivery_ == Delivery::kPayloads && g < groups_.size(); ++g) {
    slots_[g].compressor->compress(slots_[g].mean, {}, {}, slots_[g].mine, context);
  }
}

void Bucket::add_to_estimates(Context& context) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].spec.ef21) {
      memory_.of_group(g).add_estimate(slots_[g].mean.as<float>(), context.stream);
    }
  }
}

bool Bucket::estimates_overflow() const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (memory_.of_group(g).estimate_overflows()) {
      return true;
    }
  }
  return false;
}

std::string Bucket::what_is_not_finite() const {
  const bool kept = std::ranges::any_of(
      groups_, [](const PlanGroup& group) { return group.spec.error_feedback; });
  const bool multiplied = std::ranges::any_of(groups_, [](const PlanGroup& group) {
    return group.spec.error_feedback && is_low_rank(group);
  });
  if (report_.nonfinite_rank >= 0) {
    return concat(
        "rank ", report_.nonfinite_rank, "'s gradient holds NaN or infinity",
        kept ? ", or overflows float32 with its residual" : "",
        multiplied ? concat(", or exceeds ", kMostKept, ", beyond which powersgd keeps no residual")
                   : "");
  }
  return report_.overflows
             ? "the sum of the ranks' finite gradients overflows float32"
             : "the estimate of ef21 overflows float32, of which the mean is infinite";
}

// Runs of elements spread over the group, others in each step: a few microseconds.
void Bucket::sample_union() {
  constexpr size_t kRuns = 64, kRun = 1024;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Gradient mean = slots_[g].mean;
    if (!shows_union_ || !report_.finite() || mean.numel == 0 ||
        !find_compressor(groups_[g].spec.name).selector) {
      continue;
    }
    const bool all = mean.numel <= kRuns * kRun;
    const size_t runs = all ? 1 : kRuns, stride = mean.numel / runs, length = all ? stride : kRun;
    const size_t shift = all ? 0 : compressors_[g]->step() * kRun % (stride - kRun + 1);
    for (size_t run = 0; run < runs; ++run) {
      unions_[g].sent += count_nonzero(mean.subview(run * stride + shift, length));
    }
    unions_[g].elements += runs * length;
  }
}

double Bucket::union_density(size_t offset) const {
  const UnionSample& sample = unions_[memory_.group_at(offset)];
  return sample.elements == 0
             ? 0.0
             : static_cast<double>(sample.sent) / static_cast<double>(sample.elements);
}

void Bucket::deliver(Delivery delivery, std::span<const PlanGroup> planned) {
  check(!by_node_ || delivery == Delivery::kMean, "deliver: ", label_,
        " adds up by node, payloads cannot be handed on");
  const bool estimates =
      std::ranges::any_of(planned, [](const PlanGroup& group) { return group.spec.ef21; });
  check(!estimates || delivery == Delivery::kMean, "deliver: ", label_,
        " has a group with ef21, whose payloads are no gradient, expected to hand on the mean");
  check(
      delivery == Delivery::kMean ||
          std::ranges::none_of(planned, [](const PlanGroup& group) { return is_low_rank(group); }),
      "deliver: ", label_, " has a compressor that learns from the mean, which every rank decodes");
  delivery_ = delivery;
}

void Bucket::commit() {
  for (const auto& compressor : compressors_) {
    compressor->commit();
  }
  memory_.forget_waiting(state_->words()->step);
}

void Bucket::keep_payloads() {
  for (size_t g = 0; g < groups_.size() && delivery_ == Delivery::kPayloads; ++g) {
    payloads_.push_back({&groups_[g], slots_[g].compressor, exchange_->result(g)});
  }
}

std::vector<std::vector<uint64_t>> Bucket::states() const {
  std::vector<std::vector<uint64_t>> states{exchange_->state()};
  for (const auto& compressor : compressors_) {
    states.push_back(compressor->state());
  }
  return states;
}

void Bucket::set_states(std::span<const std::vector<uint64_t>> states) {
  check(states.size() == compressors_.size() + 1, what_, ": there are states of ",
        states.size() - 1, " groups, expected ", compressors_.size());
  for (size_t g = 0; g < compressors_.size(); ++g) {
    compressors_[g]->set_state(states[g + 1]);
  }
  exchange_->set_state(states[0]);
}

void Bucket::learn_from(const Bucket& other, Learnt learnt) {
  for (size_t g = 0; g < compressors_.size(); ++g) {
    const bool known = learnt == Learnt::kByAllRanks || !is_low_rank(groups_[g]);
    const bool same = groups_[g].spec == other.groups_[g].spec && shares_[g] == other.shares_[g];
    if (known && same) {
      compressors_[g]->set_state(other.compressors_[g]->state());
    }
  }
}

void Bucket::learn_from(std::span<const std::vector<uint64_t>> states) {
  for (const auto& compressor : compressors_) {
    for (const std::vector<uint64_t>& state : states) {
      compressor->learn_from(state);
    }
  }
}

void Bucket::take_gradient(Bucket& from) {
  std::swap(gradient_memory_, from.gradient_memory_);
  std::swap(gradient_, from.gradient_);
}

void Bucket::take_over(Bucket& from) {
  take_gradient(from);
  delivery_ = from.delivery_;
  payloads_ = from.payloads_;
}

Gradient Bucket::gradient(size_t offset, size_t numel) const {
  const size_t g = memory_.group_at(offset);
  return gradient_.subview(begins_[g] + (offset - groups_[g].offset), numel);
}

// Without gaps both are the same.
Gradient Bucket::of_group(size_t g, Gradient gradient) const {
  const bool own = gradient.numel == gradient_.numel;
  return gradient.subview(own ? begins_[g] : groups_[g].offset, groups_[g].numel);
}

}  // namespace gradwire
