#pragma once
// The plan of a compressor whose bytes depend on the shapes of parameters (powersgd), which the
// search over sizes alone cannot price: it runs everywhere, in one of a few partitions.

#include <optional>
#include <span>
#include <string>

#include "gradwire/planner/internal/candidates.h"

namespace gradwire::planner {

/// Whether what a spec sends depends on shapes.
bool depends_on_shapes(const std::string& spec);

/// `spec` for all gradients in `order`, in the partition (a bucket from 1, 4 or 25 MiB on, or one
/// in all) whose last exchange ends first by the model of BucketOption; every bucket by the
/// exchange that is through with it first. A step sends one side's factors and the next the
/// other's: bytes are the mean. A group that a rule gives a spec without a price codes for free.
/// None where no group of this spec has a matrix larger than its factors.
/// @throws InvalidArgument as make_plan(), and where nothing carries a bucket.
std::optional<PilotPlan> shaped_candidate(const PredictedJob& job, const std::string& spec,
                                          std::span<const ParamId> order);

/// When the last exchange of such a plan ends, since backward began, by the same model: what codes
/// what is in the job's costs, each bucket by its own exchange.
double exchange_end_s(const PredictedJob& job, const Plan& plan);

}  // namespace gradwire::planner
