#pragma once
// Which gradients a step has on this rank: ready, accumulated, or unused.

#include <cstdint>
#include <string_view>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire {

/// Knows no memory and no other rank. `call` names the caller's call, for messages.
class StepGradients {
 public:
  /// `plan` stays where it is until the next call.
  void begin_step(const Plan& plan, uint64_t step);

  /// Something was accumulated or is ready.
  bool begun() const { return begun_; }
  bool any_ready() const { return any_ready_; }
  /// When the first one was, and parameter `p`.
  int64_t first_ready_us() const { return first_ready_us_; }
  int64_t ready_us(ParamId p) const { return ready_us_[p]; }
  /// Of each parameter: whether this rank has a gradient of its own.
  const std::vector<uint8_t>& reached() const { return reached_; }
  bool is_ready(ParamId p) const { return given_[p] == Given::kReady; }

  /// @throws InvalidArgument when `p` is unknown or already ready, or the bucket has ready parameters.
  void check_not_ready(std::string_view call, ParamId p) const;
  void check_none_ready(std::string_view call, BucketId b) const;
  /// @throws InvalidArgument naming what wait() misses.
  void check_all_ready() const;
  /// @throws InvalidArgument in the middle of a step.
  void check_not_begun(std::string_view call) const;

  /// Notes that backward has been there. False: for the first time in this step.
  bool add(ParamId p);
  /// A pass that accumulates has been there.
  void begin() { begun_ = true; }
  /// True: its bucket is ready now.
  bool set_ready(ParamId p, int64_t now_us);
  void set_bucket_ready(BucketId b, int64_t now_us);
  /// Whether nothing was accumulated: then the gradient is to be zero.
  bool set_unused(ParamId p);

  /// "2 of 7", for messages.
  std::string how_many_ready() const;

 private:
  /// What has become of a parameter's gradient.
  enum class Given : uint8_t { kNothing, kAccumulated, kReady };
  void note_ready(ParamId p, int64_t now_us);

  const Plan* plan_ = nullptr;
  uint64_t step_ = 0;
  bool begun_ = false, any_ready_ = false;
  int64_t first_ready_us_ = 0;
  std::vector<Given> given_;  // of each parameter, as the next two
  std::vector<uint8_t> reached_;
  std::vector<int64_t> ready_us_;
  std::vector<size_t> missing_, members_;  // of each bucket: parameters
};

}  // namespace gradwire
