#pragma once
// What a bucket remembers between steps, by the bucket's elements: for checkpoints, changed plans and
// rebuilt groups. Elements that a call names lie in one group.

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"
#include "gradwire/kernels/compress/feedback.h"

namespace gradwire {

/// Where a bucket lies and what came before.
struct BucketStart {
  uint32_t committed_step = 0;
  Device device{};
  std::shared_ptr<DeviceState> state = nullptr;  ///< of all buckets: what a commit changes
  Stream* stream = nullptr;  ///< on a GPU: for what is read and written between steps
};

using Compressors = std::vector<std::unique_ptr<Compressor>>;  ///< of each group

/// Between steps, but for the part that says otherwise. On a GPU calls wait.
class BucketMemory {
 public:
  /// `shares`: what this rank compresses of each group, by `compressors`. Both outlive this.
  /// `shares_out`: the ranks of a node compress a share each, which may be all of a group, or nothing.
  BucketMemory(const Plan& plan, std::span<const PlanGroup> groups, std::span<const Region> shares,
               const Compressors& compressors, bool shares_out, const BucketStart& start);

  // In a step.

  Feedback& of_group(size_t g) { return feedback_[g]; }
  const Feedback& of_group(size_t g) const { return feedback_[g]; }
  /// gradient += what waits for group g's.
  void add_waiting(size_t g, Gradient gradient, Stream& stream) const;
  /// Residual of group g outside of this rank's share, zeros within: it goes to the ranks whose share it
  /// is. Empty without any. Called once for each group.
  ConstResidual take_strays(size_t g, Workspace::Frame& frame);
  /// Behind take_strays() of all groups.
  void strays_are_taken();

  /// Where the elements are remembered.
  struct Part {
    Feedback& feedback;
    Region region;
  };
  Part part(size_t offset, size_t numel) {
    const size_t g = group_at(offset), begin = offset - groups_[g].offset;
    return {feedback_[g], {begin, begin + numel}};
  }

  /// The residual or, in a group without feedback, what waits for the next gradient; may be empty.
  std::vector<float> kept(size_t offset, size_t numel);
  /// Makes `values` what is kept, rounded where residuals are bfloat16: the residual, or, in a group
  /// without feedback or with ef21, what waits. Nothing when empty. Called on all ranks, as
  /// carry_over(): exchanges by node then ask all for what lies outside of their shares.
  void set_kept(size_t offset, ConstResidual values);
  /// Adds `values` there.
  void carry_over(size_t offset, ConstResidual values);
  /// On the CPU: gives memory back that holds nothing until the next step.
  void release_next() const;
  /// On a GPU, behind all set_kept() and carry_over() and before the next step: kernels find what waits.
  void place_waiting();
  /// So many steps are committed. What went into one of them waits no more.
  void forget_waiting(uint32_t committed_steps);

  /// Makes these what is kept in a group with ef21, bit for bit. With an eta also the velocity:
  /// `average` or, where that is empty, what this rank has sent.
  void set_estimate(size_t offset, ConstResidual residual, ConstResidual estimate,
                    ConstResidual average);

  /// The velocity; where other ranks compress, what set_velocity() still holds. Empty where the group
  /// keeps none.
  std::vector<float> velocity(size_t offset, size_t numel) const;
  /// Makes these the velocity, in a group with a momentum. Of elements that other ranks compress, what
  /// the next step makes of them goes into its gradient, if it commits.
  void set_velocity(size_t offset, ConstResidual values);

  size_t group_at(size_t offset) const;

 private:
  size_t committed() const { return state_->parity(stream_); }
  /// Something may be kept outside of the shares now.
  void note_stray();
  /// Of group g, before and behind this rank's share.
  std::array<Region, 2> outside_of_share(size_t g) const {
    return {Region{0, shares_[g].begin}, Region{shares_[g].end, groups_[g].numel}};
  }
  /// Of elements that this rank compresses, by their place among those.
  std::vector<float> read_velocity(size_t g, Region part) const;
  void write_velocity(size_t g, size_t begin, ConstResidual values);

  const std::span<const PlanGroup> groups_;
  const std::span<const Region> shares_;
  const Compressors& compressors_;
  const bool shares_out_;
  const std::shared_ptr<DeviceState> state_;
  Stream* const stream_;  // null on the CPU
  std::deque<Feedback> feedback_;
  std::array<bool, 2> stray_{};  // whether residuals may hold something outside of the shares
  /// Of each group, outside of the share, until a step commits; or empty.
  std::vector<std::vector<float>> velocity_elsewhere_;
};

}  // namespace gradwire
