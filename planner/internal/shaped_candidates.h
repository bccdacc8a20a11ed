#pragma once
// The plan of a compressor whose bytes depend on the shapes of parameters (powersgd), which the
// search over sizes alone cannot price: it runs everywhere, in one of a few partitions.

#include <span>
#include <string>

#include "gradwire/planner/internal/candidates.h"

namespace gradwire::planner {

/// Whether what a spec sends depends on shapes.
bool depends_on_shapes(const std::string& spec);

/// `spec` for all gradients in `order`, in the partition (a bucket from 1, 4 or 25 MiB on, or one
/// in all) whose last exchange ends first by the model of BucketOption; every bucket by the
/// cheapest exchange that carries its groups. Payloads count at their capacities: of the two sides
/// that a step sends in turn the larger. A group that a rule gives a spec without a price codes for
/// free.
/// @throws InvalidArgument as make_plan(), and where nothing carries a bucket.
PilotPlan shaped_candidate(const PredictedJob& job, const std::string& spec,
                           std::span<const ParamId> order);

}  // namespace gradwire::planner
