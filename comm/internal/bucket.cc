#include "gradwire/comm/internal/bucket.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/exchange/rows.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/bucket_layout.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace gradwire {
namespace {

bool is_low_rank(const PlanGroup& group) { return find_compressor(group.spec.name).low_rank(); }

}  // namespace

Bucket::Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, SubGroups& groups,
               const BucketStart& start)
    : groups_(plan.buckets[id].groups),
      what_(concat("bucket ", id)),
      label_(describe(plan.buckets[id], what_)),
      row_(find_exchange(plan.buckets[id].exchange)),
      on_gpu_(start.device.type == DeviceType::kCuda),
      shares_(shares_of(groups_, row_.by_node ? plan.ranks_per_node : 1, groups.whole().rank())),
      begins_(begins_of(groups_, plan.dtype)),
      gradient_memory_(begins_.back() * size_of(plan.dtype), start.device),
      gradient_{gradient_memory_.data(), begins_.back(), plan.dtype, start.device},
      state_(start.state),
      compressors_(make_compressors(plan, id, shares_, groups.whole(), start)),
      memory_(plan, groups_, shares_, compressors_, row_.by_node && plan.ranks_per_node > 1, start),
      slots_(groups_.size()),
      lent_(groups_.size()),
      unions_(groups_.size()),
      made_from_{.compressors = {},
                 .transport = &groups.whole(),
                 .tag = {fnv1a(what_, plan_fingerprint), what_},
                 .groups = &groups,
                 .ranks_per_node = plan.ranks_per_node} {
  make_payloads(start.device);
  for (size_t g = 0; g < groups_.size(); ++g) {
    made_from_.compressors.push_back(compressors_[g].get());
    made_from_.group_numels.push_back(groups_[g].numel);
  }
  adds_gradients_ = adds_gradients(row_.name, made_from_.compressors, groups.whole());
}

void Bucket::open_exchange(MessageMemory* memory) {
  shares_memory_ = memory != nullptr;
  ExchangeContext made_from = made_from_;
  made_from.memory = memory;
  exchange_ = adds_gradients_ ? make_gradient_sum_exchange(std::move(made_from))
                              : make_exchange(row_.name, std::move(made_from));
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
    const bool compresses = row_.by_node || slots_[g].compressor->rounds() == 2;
    lent_[g] = {};
    if (compresses || row_.puts_back) {
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
  sample_union();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].spec.feedback.ef21) {
      memory_.of_group(g).add_estimate(slots_[g].mean.as<float>(), context.stream);
    }
  }
}

bool Bucket::estimates_overflow() const {
  size_t g = 0;
  return std::ranges::any_of(
      groups_, [&](const PlanGroup&) { return memory_.of_group(g++).estimate_overflows(); });
}

std::string Bucket::what_is_not_finite() const {
  const bool kept =
      std::ranges::any_of(groups_, [](const PlanGroup& group) { return group.spec.feedback.on; });
  const bool multiplied = std::ranges::any_of(
      groups_, [](const PlanGroup& group) { return group.spec.feedback.on && is_low_rank(group); });
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

void Bucket::sample_union() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool shows = row_.rank_order && !on_gpu_ && report_.finite();
    if (shows && find_compressor(groups_[g].spec.name).selector()) {
      unions_.look_at(g, slots_[g].mean, compressors_[g]->step());
    }
  }
}

void Bucket::deliver(Delivery delivery, std::span<const PlanGroup> planned) {
  check(!row_.by_node || delivery == Delivery::kMean, "deliver: ", label_,
        " adds up by node, payloads cannot be handed on");
  const bool estimates =
      std::ranges::any_of(planned, [](const PlanGroup& group) { return group.spec.feedback.ef21; });
  check(!estimates || delivery == Delivery::kMean, "deliver: ", label_,
        " has a group with ef21, whose payloads are no gradient, expected to hand on the mean");
  check(
      delivery == Delivery::kMean ||
          std::ranges::none_of(planned, [](const PlanGroup& group) { return is_low_rank(group); }),
      "deliver: ", label_, " has a compressor that learns from the mean, which every rank decodes");
  set_delivery(delivery);
}

// Payloads stay until the next step, and other buckets would write over them.
void Bucket::set_delivery(Delivery delivery) {
  delivery_ = delivery;
  if (delivery == Delivery::kPayloads && shares_memory_) {
    const std::vector<uint64_t> learned = exchange_->state();
    open_exchange(nullptr);
    exchange_->set_state(learned);
  }
}

void Bucket::release_scratch() const {
  gradient_memory_.release_pages();
  payload_memory_.release_pages();
  memory_.release_next();
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
  set_delivery(from.delivery_);
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
