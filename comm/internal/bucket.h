#pragma once
// A bucket of a plan at work: its memory, its compressors and its exchange.

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/kernels/compress/feedback.h"

namespace gradwire {

/// Where a bucket lies and what came before.
struct BucketStart {
  uint32_t committed_step = 0;
  Device device{};
  std::shared_ptr<DeviceState> state = nullptr;  ///< of all buckets: what a commit changes
  Stream* stream = nullptr;  ///< on a GPU: for what is read and written between steps
};

/// Owns the gradient, the payloads and both residual buffers of one bucket. Which of the two residual
/// buffers is the committed one the state says that all buckets share.
class Bucket {
 public:
  /// `plan_fingerprint` is that of `plan`, worked out once for all buckets.
  Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, SubGroups& groups,
         const BucketStart& start);
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
  /// context's stream, which may be another one.
  void exchange(Context& context);
  const ExchangeReport& report() const { return report_; }

  /// Looks at some elements of the means that the last exchange left; inside a task as well.
  void sample_union();
  /// Of the group with this element, the share of elements that some rank had sent in the steps
  /// since the bucket was made, as their means show it; 0: not known, as of groups that send every
  /// element and of exchanges whose mean does not hold everything that was sent.
  double union_density(size_t offset) const;

  /// Behind exchange(), likewise: in groups with ef21 the mean is added to the estimate of the
  /// gradient, which takes its place in the gradient's memory and, when the step commits, in
  /// estimate().
  void add_to_estimates(Context& context);
  /// On the CPU: whether an estimate overflowed in that, which ranks see alike, as means are the
  /// same. A GPU says it in the step's status.
  bool estimates_overflow() const;
  /// Of a step that cannot be committed for it: whose gradient, or what else, for messages.
  std::string what_is_not_finite() const;
  /// Of elements that lie in one group: the committed estimate, the same on every rank; empty where
  /// that group is without ef21.
  std::vector<float> estimate(size_t offset, size_t numel) const;
  bool has_estimate(size_t offset) const { return feedback_[group_at(offset)].has_estimate(); }
  /// Makes these what is kept for elements of a group with ef21, bit for bit.
  void set_estimate(size_t offset, ConstResidual residual, ConstResidual estimate);

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

  /// The residual of the elements [offset, offset + numel) of the bucket, which lie in one group;
  /// empty when that group has no feedback. As it is kept, and as floats of the host. This and what
  /// follows is for between steps, and waits on a GPU.
  TensorView stored_residual(size_t offset, size_t numel) const;
  std::vector<float> residual(size_t offset, size_t numel) const;

  /// Their residual or, in a group without feedback, what carry_over() holds; may be empty.
  std::vector<float> kept(size_t offset, size_t numel) const;
  /// Makes `values` what is kept for these elements, rounded where residuals are bfloat16: their
  /// residual, or, in a group without feedback or with ef21, what is added to the next gradient.
  /// Nothing when empty. Called on all ranks, as carry_over(): exchanges by node then ask all for
  /// what lies outside of their shares.
  void set_kept(size_t offset, ConstResidual values);

  /// The committed velocity of elements that lie in one group; where other ranks compress them,
  /// what set_velocity() still holds. Empty where that group keeps none.
  std::vector<float> velocity(size_t offset, size_t numel) const;
  /// Makes these the velocity, in a group with a momentum. Of elements that other ranks compress,
  /// what the next step makes of them goes into its gradient, if it commits.
  void set_velocity(size_t offset, ConstResidual values);
  /// In a group with an eta: makes these the velocity, or, where there are none, what this rank has
  /// sent. Behind set_estimate().
  void set_average(size_t offset, size_t numel, ConstResidual values);

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

  /// Adds `values` to these elements: to their residual, or, in a group without feedback or with
  /// ef21, to the gradient of the next step that commits.
  void carry_over(size_t offset, ConstResidual values);
  /// What carry_over() still holds for the next step; empty when nothing.
  ConstResidual carried(size_t offset, size_t numel) const;
  /// On a GPU, behind all carry_over() and set_kept() and before the next step: what they hold goes
  /// to where the step's kernels find it. Waits.
  void place_carried();
  /// On a GPU: so many steps are known to be committed. What was carried into one of them is let
  /// go.
  void forget_waiting(uint32_t committed_steps);

  /// On a GPU: enqueues a copy of the committed residual of elements that lie in one group, as
  /// floats. False, and nothing, where that group has no feedback.
  bool copy_residual(size_t offset, std::span<float> to, Stream& stream) const;

  /// "bucket 2", and with what it does: "bucket 2 (gather, bf16 + topk:1%)".
  const std::string& label() const { return label_; }
  /// Whether compress() has work: else the exchange does all of it.
  bool compresses_first() const { return !by_node_ && !adds_gradients_; }

 private:
  void add_waiting(Gradient gradient, Stream& stream) const;
  /// Of what compress() takes, a group's.
  Gradient of_group(size_t g, Gradient gradient) const;
  void lend_strays(Workspace::Frame& frame);
  size_t group_at(size_t offset) const;
  /// Where elements of the bucket lie in their group.
  Region in_group(size_t g, size_t offset, size_t numel) const;
  /// The velocity of elements of a group that this rank compresses, by their place among those.
  std::vector<float> read_velocity(size_t g, Region part) const;
  void write_velocity(size_t g, size_t begin, ConstResidual values);

  std::vector<PlanGroup> groups_;
  std::string what_, label_;
  bool by_node_;                // the exchange adds up by node and compresses
  bool shares_out_;             // of each group several ranks compress a share, which may be all or nothing
  bool puts_back_;              // it adds to residuals
  bool adds_gradients_ = false;  // it takes gradients as they are, and nothing is compressed
  bool shows_union_;            // a mean holds what any rank sent
  std::vector<Region> shares_;  // of each group: what this rank compresses
  std::vector<size_t> begins_;  // of each group in the bucket's own memory, and the end, in elements
  size_t numel_;                // of all groups
  Buffer gradient_memory_, payload_memory_;
  std::deque<Feedback> feedback_;  // of each group
  std::array<bool, 2> stray_{};    // whether residuals may hold something outside of the shares
  std::vector<float> velocity_elsewhere_;  // outside of the shares, until a step commits; or empty
  Gradient gradient_;
  std::shared_ptr<DeviceState> state_;
  Stream* stream_;  // null on the CPU
  std::vector<std::unique_ptr<Compressor>> compressors_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<GroupSlot> slots_;
  std::vector<Feedback::Lent> lent_;  // to the exchange
  /// Elements of a group's means that were looked at, and those of them that were not zero.
  struct UnionSample {
    uint64_t elements = 0, sent = 0;
  };
  std::vector<UnionSample> unions_;
  Delivery delivery_ = Delivery::kMean;
  std::vector<GroupPayloads> payloads_;
  ExchangeReport report_;
};

}  // namespace gradwire
