#pragma once
// What the ranks of a reducer must have in common.

#include "gradwire/comm/plan.h"
#include "gradwire/comm/reducer_options.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// The options. @throws InvalidArgument for those that a reducer over memory of `device` cannot have.
const ReducerOptions& checked(const ReducerOptions& options, Device device);

/// Collective: the parts of the plan fit together, and it and the options are the same on every rank.
void agree_on(const Plan& plan, const ReducerOptions& options, Transport& over, Context& context);

/// @throws InvalidArgument where the plans' parameters differ.
void check_same_parameters(const Plan& old, const Plan& next);

}  // namespace gradwire
