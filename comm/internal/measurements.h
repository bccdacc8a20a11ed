#pragma once
// What the steps of a plan have shown, and the plan that follows from it.

#include <vector>

#include "gradwire/comm/internal/bucket_pipeline.h"
#include "gradwire/comm/internal/step_gradients.h"

namespace gradwire {

/// Sums over the steps since a plan began.
class Measurements {
 public:
  void begin_plan(size_t parameters, uint64_t frames_sent);
  /// Specs have changed: costs begin anew.
  void begin_stage(uint64_t frames_sent);
  void add(const StepGradients& gradients, const Plan& plan, const StepTrace& times);

  bool any() const { return buckets_ > 0; }
  /// When gradients appeared: means, without those that were never reached.
  std::vector<GradientTiming> timings(const Plan& plan) const;
  BucketCost bucket_cost(const LinkCosts& link, uint64_t frames_sent) const;

 private:
  std::vector<double> ready_us_;  // of each parameter, since the first of its step: sum
  std::vector<uint32_t> times_;   // that it was reached
  double buckets_ = 0, gradient_bytes_ = 0, bytes_sent_ = 0, codec_us_ = 0;
  uint64_t frames_before_ = 0;
};

/// Collective: what rank 0 decides from its measurements. @throws InvalidArgument, on every rank, where
/// one refuses or ranks ask for different things.
Plan replanned(Epoch& epoch, const Measurements& measured, ReplanOptions options,
               BucketPipeline& pipeline);

}  // namespace gradwire
