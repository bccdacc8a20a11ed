#pragma once
// The plans worth considering, from what has been measured: off, bf16 and each compressor in its
// best buckets.

#include <span>
#include <string>
#include <vector>

#include "gradwire/planner/pilot.h"

namespace gradwire::planner {

/// What all predictions of a job share.
struct PredictedJob {
  std::span<const ParamInfo> parameters;
  int world_size = 1;
  const PilotOptions& options;
  const PilotCosts& costs;
  double rest_s = 0;  ///< of a step, beside waiting for exchanges: the same for all plans
  bool few_messages = false;  ///< several buckets must be worth them (candidates.cc)
};

/// What a step takes beside waiting for exchanges, where the plan `ran` took `step_s`.
double rest_of_step(const PredictedJob& job, const PlanOptions& ran, double step_s);

/// By predicted step, earliest first; the first of loss 0 is off. Each in the plan its buckets and
/// exchanges make, on one stream. @throws InvalidArgument as plan_buckets() and
/// make_bucket_options().
std::vector<PilotPlan> predict_candidates(const PredictedJob& job);

/// The same plan with its buckets cut, or neighbours that travel alike merged, at so many elements.
/// A parameter is never cut.
PilotPlan with_largest_bucket(const PilotPlan& plan, std::span<const ParamInfo> parameters,
                              size_t numel);
/// Elements of its largest bucket of at least so many parameters; 0: there is none.
size_t largest_bucket(const PilotPlan& plan, std::span<const ParamInfo> parameters,
                      size_t least_parameters);
/// PilotPlan::waits. Of factors of a matrix the density is that of their elements in its own.
double waits_of(const PlanOptions& plan, std::span<const ParamInfo> parameters);
/// Elements of all of them.
size_t numel_of(std::span<const ParamInfo> parameters);
/// Whether it sends 16 bits of every element or all of it.
bool is_wide(const std::string& spec);
/// Whether what the optimizer gets in a step may be far from the gradient: where elements or directions
/// wait for later steps, where an element has less than 4 bits, or where what rounding leaves out is
/// lost for good. Not of 16 bits, nor of what rounds each element and sends the rest in the next step.
bool may_lose(const std::string& spec);
/// Whether what it leaves out is smaller than what it sends: not of what is drawn at random, nor of
/// factors, by which whole directions may wait.
bool chooses_by_size(const std::string& spec);
/// "topk:1%,int4, 3 buckets, 2 streams", or of a plan of several specs "int4 for 20% of the gradient,
/// none for 80%, 2 buckets".
std::string name_of(const PilotPlan& plan, std::span<const ParamInfo> parameters);

}  // namespace gradwire::planner
