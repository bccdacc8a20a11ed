#pragma once
// The profile of a trainer in C++: what its Reducer's trace knows, beside what only the trainer
// does.

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "gradwire/comm/merge.h"
#include "gradwire/comm/plan.h"
#include "gradwire/comm/trace.h"
#include "gradwire/planner/profile.h"

namespace gradwire::planner {

/// What no trace has: medians of the caller's own clock over the traced steps, in seconds.
struct TrainerTimes {
  std::string model = {};    ///< its name
  std::string machine = {};  ///< what ran it, in words
  size_t batch = 1;          ///< samples per rank and step
  size_t ranks = 1;
  double io_s = 0;  ///< loading and preparing a batch
  double host_to_device_s = 0;
  double forward_s = 0;  ///< all of it, with the loss; becomes the profile's other_s
  /// From the beginning of backward to Reducer::wait(), which follows it at once. None: backward
  /// began with its first gradient.
  std::optional<double> backward_s = {};
  double update_s = 0;  ///< of the optimizer; spread over parameters by their elements
  std::optional<double> measured_step_s = {};
};

/// A layer for each parameter of the plan. Of every bucket the medians over `steps` of compression,
/// of the time inside the transport and of what else the exchange took (sums, decompression) are
/// those of its last gradient in backward.
///
/// `timings` says when gradients were ready (Reducer::gradient_timings()); without it, as where
/// buckets are handed over whole, all of a bucket are ready with its last.
///
/// Of gradients in CPU memory: on a GPU a trace has the times at which the host enqueued.
/// @throws InvalidArgument for no steps, a step without one of the plan's buckets or with times
/// that run backwards, timings of some parameters only, and what validate() of a profile refuses.
Profile reducer_profile(const Plan& plan, std::span<const StepTrace> steps,
                        const TrainerTimes& times, std::span<const GradientTiming> timings = {});

}  // namespace gradwire::planner
