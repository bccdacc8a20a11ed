#pragma once
// A bucket of a plan at work: its memory, its compressors and its exchange.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/internal/bucket_memory.h"
#include "gradwire/comm/internal/union_samples.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/comm/subgroups.h"

namespace gradwire {

/// Owns the gradient, the payloads and both residual buffers of one bucket. Which of the two residual
/// buffers is the committed one the state says that all buckets share.
class Bucket {
 public:
  /// `plan_fingerprint` is that of `plan`, worked out once for all buckets.
  Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, SubGroups& groups,
         const BucketStart& start);
  /// Before the first step, and all buckets of a plan in the same order on all ranks: collective where
  /// the exchange wants a part of the group that nobody had yet. `memory`: see MessageMemory.
  void open_exchange(MessageMemory* memory);
  Bucket(const Bucket&) = delete;  // the exchange refers to its members
  Bucket& operator=(const Bucket&) = delete;

  /// Of the bucket's own memory, where gradients are written unless the caller hands over theirs.
  /// Each group begins on a multiple of 64 bytes there, so that a GPU reads it 16 bytes at a time;
  /// in memory of the caller one lies behind the other.
  Gradient gradient() const { return gradient_; }
  /// Of elements that lie in one group.
  Gradient gradient(size_t offset, size_t numel) const;

  /// Compresses `gradient`, which is gradient() or as many elements as the bucket has: the committed
  /// residual is read, the other buffer written. Inside a task of the context's stream.
  void compress(Gradient gradient, Context& context);
  /// Exchanges what compress() made and writes the mean over its gradient. Inside a task of the
  /// context's stream, which may be another one. In groups with ef21 the mean is added to the estimate
  /// of the gradient, which takes its place there and, when the step commits, in BucketMemory.
  void exchange(Context& context);
  const ExchangeReport& report() const { return report_; }

  /// Of the group with this element, the share of elements that some rank had sent in the steps
  /// since the bucket was made, as their means show it; 0: not known, as of groups that send every
  /// element and of exchanges whose mean does not hold everything that was sent.
  double union_density(size_t offset) const {
    return unions_.density(memory_.group_at(offset));
  }

  /// On the CPU: whether an estimate overflowed in that, which ranks see alike, as means are the
  /// same. A GPU says it in the step's status.
  bool estimates_overflow() const;
  /// Of a step that cannot be committed for it: whose gradient, or what else, for messages.
  std::string what_is_not_finite() const;
  /// What the next exchanges leave: the mean, or payloads().
  /// `planned`: the groups as they are in the plan, also of later steps.
  /// @throws InvalidArgument where the exchange leaves no payloads of the whole, or with ef21.
  void deliver(Delivery delivery, std::span<const PlanGroup> planned);
  void keep_payloads();
  /// Of the last committed step; empty when it left a mean.
  std::span<const GroupPayloads> payloads() const { return payloads_; }

  /// On the CPU, when the shared state has been concluded: what the last run drew, learned or sent of
  /// what was carried is final.
  void commit();

  /// Between steps, of a bucket that takes part in no other one: gives memory back that holds nothing
  /// any more, its gradient's too.
  void release_scratch() const;

  /// What it remembers, by the bucket's elements.
  BucketMemory& memory() { return memory_; }
  const BucketMemory& memory() const { return memory_; }

  /// What the exchange and then the compressors learned in committed steps.
  std::vector<std::vector<uint64_t>> states() const;
  /// @throws InvalidArgument for states of other shapes.
  void set_states(std::span<const std::vector<uint64_t>> states);
  /// Takes over what the compressors of another bucket of the same groups learned, where they
  /// compress the same elements: what an exchange learned belongs to its group of ranks. Where some
  /// ranks never saw the last sum, what is learned from sums is learned anew.
  enum class Learnt : uint8_t { kByAllRanks, kBySome };
  void learn_from(const Bucket& other, Learnt learnt);
  /// Takes over what the states() of a bucket of another plan say of this one's parameters.
  void learn_from(std::span<const std::vector<uint64_t>> states);

  /// Takes over the gradient's memory of a bucket of the same shape, so that views stay valid.
  void take_gradient(Bucket& from);
  /// The same, and how its results are handed on, the last ones included, which lie in `from`.
  void take_over(Bucket& from);

  /// "bucket 2", and with what it does: "bucket 2 (gather, bf16 + topk:1%)".
  const std::string& label() const { return label_; }
  /// Whether compress() has work: else the exchange does all of it.
  bool compresses_first() const { return !row_.by_node && !adds_gradients_; }

 private:
  /// Of what compress() takes, a group's.
  Gradient of_group(size_t g, Gradient gradient) const;
  /// Looks at some elements of the means that the last exchange left.
  void sample_union();
  void make_payloads(Device device);
  void set_delivery(Delivery delivery);

  std::vector<PlanGroup> groups_;
  std::string what_, label_;
  const ExchangeRow& row_;
  const bool on_gpu_;
  bool adds_gradients_ = false;  // the exchange takes gradients as they are, and nothing is compressed
  std::vector<Region> shares_;   // of each group: what this rank compresses
  std::vector<size_t> begins_;  // of each group in the bucket's own memory, and the end, in elements
  Buffer gradient_memory_, payload_memory_;
  Gradient gradient_;
  std::shared_ptr<DeviceState> state_;
  Compressors compressors_;
  BucketMemory memory_;
  std::unique_ptr<Exchange> exchange_;  // null until open_exchange()
  std::vector<GroupSlot> slots_;
  std::vector<Feedback::Lent> lent_;  // to the exchange
  UnionSamples unions_;
  ExchangeContext made_from_;   // the exchange
  bool shares_memory_ = false;  // it does, with those of other buckets
  Delivery delivery_ = Delivery::kMean;
  std::vector<GroupPayloads> payloads_;
  ExchangeReport report_;
};

}  // namespace gradwire
